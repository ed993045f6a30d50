"""What a run found around it: directory, interpreter, git, packages, environment.

Nothing here holds up the start or the end of the program. Whether the working tree is dirty is asked of git in a
process that is nobody's child, while the program runs; which packages were imported is known only at the end.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from otel_agent_replay.recording import hashing
from otel_agent_replay.telemetry import gitstate, packages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.values import Json

_CREDENTIAL = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|PWD|PASSPHRASE|CREDENTIALS?|PRIVATE_?KEY|AUTH|DSN"
    r"|COOKIE|KEY)(?:$|_(?!PATH$|FILE$|DIR$|URL$))",
    re.IGNORECASE,
)
_NO_CREDENTIAL = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "OTEL_AGENT_REPLAY_DSN"})


_LOCALTIME = "/etc/localtime"


class Wanted(Protocol):
    """The setting that this needs."""

    @property
    def environment(self) -> tuple[str, ...]:
        """Names of the environment variables whose values are recorded."""

    @property
    def include(self) -> tuple[str, ...]:
        """Modules whose readings count."""

    @property
    def exclude(self) -> tuple[str, ...]:
        """Modules whose readings do not."""


def describe_world(settings: Wanted, environ: Mapping[str, str]) -> dict[str, Json]:
    """What is known when the run begins.

    `directory`, `argv`, `executable`, `python`, `implementation`, `platform`, `host`, `user`, `hash_seed`
    (empty where it is not fixed), `hash_check`, `timezone`
    (as `TZ` takes it; null where it cannot be told), `git` (`commit`, `branch`; absent outside of a work tree),
    `environment` (value by name, null where unset),
    `credentials` (names only), `readings` (modules that are included and excluded; absent where none are).
    """
    directory = _directory()
    world: dict[str, Json] = {
        "directory": directory,
        "argv": list(sys.orig_argv),
        "executable": sys.executable,
        "python": sys.version.partition(" ")[0],
        "implementation": sys.implementation.name,
        "platform": " ".join((os.uname().sysname, os.uname().release, os.uname().machine)),
        "host": os.uname().nodename,
        "user": os.getuid(),
        "hash_seed": "" if sys.flags.ignore_environment else hashing.seed_of(environ.get("PYTHONHASHSEED")),
        "hash_check": hashing.check(),
        "timezone": _timezone(environ),
        "environment": {name: environ.get(name) for name in settings.environment if not is_credential(name)},
        "credentials": [*sorted(name for name in environ if is_credential(name))],
    }
    if settings.include or settings.exclude:
        world["readings"] = {"include": [*settings.include], "exclude": [*settings.exclude]}
    git = gitstate.describe(Path(directory)) if directory else None
    if git is not None:
        world["git"] = {**git}
        gitstate.ask(Path(directory), environ)
    return world


def describe_end(settings: Wanted) -> dict[str, Json]:
    """What is known when the run ends: `packages` (version by name), `git_dirty` (null where it is not known)."""
    end: dict[str, Json] = {"packages": {**packages.imported()}}
    if gitstate.asked():
        end["git_dirty"] = gitstate.answer()
    return end


def is_credential(name: str) -> bool:
    """Whether an environment variable of this name is likely to hold a credential."""
    return name not in _NO_CREDENTIAL and _CREDENTIAL.search(name) is not None


def _timezone(environ: Mapping[str, str]) -> str | None:
    """What makes local times here: `TZ`, else the zone that the machine is set to."""
    if "TZ" in environ:
        return environ["TZ"]
    try:
        _, zones, name = os.path.realpath(_LOCALTIME, strict=True).partition("/zoneinfo/")
    except OSError:
        return "UTC"  # as the C library has it where nothing is set
    return name if zones else None


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed under the program
        return ""
