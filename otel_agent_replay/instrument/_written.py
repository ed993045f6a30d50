"""Files that the program has open to write, while recording: how each looked when it was closed.

What a file of the C library does when it is closed cannot be wrapped, but whoever closes it asks it for `close`, and an
attribute of the object comes before the method of its type. So the objects that the program gets are the very ones
that the standard library makes.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument._filesystem import Own

Looks: TypeAlias = tuple[int, ...]
"""Inode, size and time of change of a file."""

NEVER: Final[Looks] = (-1,)
"""How no file looks."""


class Written:
    """A file that the program has written."""

    __slots__ = ("handles", "looks", "path", "target")

    def __init__(self, path: str = "", looks: Looks | None = None, target: str = "") -> None:
        self.path = path
        self.looks = looks
        """How the program has left it; None while it may still be writing."""
        self.target = target
        """Where it is a symbolic link: the path that it leads to."""
        self.handles = 0
        """So often the program has it open to write."""


def looks_of(found: os.stat_result) -> Looks:
    """How a file looks."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def follow(file: Any, own: Own, written: Written) -> None:
    """Tell `own` when a file is closed.

    Args:
        file: a file object, or a descriptor.
        own: who is told.
        written: what `own.opened` gave for it.
    """
    if isinstance(file, int):
        _numbers[file] = (own, written)
    else:
        _follow_object(file, own, written)


def wrapped(file: Any) -> None:
    """A file object was made; it may be of a descriptor that is followed."""
    if _numbers:
        raw = _raw(file)
        found = _numbers.pop(raw.fileno(), None) if raw is not None and raw.closefd else None
        if found is not None:
            _follow_object(file, *found)


def closing(number: int) -> None:
    """A descriptor is about to be closed."""
    found = _numbers.pop(number, None) if _numbers else None
    if found is not None:
        found[0].closed(found[1], _looks_now(number))


_numbers: dict[int, tuple[Own, Written]] = {}
"""Descriptors that the program has open by `os.open`."""


def _follow_object(file: Any, own: Own, written: Written) -> None:
    raw = _raw(file)
    if raw is None:
        own.closed(written, None)
    else:
        raw.close = _Close(raw, lambda looks: own.closed(written, looks), alone=raw is file)


def _raw(file: Any) -> Any:
    buffer = getattr(file, "buffer", file)
    raw = getattr(buffer, "raw", buffer)
    return raw if hasattr(raw, "closefd") and hasattr(raw, "__dict__") else None


def _looks_now(number: int) -> Looks | None:
    try:
        return looks_of(os.fstat(number))
    except OSError:
        return None


class _Close:
    """`close` of one raw file. It holds no reference to it, which would put off the end of a file nobody closes.

    Args:
        raw: the file.
        tell: is called once, before the file is closed.
        alone: nothing is above it that closes it.
    """

    __slots__ = ("_alone", "_attributes", "_file", "_number", "_tell")

    def __init__(self, raw: Any, tell: Callable[[Looks | None], None], *, alone: bool) -> None:
        self._file = weakref.ref(raw)
        self._attributes = vars(raw)
        self._number = raw.fileno()
        self._tell = tell
        self._alone = alone

    def __call__(self) -> None:
        self._attributes.pop("close", None)
        self._tell(_looks_now(self._number))
        raw = self._file()
        if raw is not None:
            raw.close()
        elif self._alone:
            # The collector of garbage clears references before it lets a file close itself. What is above the file
            # writes and closes it next, so it may only be closed here where there is nothing.
            os.close(self._number)
