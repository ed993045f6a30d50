"""Settings: the environment, read once. Everything below the assembly takes arguments.

Each constant is an environment variable that `opentelemetry-instrument` also offers as a flag
(``OTEL_AGENT_REPLAY_HOME`` as ``--agent_replay_home``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from otel_agent_replay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

OTEL_AGENT_REPLAY_HOME = "OTEL_AGENT_REPLAY_HOME"
"""Directory of local state: the spool, the embedded store, keys. Default: the user's state directory."""

OTEL_AGENT_REPLAY_DSN = "OTEL_AGENT_REPLAY_DSN"
"""The store: ``chdb://PATH`` (embedded; the default, under the home) or ``clickhouse://HOST:PORT/DATABASE``."""

OTEL_AGENT_REPLAY_MODE = "OTEL_AGENT_REPLAY_MODE"
"""``record`` (the default under `opentelemetry-instrument`) or ``off``."""

OTEL_AGENT_REPLAY_ENVIRONMENT = "OTEL_AGENT_REPLAY_ENVIRONMENT"
"""Names, separated by commas, of environment variables whose values are recorded and answered in a replay.
Default: none. Credentials are always recorded by name only."""

OTEL_AGENT_REPLAY_ORDER = "OTEL_AGENT_REPLAY_ORDER"
"""``auto`` (default: completions are held back while one run owns the process), ``strict`` or ``observed``."""

OTEL_AGENT_REPLAY_NAME = "OTEL_AGENT_REPLAY_NAME"
"""Name of the run of this process. Default: the script or module."""

OTEL_AGENT_REPLAY_MASK_DEFAULTS = "OTEL_AGENT_REPLAY_MASK_DEFAULTS"
"""``on`` (default: credentials are masked by the headers, names and shapes that they have) or ``off``."""

OTEL_AGENT_REPLAY_MASK_KEYS = "OTEL_AGENT_REPLAY_MASK_KEYS"
"""Keys of JSON objects, separated by commas, whose values are masked, whatever they hold. Also masks headers, form
fields, query values, attributes and options of commands of these names; capitals, ``-`` and ``_`` do not matter."""

OTEL_AGENT_REPLAY_MASK_PATHS = "OTEL_AGENT_REPLAY_MASK_PATHS"
"""JSON paths, separated by commas, such as ``$.user.email``, ``$.items[*].ssn`` or ``$..ssn``: what stands there is
masked in every body, input, outcome and event of a stream."""

OTEL_AGENT_REPLAY_MASK_PATTERNS = "OTEL_AGENT_REPLAY_MASK_PATTERNS"
"""Python regular expressions, one a line; what they match is masked, or only their group ``secret``."""

OTEL_AGENT_REPLAY_MASK_HOOK = "OTEL_AGENT_REPLAY_MASK_HOOK"
"""``module:function``; given each text, it returns the parts of it to mask. Where it raises, the text is masked."""

OTEL_AGENT_REPLAY_MASK_SECRET = "OTEL_AGENT_REPLAY_MASK_SECRET"  # noqa: S105 (its name)
"""The key that masked values are digested under, at least 16 characters: give it to several machines for equal
tokens on all. Default: made once, in the home, mode 0600."""

MODES = ("record", "off")
ORDERS = ("auto", "strict", "observed")
SWITCH = ("on", "off")


@dataclass(frozen=True, slots=True)
class Masking:
    """What is masked, and under which key."""

    defaults: bool = True
    keys: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    hook: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for."""

    home: Path
    dsn: str
    mode: str
    environment: tuple[str, ...]
    order: str
    name: str
    mask: Masking = field(default_factory=lambda: Masking())

    @property
    def spool(self) -> Path:
        """Directory of the spool files."""
        return self.home / "spool"


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises UsageError, naming the variable, where one has no meaning."""
    home = Path(environ.get(OTEL_AGENT_REPLAY_HOME) or _default_home()).expanduser().absolute()
    return Settings(
        home=home,
        dsn=environ.get(OTEL_AGENT_REPLAY_DSN) or f"chdb://{home / 'store'}",
        mode=_choice(environ, OTEL_AGENT_REPLAY_MODE, MODES),
        environment=_listed(environ, OTEL_AGENT_REPLAY_ENVIRONMENT),
        order=_choice(environ, OTEL_AGENT_REPLAY_ORDER, ORDERS),
        name=environ.get(OTEL_AGENT_REPLAY_NAME, ""),
        mask=Masking(
            defaults=_choice(environ, OTEL_AGENT_REPLAY_MASK_DEFAULTS, SWITCH) == "on",
            keys=_listed(environ, OTEL_AGENT_REPLAY_MASK_KEYS),
            paths=_listed(environ, OTEL_AGENT_REPLAY_MASK_PATHS),
            patterns=_listed(environ, OTEL_AGENT_REPLAY_MASK_PATTERNS, "\n"),
            hook=environ.get(OTEL_AGENT_REPLAY_MASK_HOOK, "").strip(),
            secret=environ.get(OTEL_AGENT_REPLAY_MASK_SECRET, ""),
        ),
    )


def _listed(environ: Mapping[str, str], name: str, separator: str = ",") -> tuple[str, ...]:
    return tuple(part.strip() for part in environ.get(name, "").split(separator) if part.strip())


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = environ.get(name, "").strip().lower() or choices[0]
    if value not in choices:
        raise UsageError(f"{name} is {value!r}; set it to one of {', '.join(choices)}.")
    return value


def _default_home() -> str:
    from platformdirs import user_state_dir  # noqa: PLC0415 (only where no home is set)

    return user_state_dir("otel-agent-replay")
