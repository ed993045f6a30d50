"""What a command is asked with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.instrument import _filesystem
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Session

PYTHON: Final = "<python>"
"""Stands for the interpreter that runs the program, which is elsewhere on another machine."""

_STREAMS: Final = {subprocess.PIPE: "pipe", subprocess.STDOUT: "stdout", subprocess.DEVNULL: "null"}


CREDENTIAL: Final = "<credential>"
"""Stands for the value of a command's variable whose name is that of a credential."""


_masked: list[re.Pattern[str]] = []


def mask(names: re.Pattern[str]) -> None:
    """Let nothing be recorded of a command's variable whose name is like these but that it is there."""
    _masked[:] = [names]


def listed(args: Any) -> Any:
    """A command, as `subprocess.Popen` takes it, that can be looked at more than once."""
    return args if isinstance(args, str | bytes | os.PathLike | list | tuple) else list(args)


def describe(lane: Lane, args: Any, options: Mapping[str, Any]) -> dict[str, object]:
    """The input of a command's crossing.

    Args:
        lane: who runs it.
        args: the command as `subprocess.Popen` takes it.
        options: its other arguments, by name.
    """
    places = _filesystem.of(lane.session).places
    shell = bool(options.get("shell"))
    words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
    told: dict[str, object] = {"args": [places.portable(_word(word)) for word in words]}
    if shell:
        told["shell"] = True
    if options.get("executable") is not None:
        told["executable"] = places.portable(_word(options["executable"]))
    if options.get("cwd") is not None:
        told["cwd"] = places.name(places.absolute(os.fsdecode(options["cwd"])))
    if options.get("env") is not None:
        told["env"] = _given(lane.session, told["args"], options["env"])
    for name in ("stdin", "stdout", "stderr"):
        if options.get(name) is not None:
            told[name] = _STREAMS.get(options[name], "file") if isinstance(options[name], int) else "file"
    return told


def key_of(told: Mapping[str, object]) -> str:
    """What the boundary of a command is called: the name of its program."""
    words = told["args"]
    assert isinstance(words, list)
    if told.get("shell") or not words:
        return "process:shell"
    return f"process:{'python' if words[0] == PYTHON else PurePath(str(words[0])).name or 'command'}"


def _word(word: Any) -> str:
    text = os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else str(word)
    return PYTHON if text == sys.executable and text else text


def _given(session: Session, args: object, env: Mapping[Any, Any]) -> dict[str, str]:
    """The variables of a command that are not the program's own, by name; of credentials nothing but the name.

    In a replay the program's own are those that the recording told it, and those that are here, but for what was not
    its own when this command was recorded.
    """
    places = _filesystem.of(session).places
    recorded = _recorded(session) if session.replaying else frozenset()
    given = {}
    for key, value in env.items():
        name, held = os.fsdecode(key), os.fsdecode(value)
        shown = CREDENTIAL if any(names.search(name) for names in _masked) else places.portable(held)
        if held not in _own(session, name) or (shown != CREDENTIAL and (str(args), name, shown) in recorded):
            given[name] = shown
    return dict(sorted(given.items()))


_variables: WeakKeyDictionary[Session, frozenset[tuple[str, str, str]]] = WeakKeyDictionary()


def _recorded(session: Any) -> frozenset[tuple[str, str, str]]:
    """What recorded commands were given beside the program's own variables: words, name and value."""
    known = _variables.get(session)
    if known is None:
        inputs = [record.input for record in session.recording.crossings if record.kind == Kind.PROCESS]
        told: list[Any] = [one for one in inputs if isinstance(one, dict) and isinstance(one.get("env"), dict)]
        known = frozenset((str(one.get("args")), *pair) for one in told for pair in one["env"].items())
        _variables[session] = known
    return known


def _own(session: Any, name: str) -> tuple[str | None, ...]:
    """What the program itself may have in a variable."""
    here = os.environ.get(name)
    if not session.replaying:
        return (here,)
    told = session.variable(name)
    # A credential that this machine lacks stands in the program's environment as it was told of it.
    return (here, session.environment(name, here), None if told is None else json.loads(told))
