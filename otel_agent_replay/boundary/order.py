"""The order in which the program observes completions: recorded by `Gate`, followed again by `ReplayGate`.

`ordering` tells the patches of concurrency which gate, if any, orders what a lane does; `sleep_turn` is for
the patches of the clock. Keys of completions that are no crossings stand here.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import sys
from threading import get_ident
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.callers import timeout_reader
from otel_agent_replay.boundary.completions import FREE, NEVER, SIGNALLED, SLEEP, UNFIRED, Completion, Due, Unplaced
from otel_agent_replay.boundary.delivery import Delivery
from otel_agent_replay.boundary.gate import Gate
from otel_agent_replay.boundary.handlers import hand_over
from otel_agent_replay.boundary.lanes import LANE, strand
from otel_agent_replay.boundary.regate import ReplayGate

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

TIMER = "clock:timer"
"""A timer of an event loop fired."""
LOOP_TIME = "clock:time.monotonic"
"""What an event loop's `time` reads, and a thread that has a timeout, by the name of the clock that they read."""
TIMEOUT = "clock:timeout"
"""A thread's wait timed out."""
BEGIN = "lane:begin"
"""A thread or pool item began to run."""
FUTURE = "future:done"
"""A thread set the result or exception of a concurrent Future."""
QUEUE = "queue:put"
"""A thread put an item into a queue."""
CALL = "loop:call"
"""A thread called into an event loop."""
POOLED = "pool:done"
"""An item of a multiprocessing ThreadPool is done."""


def ordering(lane: Lane | None) -> Delivery | None:
    """The gate that orders what this lane does; None where nothing here is ordered."""
    if lane is None or lane.beneath is not None:
        return None
    order = getattr(lane.session, "order", None)
    return order if isinstance(order, Delivery) and not order.detached else None


def monotonic() -> float:
    """The clock by which a thread sees whether a timeout has passed, in seconds: a reading, like a loop's."""
    lane = strand()
    if lane is None or ordering(lane) is None:
        return real.monotonic()
    return lane.session.read(lane, LOOP_TIME, timeout_reader(sys._getframe(1)), real.monotonic)


class SleepTurn:
    """The end of a `time.sleep`. Between `sleep_turn` and `wait` its thread counts as blocked."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._gate = completion.gate
        self._main = completion.lane.parent is None
        if self._gate.holds and not self._gate.alone:
            self._gate.settle(self._gate.here(completion.lane))

    def begin(self) -> None:
        """The sleep begins. Raises, in a replay, what a signal raised in this sleep."""
        if self._main:
            self._gate.falls_asleep(self._completion)

    def wait(self) -> None:
        """Block until it is its turn. Recording, call this when the time has passed."""
        try:
            self._completion.wait()
        finally:
            if self._main:
                self._gate.wakes()


def sleep_turn(lane: Lane) -> SleepTurn | None:
    """The turn of a `time.sleep` that begins now; None where its end has no place in the order.

    Both: `begin`, then `wait`. Recording, sleep in between; replaying do not, also where this gives None.
    """
    gate = ordering(lane)
    if gate is None or asyncio._get_running_loop() is not None:
        return None
    return SleepTurn(gate.event(lane, SLEEP))


def call_handler(number: int, frame: FrameType | None, handler: Callable[[int, FrameType | None], object]) -> object:
    """The handler of a signal is called in the main thread: tell the order of the run, and call it.

    It runs in the main lane, whatever it has come into: what it asks is asked by nobody else.
    """
    lane = lanes.process_root
    gate = ordering(lane)
    if lane is None or gate is None:
        return handler(number, frame)
    place = gate.called(lane, number, frame)
    if place is None:
        return None
    interrupted = lanes.current()
    token = LANE.set(lane)
    gate.handling += 1
    asleep, gate.asleep = gate.asleep, False
    raised = True
    try:
        given = hand_over(handler, number, frame, place)
        raised = False
    finally:
        gate.handling -= 1
        gate.asleep, gate.slept = asleep, max(gate.slept, int(asleep))
        LANE.reset(token)
        if raised and interrupted is not None and interrupted.session is lane.session:
            interrupted.session.interrupted(interrupted, place)
        gate.handled(place, raised=raised)
    return given


def timers_change() -> None:
    """The main thread sets a timer or a handler: signals that came before that come before it in a replay, too."""
    lane = lanes.process_root
    gate = ordering(lane)
    if lane is None or gate is None or get_ident() != lanes.root_thread() or asyncio._get_running_loop() is not None:
        return
    gate.timers_change(lane, lane.ordinal(SIGNALLED))


def comes_anyway(number: object) -> bool:
    """Whether a signal that a thread sends to this process comes in its recorded place, so that it is not to be sent.

    One that the main thread sends itself is handled at once, as it was.
    """
    gate = ordering(lanes.process_root)
    return gate is not None and get_ident() != lanes.root_thread() and isinstance(number, int) and gate.expects(number)


__all__ = [
    "FREE",
    "NEVER",
    "SLEEP",
    "UNFIRED",
    "Delivery",
    "Due",
    "Gate",
    "ReplayGate",
    "SleepTurn",
    "Unplaced",
    "call_handler",
    "comes_anyway",
    "monotonic",
    "ordering",
    "sleep_turn",
    "timers_change",
]
