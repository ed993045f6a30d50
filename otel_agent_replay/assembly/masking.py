"""Masking as the settings ask for it: rules, the user's hook and the key."""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from otel_agent_replay import settings as names
from otel_agent_replay.boundary.lanes import LANE, OUTSIDE
from otel_agent_replay.errors import UsageError
from otel_agent_replay.recording.mask_rules import Rules, parse_path
from otel_agent_replay.recording.masking import Masker
from otel_agent_replay.telemetry import maskkey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_agent_replay.recording.mask_rules import Hook
    from otel_agent_replay.settings import Masking, Settings


def masker(settings: Settings) -> tuple[Masker | None, list[str]]:
    """What masks this process's runs, and what is wrong with its key; None where the settings ask for nothing.

    Also masks what other instrumentations send through this process's SDK. Raises UsageError, naming the setting.
    """
    from otel_agent_replay.telemetry import pipeline  # noqa: PLC0415 (needs the SDK, which a replay does not load)

    found, troubles = made(settings)
    if found is not None:
        pipeline.install(found.another())
    return found, troubles


def made(settings: Settings) -> tuple[Masker | None, list[str]]:
    """The same for what this process writes alone."""
    wanted = rules(settings.mask)
    if not wanted.active:
        return None, []
    if settings.mask.secret:
        key, trouble = maskkey.given(settings.mask.secret, names.OTEL_AGENT_REPLAY_MASK_SECRET), ""
    else:
        key, trouble = maskkey.of_home(settings.home)
    return Masker(wanted, key), [trouble] if trouble else []


def rules(wanted: Masking) -> Rules:
    """The rules. Raises UsageError where one has no meaning."""
    paths, patterns = [], []
    for text in wanted.paths:
        try:
            paths.append(parse_path(text))
        except ValueError as error:
            raise UsageError(
                f"{names.OTEL_AGENT_REPLAY_MASK_PATHS} has {text!r}, which is no JSON path ({error}); "
                "write it like $.user.email, $.items[*].ssn or $..ssn."
            ) from error
    for text in wanted.patterns:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{names.OTEL_AGENT_REPLAY_MASK_PATTERNS} has {text!r}, which is no regular expression ({error}); "
                "write Python regular expressions, one a line."
            ) from error
        patterns.append(pattern)
    hook = _hook(wanted.hook) if wanted.hook else None
    return Rules(wanted.defaults, frozenset(wanted.keys), tuple(paths), tuple(patterns), hook)


def _hook(text: str) -> Hook:
    """The function that `module:function` names, looked for where the program will find its modules."""
    module, colon, path = text.partition(":")
    if not colon or not module or not path:
        raise _no_hook(text, "it does not look like module:function")
    try:
        with _importing():
            found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise _no_hook(text, f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise _no_hook(text, f"it is a {type(found).__name__}")
    return _apart(cast("Hook", found))


def _apart(hook: Hook) -> Hook:
    """The hook as code that belongs to no run: what it reads of the clock, say, is none of the program's."""

    def asked(text: str) -> Iterable[str]:
        token = LANE.set(OUTSIDE)
        try:
            parts = hook(text)
            return parts if isinstance(parts, str) else list(parts or ())
        finally:
            LANE.reset(token)

    return asked


def _no_hook(text: str, why: str) -> UsageError:
    return UsageError(
        f"{names.OTEL_AGENT_REPLAY_MASK_HOOK} is {text!r}, which cannot be used ({why}); "
        "name a function as module:function, importable where the program is."
    )


@contextmanager
def _importing() -> Iterator[None]:
    """The program's own folder is on the path: the interpreter puts it there only after this runs."""
    words = sys.orig_argv[1:]
    script = next((word for word in words if not word.startswith("-")), "")
    folders = [str(Path(script).resolve().parent)] if script and "-m" not in words and "-c" not in words else []
    added = [folder for folder in (*folders, str(Path.cwd())) if folder not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)
