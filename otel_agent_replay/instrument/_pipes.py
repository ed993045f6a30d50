"""The ends of the pipes to a command, as files whose reads and writes are steps.

In a replay they are real pipes that lead nowhere: they can be waited for, and nothing comes through them.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
import subprocess
from contextlib import suppress
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

    def __init__(self, number: int, mode: str, child: Child, what: str, *, lent: bool = False) -> None:
        super().__init__(number, mode, closefd=not lent)
        self.child = child
        self.what = what
        self.beyond = -1
        """The other end, where it is to stay open."""
        looks = os.fstat(number)
        self.looks = (looks.st_dev, looks.st_ino)
        self.number = number
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
        known = KNOWN.get(self.number)
        if known is not None and known() in (self, None):
            del KNOWN[self.number]
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


def lend(child: Child, given: Mapping[str, int]) -> None:
    """Know the ends, in this process, of pipes of its own whose other ends a command is given.

    Args:
        child: the command, which keeps them.
        given: the descriptors that it has as its streams, by their names.
    """
    for name, number in given.items():
        for end, mode in _other_ends(number, wanted=os.O_WRONLY if name == "stdin" else os.O_RDONLY):
            if of(end) is None:
                child.ends.append(Pipe(end, mode, child, name, lent=True))


def is_lent(number: int) -> bool:
    """Whether the other end of this pipe is known."""
    return any(of(end) is not None for end, _ in _other_ends(number, wanted=os.O_RDONLY))


def _other_ends(number: int, wanted: int) -> list[tuple[int, str]]:
    """Descriptors of the other end of a pipe, and how they are opened; none where the system does not tell."""
    found: list[tuple[int, str]] = []
    with suppress(OSError):
        looks = os.fstat(number)
        if not stat.S_ISFIFO(looks.st_mode):
            return []
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (no paths are wanted)
            with suppress(OSError):  # the descriptor of this very look is gone
                end = os.fstat(int(name))
                same = (end.st_dev, end.st_ino) == (looks.st_dev, looks.st_ino)
                if same and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE == wanted:
                    found.append((int(name), "wb" if wanted == os.O_WRONLY else "rb"))
    return found


def opened(pipe: Pipe, mode: str, buffering: int, text: Mapping[str, Any], *, closefd: bool) -> Any:
    """What `open` gives of the descriptor of an end: a file whose reads and writes are steps.

    Args:
        pipe: the end.
        mode: as `open` takes it.
        buffering: the same.
        text: encoding, errors and newline, as `open` takes them.
        closefd: whether the descriptor is closed with the file.
    """
    raw: Any = Pipe(pipe.number, pipe.mode, pipe.child, pipe.what, lent=not closefd)
    if buffering == 0:
        return raw
    buffer = io.BufferedWriter if raw.writable() else io.BufferedReader
    made: Any = buffer(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    return made if "b" in mode else io.TextIOWrapper(made, **text, line_buffering=buffering == 1)


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
