"""Timers of event loops: `asyncio.sleep`, `wait_for`, `timeout` and anyio's deadlines all end in `call_at`.

Recording, a timer that fires has a place in the order. Replaying, it never waits: it fires in that place.

What the program reads of a loop's clock is a reading like any other, be it `asyncio.timeout` or anyio that reads
it to see whether a deadline has passed; what the loop itself reads is not.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import heapq
import sys
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.callers import timeout_reader
from otel_agent_replay.boundary.completions import ForeignTimerHandle, TimerHandle, TimerTurn
from otel_agent_replay.boundary.lanes import strand
from otel_agent_replay.boundary.order import LOOP_TIME, TIMER, Delivery, ordering

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument.concurrency.patching import Patches

_TURN = "_run_once"
"""A loop's own function that sees which timers are due; its name in every loop that derives from asyncio's."""

_WAKE_SLEEPER = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]  # asyncio.sleep's callback


def install(patches: Patches) -> None:
    """Patch the loops that derive from asyncio's own."""
    patches.put(asyncio.BaseEventLoop, "call_at", _call_at)
    patches.put(asyncio.BaseEventLoop, "time", _time)


def install_uvloop(patches: Patches) -> None:
    """uvloop, whose timers are its own: while recording, one of them stands behind each of ours."""
    loop = sys.modules["uvloop"].Loop
    patches.put(loop, "call_at", _call_at)
    patches.put(loop, "call_later", _call_later)
    patches.put(loop, "time", _time)


def _call_later(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_later(self: Any, delay: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        if ordering(strand()) is None or delay is None:
            return original(self, delay, callback, *args, context=context)
        return self.call_at(self.time() + delay, callback, *args, context=context)

    return call_later


def _time(original: Callable[..., float]) -> Callable[..., float]:
    """What whatever runs in a lane reads of its loop's clock."""

    def time(self: Any) -> float:
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None:
            return original(self)
        frame = sys._getframe(1)
        if frame.f_code.co_name == _TURN:
            return original(self)
        now = lane.session.read(lane, LOOP_TIME, timeout_reader(frame), lambda: original(self))
        gate.told = now
        return now

    return time


def _call_at(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_at(self: Any, when: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None or when is None:
            if lane is not None and lane.beneath is not None and callback is _WAKE_SLEEPER and lane.session.replaying:
                when = self.time()  # a backoff beneath an answered call
            return original(self, when, callback, *args, context=context)
        if not _is_plain(self):
            if self.is_closed():
                raise RuntimeError("Event loop is closed")
            return _foreign_timer(gate, lane, self, when, callback, args, context)
        self._check_closed()
        if self.get_debug():
            self._check_thread()
            self._check_callback(callback, "call_at")
        return _timer(gate, lane, self, when, callback, args, context)

    return call_at


def _is_plain(loop: Any) -> bool:
    return isinstance(loop, asyncio.BaseEventLoop)


def _timer(
    gate: Delivery, lane: Lane, loop: Any, when: float, callback: Any, args: tuple[Any, ...], context: Any
) -> TimerHandle:
    turn = _turn(gate, lane, loop, when, callback)
    handle = TimerHandle(turn, callback, args, loop, context)
    if handle._source_traceback:  # type: ignore[attr-defined]
        del handle._source_traceback[-3:]  # type: ignore[attr-defined]
    if not gate.replaying:
        heapq.heappush(loop._scheduled, handle)
        handle._scheduled = True  # type: ignore[attr-defined]
    gate.expect(turn)
    return handle


def _foreign_timer(
    gate: Delivery, lane: Lane, loop: Any, when: float, callback: Any, args: tuple[Any, ...], context: Any
) -> TimerHandle:
    turn = _turn(gate, lane, loop, when, callback)
    handle = ForeignTimerHandle(turn, callback, args, loop, context)
    if not gate.replaying and turn.watch is not None:
        own = sys.modules["uvloop"].loop.Loop  # what ours were put over
        handle.behind = own.call_later(loop, max(0.0, when - own.time(loop)), handle._run, context=turn.watch.context)
    gate.expect(turn)
    return handle


def _turn(gate: Delivery, lane: Lane, loop: Any, when: float, callback: Any) -> TimerTurn:
    ordinal = lane.ordinal(TIMER)
    turn = TimerTurn(gate, lane, TIMER, ordinal, gate.place(lane, TIMER, ordinal), when)
    turn.pause = callback is _WAKE_SLEEPER
    if gate.told:  # else the loop has a clock of its own making, and nothing can be said
        turn.due = gate.now() + max(0.0, when - gate.told)
    turn.watch = gate.meet(loop)
    return turn
