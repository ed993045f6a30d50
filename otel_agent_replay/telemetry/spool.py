"""The spool: one file for each process, written before anything else happens, and never in the program's way.

Every append is one `writev` to a file of our own, so what was written survives `kill -9`, `os._exit` and any
exception. It is not synced: that would only guard against a loss of power, and costs fifty times as much.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.telemetry import entropy, forks
from otel_agent_replay.telemetry.behind import WriteBehind
from otel_agent_replay.telemetry.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_agent_replay.telemetry.shipping.custody import Custody

SUFFIX = ".spool"
REPLAY_SUFFIX = ".replay.spool"
"""Of the files of replays, which are never shipped."""

PATIENCE = 5.0
"""Seconds to wait for another thread's write. A thread that the interpreter froze while it exits never ends."""

MOST_PARTS = 1024
"""IOV_MAX: buffers that one `writev` takes."""

# Bound once: what the program does to these names, or what records its files, is not about this file.
_open, _close, _writev, _fstat, _truncate, _rename = os.open, os.close, os.writev, os.fstat, os.ftruncate, os.rename


class SpoolWriter:
    """Appends to the spool file of this process. Thread-safe; no method raises.

    The file is made at the first write, with an advisory lock that is held while its writer lives. A forked
    child, and a process whose descriptor was closed by others, get a file of their own.

    Args:
        directory: where spool files lie; made, for this user only, where it is missing.
        fault: told once, in one sentence, when something keeps frames from being written.
        limit: bytes that the directory may hold; 0 for any number.
        custody: told of each file and each write, so that they are shipped.
        suffix: how the names of files end.

    Attributes:
        lost: how many writes were lost.
        why: the reason of the last loss; empty for none.
    """

    rank = 2

    def __init__(
        self,
        directory: Path,
        fault: Callable[[str], None],
        *,
        limit: int = 0,
        custody: Custody | None = None,
        suffix: str = SUFFIX,
    ) -> None:
        self.directory = directory
        self.lost = 0
        self.why = ""
        self._room = Room(directory, limit)
        self._custody = custody
        self._suffix = suffix
        self._size = 0
        self._fault = fault
        self._path: Path | None = None
        self._descriptor = -1
        self._identity = (0, 0)
        self._pid = real.getpid()
        self._unusable = False
        self._told: set[int | None] = set()
        self._lock = threading.RLock()  # a finaliser or a signal handler may come back here
        self._held = False
        self._writing = False
        self._deferred: deque[tuple[Sequence[bytes], bool]] = deque()
        self._behind = WriteBehind(lambda parts, vital: self._write(parts, vital=vital))
        forks.watch(self)

    @property
    def path(self) -> Path | None:
        """The file of this process; None before the first write."""
        return self._path

    def write(self, parts: Sequence[bytes], failed: Callable[[], None], *, vital: bool = False) -> None:
        """Append, all or nothing. `failed` is called, maybe later and from another thread, where it could not be.

        What is vital is written though the spool has reached its limit.
        """
        if self._behind.busy and self._behind.add(lambda: parts, sum(map(len, parts)), failed, vital=vital):
            return
        if not self._write(parts, vital=vital):
            failed()

    def write_behind(self, make: Callable[[], Sequence[bytes]], size: int, failed: Callable[[], None]) -> None:
        """Append what `make` gives, about `size` bytes, from another thread; what comes later stays behind it.

        A process that is killed before this is done loses it, so it is only for what would block an event loop.
        """
        if not self._behind.add(make, size, failed) and not self._write(make()):
            failed()

    def drain(self) -> None:
        """Wait until what was written behind is on disk."""
        self._behind.drain(2 * PATIENCE)

    def _write(self, parts: Sequence[bytes], *, vital: bool = False) -> bool:
        """False where the parts could not be written."""
        if not self._lock.acquire(timeout=PATIENCE):
            self.lost += 1
            return False
        error: OSError | None = None
        try:
            if self._writing:  # this thread was interrupted while it writes: after that
                self._deferred.append((parts, vital))
                return True
            self._writing = True
            try:
                error = self._append(parts, vital=vital)
                while self._deferred:
                    later, needed = self._deferred.popleft()
                    error = self._append(later, vital=needed) or error
            finally:
                self._writing = False
        finally:
            self._lock.release()
        if self._custody is not None:  # which may start a process and log: not while others wait
            self._custody.wrote()
        if error is not None:
            self._tell(error)
        return error is None

    def close(self) -> None:
        """End the file: readers see that its writer is gone. A later write begins another."""
        self.drain()
        if not self._lock.acquire(timeout=PATIENCE):
            return
        try:
            self._leave()
        finally:
            self._lock.release()

    def hold(self, patience: float) -> None:
        self._behind.drain(patience)
        self._held = self._lock.acquire(timeout=patience)

    def go_on(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()

    def begin_again(self) -> None:
        self._lock = threading.RLock()
        self._held = self._writing = False
        self._deferred.clear()  # the parent writes them
        self._behind.forget()
        self._leave()
        self._pid = real.getpid()

    def _append(self, parts: Sequence[bytes], *, vital: bool) -> OSError | None:
        """What went wrong, None for nothing."""
        done = 0
        try:
            size = sum(map(len, parts))
            if not self._room.take(size, vital=vital):
                raise _FullError(errno.EDQUOT, f"the spool has reached its limit of {self._room.limit:,} bytes")
            if not self._ours() or (self._size and self._custody and 0 < self._custody.file_bytes <= self._size):
                self._begin()
            self._size += size
            rest = parts
            while True:
                done += _writev(self._descriptor, rest[:MOST_PARTS] if len(rest) > MOST_PARTS else rest)
                if done == size:
                    return None
                rest = _after(parts, done)
        except OSError as error:
            self.lost += 1
            if done:  # a file that is full may take a part of a frame
                with suppress(OSError):
                    _truncate(self._descriptor, _fstat(self._descriptor).st_size - done)
            return error

    def _ours(self) -> bool:
        """Whether the descriptor is still our file, and this the process that opened it.

        Programs close descriptors that they do not know (daemons do), and the number is then another file's. A
        file that somebody removed takes writes as ever, but nobody can read them.
        """
        if self._descriptor < 0:
            return False
        if self._pid != real.getpid():
            self._leave()
            self._pid = real.getpid()
            return False
        try:
            status = _fstat(self._descriptor)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) != self._identity:
            return False
        if not status.st_nlink:
            self._leave()
            return False
        return True

    def _begin(self) -> None:
        """Make the file of this process. It gets its name once it is locked, so nobody takes it for a dead one's."""
        if self._unusable:
            raise _UnusableError
        self._leave()
        name = f"{real.time_ns():019d}-{self._pid}-{entropy.span_id() & 0xFFFFFFFF:08x}{self._suffix}"
        draft, path = self.directory / f".{name}.new", self.directory / name
        try:
            _make(self.directory)
            if self._custody is not None:
                self._custody.begins(name)
            descriptor = _open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # some network file systems know no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _rename(draft, path)
        except OSError as error:
            self._unusable = error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
            raise
        status = _fstat(descriptor)
        self._path, self._descriptor, self._identity = path, descriptor, (status.st_dev, status.st_ino)
        self._size = 0

    def _leave(self) -> None:
        """Let go of the file, and of no other that has its number by now."""
        if self._descriptor >= 0:
            with suppress(OSError):
                status = _fstat(self._descriptor)
                if (status.st_dev, status.st_ino) == self._identity:
                    _close(self._descriptor)
        self._descriptor = -1

    def _tell(self, error: OSError) -> None:
        if isinstance(error, _UnusableError) or error.errno in self._told:
            return
        self.why = error.strerror or str(error)
        self._told.add(error.errno)
        if isinstance(error, _FullError):
            self._fault(
                f"recording stopped: {error.strerror}; make room in {self.directory}, or raise "
                "OTEL_AGENT_REPLAY_SPOOL_LIMIT"
            )
        elif self._unusable:
            self._fault(
                f"nothing is recorded: {self.directory} cannot be written ({error.strerror}); "
                "set OTEL_AGENT_REPLAY_HOME to a directory that can"
            )
        else:
            where = self._path or self.directory
            self._fault(f"recording stopped: {where} takes no more ({error.strerror}); make room and run again")


class _FullError(OSError):
    """The spool has reached its limit."""


class _UnusableError(OSError):
    """Nothing can be written here, as was said before."""


def _make(directory: Path) -> None:
    """Make a directory, and those above it, for this user only."""
    if directory.is_dir():
        return
    if directory.parent != directory:
        _make(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(0o700)


def _after(parts: Sequence[bytes], done: int) -> list[bytes]:
    """What is left of the parts after so many bytes."""
    rest = []
    for part in parts:
        if done >= len(part):
            done -= len(part)
        else:
            rest.append(part[done:] if done else part)
            done = 0
    return rest
