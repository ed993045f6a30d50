"""Writes that left the event loop: a thread of ours carries them out, in order, and ends when there are none."""

from __future__ import annotations

import _thread
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LARGE = 4 << 20
"""Bytes: what is longer is not written on a running event loop, which it would block for some 2 ms per MiB."""

MOST = 64 << 20
"""Bytes that may wait; beyond that the caller waits too."""

# A thread of `threading` would count as one that the program has spawned.
_start_thread = _thread.start_new_thread


def on_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 (the one that never raises)


class WriteBehind:
    """A queue of writes. Thread-safe.

    Args:
        write: carries one out, told whether it is vital; False where it could not.
    """

    def __init__(self, write: Callable[[Sequence[bytes], bool], bool]) -> None:
        self._write = write
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[tuple[Callable[[], Sequence[bytes]], int, Callable[[], None], bool]] = deque()
        self._bytes = 0
        self.busy = False
        """Whether something waits or is being written, so that what comes next has to wait behind it."""

    def add(
        self, make: Callable[[], Sequence[bytes]], size: int, failed: Callable[[], None], *, vital: bool = False
    ) -> bool:
        """Write what `make` gives, about `size` bytes, after all that waits; `failed` is called where that failed.

        False, with nothing done, where no thread can be started (the interpreter is exiting).
        """
        with self._changed:
            if not self.busy:
                try:
                    _start_thread(self._run, ())
                except RuntimeError:
                    return False
                self.busy = True
            self._queue.append((make, size, failed, vital))
            self._bytes += size
            if self._bytes > MOST:
                self._changed.wait_for(lambda: self._bytes <= MOST, timeout=60)
            return True

    def drain(self, patience: float) -> bool:
        """Wait until nothing waits. False where `patience` seconds were not enough."""
        if not self.busy:
            return True
        deadline = real.monotonic() + patience
        with self._changed:
            while self.busy and (left := deadline - real.monotonic()) > 0:
                self._changed.wait(left)
            return not self.busy

    def forget(self) -> None:
        """In a forked child, where the thread is not: the parent writes what waited."""
        self._changed = threading.Condition(threading.RLock())
        self._queue.clear()
        self._bytes = 0
        self.busy = False

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self.busy = False
                    self._changed.notify_all()
                    return
                make, size, failed, vital = self._queue.popleft()
            try:
                written = self._write(make(), vital)
            except Exception:  # noqa: BLE001 (told through `failed`; this thread has nobody else to tell)
                written = False
            if not written:
                failed()
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()
