"""`os.posix_spawn` and `os.spawn…`: commands that the program starts by calls of the system, which a replay does not.

The start is a crossing, whose outcome is the id of the process. What the program does by that id, waiting for its end
above all, is seen to as for any other command (`children`), and so are pipes of the program's own that the command
was given an end of (`_pipes`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _children, _commands, _filesystem, _outputs, _pipes
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross
from otel_agent_replay.instrument._children import Child
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_THROUGH: Final = frozenset({"os", "contextlib", "functools"})
_STREAMS: Final = ("stdin", "stdout", "stderr")
"""By the descriptor that each is of a command."""


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in ("posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            original = getattr(os, name)
            patches.put(os, name, unbindable(_posix_spawn(original), original, "os"))
    if hasattr(os, "_spawnvef"):  # all functions of this kind call it
        patches.put(os, "_spawnvef", _spawn(os._spawnvef))  # noqa: SLF001 (there is no other place)


_installation = Installation(_put)


def _posix_spawn(original: Callable[..., int]) -> Callable[..., int]:
    def posix_spawn(_: object, path: Any, argv: Any, env: Any, /, **options: Any) -> int:
        found = asking(COMMANDS, _THROUGH)
        if found is None or not isinstance(argv, list | tuple) or not (env is None or hasattr(env, "items")):
            return original(path, argv, env, **options)
        lane = found[0]
        actions = options["file_actions"] = list(options.get("file_actions") or ())
        given, opened = _redirected(actions)
        told = _told(lane, path, argv, env)
        told |= dict.fromkeys([name for name in _STREAMS if name in given or name in opened], "file")
        key = _commands.key_of(told)
        child = Child(lane, key, lane.session.replaying)
        _pipes.lend(child, given)
        child.outputs = _outputs.given(
            lane, key, given, [number for number in given.values() if _pipes.is_lent(number)]
        )

        def start() -> dict[str, object]:
            _filesystem.command_starts(lane.session)
            return {"pid": original(path, argv, env, **options)}

        pid: int = cross(lane, Call(Kind.PROCESS, key, told), start)["pid"]
        _children.started(child, pid)
        return pid

    return posix_spawn


def _redirected(actions: Iterable[Any]) -> tuple[dict[str, int], set[str]]:
    """What a command has as its standard streams: descriptors of the program's, by name; and those that it opens."""
    given: dict[str, int] = {}
    opened: set[str] = set()
    for action in actions:
        kind, number, *rest = action
        if kind == os.POSIX_SPAWN_DUP2:
            source, number = number, rest[0]
            if 0 <= number < len(_STREAMS):
                name = _STREAMS[source] if 0 <= source < len(_STREAMS) else ""
                if name not in opened:
                    given[_STREAMS[number]] = given.get(name, source)
        elif kind == os.POSIX_SPAWN_OPEN and 0 <= number < len(_STREAMS):
            given.pop(_STREAMS[number], None)
            opened.add(_STREAMS[number])
    return given, opened


def _told(lane: Any, path: Any, argv: Iterable[Any], env: Mapping[Any, Any] | None) -> dict[str, object]:
    options: dict[str, Any] = {} if env is None else {"env": env}
    words = list(argv)
    if not words or os.fsdecode(words[0]) != os.fsdecode(path):
        options["executable"] = path
    return _commands.describe(lane, words, options)


def _spawn(original: Callable[..., int]) -> Callable[..., int]:
    def _spawnvef(mode: int, file: Any, args: Any, env: Any, func: Any) -> int:
        found = asking(COMMANDS, _THROUGH)
        if found is None or not isinstance(args, list | tuple):
            return original(mode, file, args, env, func)
        lane = found[0]
        told = _told(lane, file, args, env)
        key = _commands.key_of(told)
        waits = mode == os.P_WAIT

        def start() -> dict[str, object]:
            _filesystem.command_starts(lane.session)
            return {"returncode" if waits else "pid": original(mode, file, args, env, func)}

        started: dict[str, int] = cross(lane, Call(Kind.PROCESS, key, told), start)
        if waits:
            return started["returncode"]
        _children.started(Child(lane, key, lane.session.replaying), started["pid"])
        return started["pid"]

    like(_spawnvef, original, "os")
    return _spawnvef
