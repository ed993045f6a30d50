"""The ends of the pipes to a command, as files whose reads and writes are steps.

In a replay they are real pipes that lead nowhere: they can be waited for, and nothing comes through them.
"""

from __future__ import annotations

import io
import os
import subprocess
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.instrument._children import Child

_PIPES: Final = (("stdin", "wb"), ("stdout", "rb"), ("stderr", "rb"))

KNOWN: dict[int, ref[Pipe]] = {}
"""Ends that are open, by their descriptors."""


class Pipe(io.FileIO):
    """An end of a pipe to a command. In a replay it leads nowhere, and gives what was recorded."""

    def __init__(self, number: int, mode: str, child: Child, what: str) -> None:
        super().__init__(number, mode)
        self.child = child
        self.what = what
        self.beyond = -1
        """The other end, where it is to stay open."""
        looks = os.fstat(number)
        self.looks = (looks.st_dev, looks.st_ino)
        self._number = number
        KNOWN[number] = ref(self)

    def readinto(self, buffer: Any) -> Any:
        view = memoryview(buffer).cast("B")

        def read() -> bytes | None:
            count = super(Pipe, self).readinto(view)
            return None if count is None else bytes(view[:count])

        data = self.child.step(self.what, None, read)
        if data is None:
            return None
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> Any:
        return self.child.step(self.what, None, lambda: super(Pipe, self).read(-1 if size is None else size))

    def readall(self) -> Any:
        return self.child.step(self.what, None, lambda: super(Pipe, self).readall())

    def write(self, data: Any, /) -> Any:
        held = bytes(data)
        return self.child.step(self.what, held, lambda: super(Pipe, self).write(held))

    def close(self) -> None:
        known = KNOWN.get(self._number)
        if known is not None and known() in (self, None):
            del KNOWN[self._number]
        beyond, self.beyond = self.beyond, -1
        if beyond >= 0:
            os.close(beyond)
        super().close()


def of(number: object) -> Pipe | None:
    """The end of a pipe to a command that has this descriptor."""
    known = KNOWN.get(number) if type(number) is int else None
    pipe = None if known is None else known()
    if pipe is None or pipe.closed:
        return None
    try:
        looks = os.fstat(pipe.fileno())
    except OSError:
        return None
    return pipe if (looks.st_dev, looks.st_ino) == pipe.looks else None  # else it was closed by its number


def connect(self: Any, child: Child, options: Mapping[str, Any]) -> None:
    """Put files whose reads and writes are steps in place of the ends of the pipes of a `subprocess.Popen`."""
    size = options.get("bufsize", -1)
    by_line = bool(self.text_mode) and size == 1
    if by_line:
        size = -1
    for name, mode in _PIPES:
        if options.get(name) != subprocess.PIPE:
            continue
        raw: Any = _stand_in(mode, child, name) if child.replaying else _taken(getattr(self, name), mode, child, name)
        if size:
            buffer = io.BufferedWriter if mode == "wb" else io.BufferedReader
            raw = buffer(raw, size if size > 0 else io.DEFAULT_BUFFER_SIZE)
        if self.text_mode:
            text: dict[str, Any] = {"encoding": self.encoding, "errors": self.errors}
            writing: dict[str, Any] = {"write_through": True, "line_buffering": by_line} if mode == "wb" else {}
            raw = io.TextIOWrapper(raw, **text, **writing)
        setattr(self, name, raw)


def _taken(plain: Any, mode: str, child: Child, name: str) -> Pipe:
    number = os.dup(plain.fileno())
    plain.close()
    return Pipe(number, mode, child, name)


def _stand_in(mode: str, child: Child, name: str) -> Pipe:
    """A pipe that is at its end where it is read, and has somebody at its end where it is written."""
    reads, writes = os.pipe()
    if mode == "rb":
        os.close(writes)
        return Pipe(reads, mode, child, name)
    pipe = Pipe(writes, mode, child, name)
    pipe.beyond = reads
    return pipe
