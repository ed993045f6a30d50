"""Completions that wait for their turn: a call that came back, a timer that fired, a wait that timed out."""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from contextlib import suppress
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from otel_agent_replay.boundary.delivery import Delivery
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.loops import LoopWatch
    from otel_agent_replay.boundary.parties import Party


class Unplaced(Enum):
    """Why a completion has no place in the recorded order."""

    NEVER = "never"
    """It was recorded, and never completed."""
    FREE = "free"
    """The recording does not know it: new code."""


NEVER = Unplaced.NEVER
FREE = Unplaced.FREE

Due: TypeAlias = "int | Unplaced"
"""Place of a completion in the recorded order. A negative number stands for NEVER."""

SLEEP = "clock:sleep"
"""Key of the return of `time.sleep`."""

SIGNALLED = "signalled"
"""Key of a change of timers or handlers in the main thread, to which no completion but a signal's was nearer."""

UNFIRED = -1
"""The number that is logged for a timer or a timeout that was asked for and never came."""


class State(IntEnum):
    """Where a completion is on its way to the program."""

    NEW = 0
    QUEUED = 1
    GRANTED = 2
    PASSED = 3
    GONE = 4


class Completion:
    """One completion, from the moment it is there until the program sees it. Implements `Turn`."""

    __slots__ = (
        "__weakref__",
        "_future",
        "arriving",
        "due",
        "error",
        "gate",
        "key",
        "lane",
        "ordinal",
        "party",
        "place",
        "seq",
        "state",
        "wake",
        "watch",
        "when",
    )

    def __init__(self, gate: Delivery, lane: Lane, key: str, ordinal: int, place: Due = FREE) -> None:
        self.gate = gate
        self.lane = lane
        self.key = key
        self.ordinal = ordinal
        self.place = place
        """Replaying: its place in the recorded order."""
        self.seq: int | None = None
        """Its place in the order that the program saw; None until then."""
        self.state = State.NEW
        self.party: Party | None = None
        """Who is woken by it."""
        self.watch: LoopWatch | None = None
        """The loop in which it is awaited; None where it blocks a thread."""
        self.wake: Callable[[], object] | None = None
        self.error: BaseException | None = None
        """To be raised instead."""
        self.when: float | None = None
        """Of a timer: in seconds of its loop's clock, as the program reads it."""
        self.due: float | None = None
        """Of a timer or timeout: in seconds of its gate's `now`."""
        self.arriving = False
        self._future: asyncio.Future[None] | None = None

    @property
    def last_resort(self) -> bool:
        """Unknown to the recording, it comes only once nothing else can happen."""
        return False

    def wait(self) -> None:
        """Block this thread until the program may see it. Raises DivergenceError where that can never be."""
        if self.state is State.PASSED:
            return
        gate = self.gate
        self.party = gate.here(self.lane)
        turnstile = allocate_lock()
        turnstile.acquire()
        self.wake = turnstile.release
        if not gate.arrive(self):
            try:
                turnstile.acquire()
            except BaseException:
                gate.give_up(self)
                raise
            if self.error is not None:
                raise self.error
        gate.passed(self)

    async def wait_async(self) -> None:
        """The same for a coroutine."""
        if self.state is State.PASSED:
            return
        gate = self.gate
        loop = asyncio._get_running_loop()
        if loop is None:  # a coroutine of another framework: it is numbered, and never held back
            gate.passed(self)
            return
        self.watch = gate.meet(loop)
        self.party = gate.here(self.lane)
        self.wake = self._wake_task
        try:
            if not gate.arrive(self):
                self._future = loop.create_future()
                try:
                    await self._future
                except BaseException:
                    gate.give_up(self)
                    raise
                if self.error is not None:
                    raise self.error
            gate.passed(self)
        finally:
            self.wake = None  # it refers to this, and this to what waits: nothing is left for the garbage collector

    def _wake_task(self) -> None:
        assert self.watch is not None
        self.watch.post(self._resolve)

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.lane.path} {self.key} #{self.ordinal} {self.place} {self.state.name}>"


