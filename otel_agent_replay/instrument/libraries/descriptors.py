"""`os.read`, `os.write` and `select`, of the pipes to commands: the same steps as of the files that they belong to.

A program that waits for a pipe by its descriptor, and reads it by that, never touches the file.
"""

from __future__ import annotations

import os
import select
import selectors
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.instrument import _pipes
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, asking, lane_of
from otel_agent_replay.recording.values import Note, NoteKind, Returned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_agent_replay.instrument._pipes import Pipe
    from otel_agent_replay.recording.values import Outcome

_THROUGH: Final = frozenset({"os", "select", "selectors", "contextlib", "functools"})


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    patches.put(os, "read", unbindable(_read(os.read), os.read, "os"))
    patches.put(os, "write", unbindable(_write(os.write), os.write, "os"))
    patches.put(select, "select", unbindable(_select(select.select), select.select, "select"))
    if hasattr(select, "poll"):
        patches.put(select, "poll", unbindable(_poll(select.poll), select.poll, "select"))
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector"):
        kind = getattr(selectors, name, None)
        if kind is not None:
            replacement = _selector(kind.select)
            like(replacement, kind.select, "selectors")
            patches.put(kind, "select", replacement)


_installation = Installation(_put)


# -- reading and writing -----------------------------------------------------------------------------------


def _read(original: Callable[[int, int], bytes]) -> Callable[..., bytes]:
    def read(_: object, fd: int, length: int, /) -> bytes:
        pipe = _pipes.of(fd) if _pipes.KNOWN else None
        if pipe is None or lane_of(COMMANDS) is None:
            return original(fd, length)
        if asking(COMMANDS, _THROUGH) is None:
            _unseen(pipe)
            return original(fd, length)
        data: bytes = pipe.child.step(pipe.what, None, lambda: original(fd, length))
        return data

    return read


def _write(original: Callable[[int, Any], int]) -> Callable[..., int]:
    def write(_: object, fd: int, data: Any, /) -> int:
        pipe = _pipes.of(fd) if _pipes.KNOWN else None
        if pipe is None or asking(COMMANDS, _THROUGH) is None:
            return original(fd, data)
        held = bytes(data)
        count: int = pipe.child.step(pipe.what, held, lambda: original(fd, held))
        return count

    return write


def _unseen(pipe: Pipe) -> None:
    """Somebody reads who is not the program: an event loop, whose reads are nobody's."""
    child = pipe.child
    what = f"{pipe.what} of {child.key}: it is read by its descriptor, for the program"
    child.lane.session.note(Note(NoteKind.UNCAPTURED, what))


# -- waiting until there is something ----------------------------------------------------------------------


def _select(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(_: object, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None, /) -> Any:
        if not _pipes.KNOWN:
            return original(rlist, wlist, xlist, timeout)
        asked = [list(each) for each in (rlist, wlist, xlist)]
        pipe = _first(_number(one) for each in asked for one in each)
        if pipe is None or asking(COMMANDS, _THROUGH) is None:
            return original(*asked, timeout)

        def perform() -> list[list[int]]:
            ready = original(*asked, timeout)
            return [
                [at for at, one in enumerate(each) if any(one is known for known in found)]
                for each, found in zip(asked, ready, strict=True)
            ]

        told = pipe.child.step("select", None, perform, lambda: _ready(asked))
        return tuple([each[at] for at in found] for each, found in zip(asked, told, strict=True))

    return wait


def _ready(asked: list[list[Any]]) -> Outcome:
    return Returned([[at for at, one in enumerate(each) if _pipes.of(_number(one))] for each in asked])


def _selector(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, timeout: float | None = None) -> Any:
        if not _pipes.KNOWN:
            return original(self, timeout)
        keys = list(self.get_map().values()) if self.get_map() else []
        pipe = _first(key.fd for key in keys)
        if pipe is None or asking(COMMANDS, _THROUGH) is None:
            return original(self, timeout)
        places = {key.fd: at for at, key in enumerate(keys)}

        def perform() -> list[list[int]]:
            return [[places[key.fd], events] for key, events in original(self, timeout)]

        told = pipe.child.step("select", None, perform, lambda: _watched((key.fd, key.events) for key in keys))
        return [(keys[at], events) for at, events in told]

    return wait


def _watched(watched: Iterable[tuple[int, int]]) -> Outcome:
    return Returned([[at, events] for at, (number, events) in enumerate(watched) if _pipes.of(number)])


def _poll(original: Callable[[], Any]) -> Callable[..., Any]:
    def poll(_: object) -> Any:
        return original() if asking(COMMANDS, _THROUGH) is None else _Poll(original())

    return poll


class _Poll:
    """What `select.poll` gives, for the program."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self._watched: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT, /) -> None:
        self._plain.register(fd, eventmask)
        self._watched[_number(fd)] = eventmask

    def modify(self, fd: Any, eventmask: int, /) -> None:
        self._plain.modify(fd, eventmask)
        self._watched[_number(fd)] = eventmask

    def unregister(self, fd: Any, /) -> None:
        self._plain.unregister(fd)
        self._watched.pop(_number(fd), None)

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        numbers = list(self._watched)
        pipe = _first(numbers)
        if pipe is None or asking(COMMANDS, _THROUGH) is None:
            found: list[tuple[int, int]] = self._plain.poll(timeout)
            return found

        def perform() -> list[list[int]]:
            return [[numbers.index(number), events] for number, events in self._plain.poll(timeout)]

        told = pipe.child.step("select", None, perform, lambda: _watched(self._watched.items()))
        return [(numbers[at], events) for at, events in told]


def _first(numbers: Iterable[int]) -> Pipe | None:
    return next((pipe for number in numbers if (pipe := _pipes.of(number)) is not None), None)


def _number(given: Any) -> int:
    try:
        return given if isinstance(given, int) else int(given.fileno())
    except (AttributeError, OSError, ValueError, TypeError):
        return -1
