"""Locks of the program: who waits longest gets the lock next.

A plain lock goes to whichever thread the operating system lets run first, and to one that comes by sooner;
so the order of calls made under a lock could not be repeated. What the program makes by `threading.Lock()`
and `threading.RLock()` while it is recorded or replayed is handed on in the order of waiting, and a thread
that waits for it is seen to wait. Locks of the standard library, and those made outside of a run, are plain.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import functools
import sys
import threading
from _thread import allocate_lock
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import callers
from otel_agent_replay.boundary.lanes import strand
from otel_agent_replay.boundary.order import ordering
from otel_agent_replay.instrument.concurrency.waits import begin, block, debugged

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.completions import WaitTurn
    from otel_agent_replay.instrument.concurrency.patching import Patches


def install(patches: Patches) -> None:
    """Patch the makers of locks."""
    patches.put(threading, "Lock", lambda original: _maker("Lock", original, OrderedLock))
    patches.put(threading, "RLock", lambda original: _maker("RLock", original, OrderedRLock))


class OrderedLock:
    """A lock that is handed on in the order of waiting."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._waiters: deque[WaitTurn] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """As threading.Lock does."""
        if self._lock.acquire(False):  # noqa: FBT003
            return True
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None or not gate.holds or not blocking or debugged():
            return self._lock.acquire(blocking, timeout)
        if timeout != -1 and timeout <= 0:
            return self._lock.acquire(blocking, timeout)
        turn = begin(gate, lane, None if timeout == -1 else timeout)
        with gate.lock:
            if self._lock.acquire(False):  # noqa: FBT003
                gate.give_up(turn)
                return True
            self._waiters.append(turn)
        got = False
        try:
            got = block(gate, lane, turn, None if timeout == -1 else timeout)
        except BaseException:
            if turn.notified:  # it has been handed over already
                OrderedLock.release(self)
            raise
        finally:
            if not got and turn in self._waiters:
                self._waiters.remove(turn)
        return got

    def release(self) -> None:
        """As threading.Lock does."""
        while self._waiters:
            if not self._lock.locked():
                break
            turn = self._waiters.popleft()
            try:
                turn.release()  # it has the lock now
            except RuntimeError:
                continue  # it has given up
            return
        self._lock.release()

    def locked(self) -> bool:
        """As threading.Lock does."""
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._waiters.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "locked" if self._lock.locked() else "unlocked"
        return f"<{state} {type(self).__module__}.{type(self).__qualname__} object at {id(self):#x}>"


class OrderedRLock(OrderedLock):
    """The same, and the thread that has it may take it again."""

    def __init__(self) -> None:
        super().__init__()
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """As threading.RLock does."""
        ident = get_ident()
        if self._owner == ident:
            self._count += 1
            return True
        got = super().acquire(blocking, timeout)
        if got:
            self._owner, self._count = ident, 1
        return got

    def release(self) -> None:
        """As threading.RLock does."""
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            super().release()

    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _release_save(self) -> tuple[int, int | None]:
        if not self._count:
            raise RuntimeError("cannot release un-acquired lock")
        state = self._count, self._owner
        self._count, self._owner = 0, None
        super().release()
        return state

    def _acquire_restore(self, state: tuple[int, int | None]) -> None:
        super().acquire()
        self._count, self._owner = state

    def _at_fork_reinit(self) -> None:
        super()._at_fork_reinit()
        self._owner, self._count = None, 0


class _Kind(type):
    """What `threading.Lock` is from 3.13 on: a class, of which every lock is an instance."""

    kinds: tuple[type, ...] = ()

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, cls.kinds)


def _maker(name: str, original: Callable[..., Any], ordered: type[OrderedLock]) -> Any:
    def wanted(depth: int) -> bool:
        gate = ordering(strand())
        return gate is not None and gate.holds and callers.kind_of(sys._getframe(depth)) <= callers.DISPATCH

    if not isinstance(original, type):
        # A partial, like the built-in function that it stands for, is no method where a class holds it.
        return functools.partial(lambda: ordered() if wanted(2) else original())

    def new(_: type) -> Any:
        return ordered() if wanted(2) else original()

    return _Kind(name, (), {"__new__": new, "kinds": (original, ordered), "__module__": "threading"})