class TimerTurn(Completion):
    """A timer of an event loop. Its handle asks it whether to run."""

    __slots__ = ("handle", "pause")

    def __init__(self, gate: Delivery, lane: Lane, key: str, ordinal: int, place: Due, when: float) -> None:
        super().__init__(gate, lane, key, ordinal, place)
        self.when: float = when
        self.pause = False
        """It ends a mere sleep, rather than a wait for something else."""
        self.handle: TimerHandle | None = None
        self.wake = self._wake_timer

    @property
    def last_resort(self) -> bool:
        return not self.pause

    def comes(self) -> bool:
        """The loop runs the timer: whether it may go on, now."""
        if self.state is State.NEW and not self.gate.holds:
            self.state = State.GRANTED
        elif self.state is State.NEW:
            self.party = self.gate.here(self.lane)
            if not self.gate.arrive(self):
                return False
        if self.state is not State.GRANTED or self.error is not None:
            return False
        self.gate.passed(self)
        self.let_go()
        return True

    def let_go(self) -> None:
        """It has come, or never will: drop what refers to this in turn."""
        self.wake = self.handle = None

    def _wake_timer(self) -> None:
        assert self.watch is not None
        self.watch.post(self._again)

    def _again(self) -> None:
        assert self.watch is not None
        if self.handle is not None:
            self.watch.append(self.handle)


class TimerHandle(asyncio.TimerHandle):
    """A timer whose firing has a place in the order."""

    __slots__ = ("turn",)

    def __init__(
        self,
        turn: TimerTurn,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(turn.when or 0.0, callback, args, loop, context)
        self.turn = turn
        turn.handle = self

    def _run(self) -> None:
        if self.turn.comes():
            super()._run()

    def cancel(self) -> None:
        """Cancel the timer, and give up its place."""
        if not self.cancelled():
            self.turn.gate.give_up(self.turn)
            self.turn.let_go()
        super().cancel()


class ForeignTimerHandle(TimerHandle):
    """The same in a loop that does not derive from asyncio's own."""

    __slots__ = ("behind",)

    behind: asyncio.TimerHandle | None
    """The loop's own timer, which runs this one; None in a replay."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.behind = None

    def cancel(self) -> None:
        """Cancel both, and give up the place."""
        if not self.cancelled():
            self.turn.gate.give_up(self.turn)
            self.turn.let_go()
        if self.behind is not None:
            self.behind.cancel()
        asyncio.Handle.cancel(self)  # the loop knows nothing of this one


class WaitTurn(Completion):
    """A thread that waits to be notified, or for its timeout: stands among a Condition's waiters.

    The timeout is the completion; `release` is what a Condition calls to notify.
    """

    __slots__ = ("_turnstile", "notified")

    def __init__(self, gate: Delivery, lane: Lane, key: str, ordinal: int, place: Due) -> None:
        super().__init__(gate, lane, key, ordinal, place)
        self.notified = False
        self._turnstile = allocate_lock()
        self._turnstile.acquire()
        self.wake = self._turnstile.release

    @property
    def last_resort(self) -> bool:
        return True

    def release(self) -> None:
        """Notify. Raises RuntimeError, as a lock does, where that has been done."""
        gate = self.gate
        with gate.lock:
            if self.notified or self.state >= State.GRANTED:
                raise RuntimeError("release unlocked lock")
            self.notified = True
            gate.give_up(self)
            assert self.party is not None
            gate.woken(self.party)
            self._turnstile.release()

    def notify(self) -> None:
        """The same, wherever it may have been woken already."""
        with suppress(RuntimeError):
            self.release()

    def acquire(self, timeout: float = -1) -> bool:
        """Block until woken; False where `timeout` seconds have passed first."""
        return self._turnstile.acquire(timeout=timeout)
