"""Threads are lanes. Threads of executors, exporters and debuggers are none, and belong to no run."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary.lanes import GROUND, LANE, OUTSIDE, here, strand
from otel_agent_replay.boundary.order import BEGIN, Delivery, ordering
from otel_agent_replay.boundary.parties import Party
from otel_agent_replay.instrument.concurrency.naming import of_thread, outside, serves
from otel_agent_replay.instrument.concurrency.waits import begin, block, debugged

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.completions import WaitTurn
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument.concurrency.patching import Patches


class Started:
    """A thread that a lane started. Guarded by the lock of its gate."""

    def __init__(self) -> None:
        self._ended = False
        self._joining: list[WaitTurn] = []

    def joined(self, turn: WaitTurn) -> bool:
        """Whether the thread has ended; if not, `turn` is notified when it does."""
        if not self._ended:
            self._joining.append(turn)
        return self._ended

    def end(self) -> None:
        """It has ended."""
        self._ended = True
        while self._joining:
            self._joining.pop(0).notify()


_started: WeakKeyDictionary[threading.Thread, Started] = WeakKeyDictionary()


def install(patches: Patches) -> None:
    """Patch threading.Thread."""
    patches.put(threading.Thread, "start", _start)
    patches.put(threading.Thread, "join", _join)


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: threading.Thread) -> None:
        parent = here()
        if parent is None:
            parent = strand()
        if parent is None or not getattr(self, "_initialized", False) or self._started.is_set():  # type: ignore[attr-defined]
            original(self)
            return
        gate = ordering(parent) if parent is not OUTSIDE else None
        if parent is OUTSIDE or outside(self):
            _start_in(original, self, OUTSIDE)
        elif serves(self):
            _start_in(original, self, None)
        elif gate is None:
            _start_in(original, self, parent)
        else:
            _start_lane(original, self, gate, parent.spawn("thread", of_thread(self)))

    return start


def _start_in(original: Callable[..., Any], thread: Any, lane: Lane | None) -> None:
    """Start a thread that is no lane of its own."""
    run = thread.run

    def run_in() -> None:
        thread.__dict__.pop("run", None)
        LANE.set(lane)
        run()

    _replace(thread, run_in, original)


def _start_lane(original: Callable[..., Any], thread: Any, gate: Delivery, lane: Lane) -> None:
    run = thread.run
    started = _started[thread] = Started()
    party = Party(gate)
    party.lane = lane
    gate.spawned()
    turn = gate.event(lane, BEGIN)

    def run_lane() -> None:
        thread.__dict__.pop("run", None)
        LANE.set(lane)
        GROUND[get_ident()] = lane
        if gate.holds:
            gate.enter(party)
        try:
            turn.wait()
            run()
        finally:
            GROUND.pop(get_ident(), None)
            _end(gate, party, started)

    if gate.holds:
        gate.here(lane.parent or lane)
        gate.woken(party)
    try:
        _replace(thread, run_lane, original)
    except BaseException:
        gate.ended()
        gate.settle(party)
        raise


def _replace(thread: Any, run: Callable[[], None], original: Callable[..., Any]) -> None:
    """Start the thread with another `run`. Its own may be an attribute of the object, rather than its class."""
    own = thread.__dict__.get("run")
    thread.run = run
    token = LANE.set(OUTSIDE)  # its wait for the new thread's first sign of life is no wait of the program's
    try:
        original(thread)
    except BaseException:
        if own is None:
            del thread.run
        else:
            thread.run = own
        raise
    finally:
        LANE.reset(token)


def _end(gate: Delivery, party: Party, started: Started) -> None:
    gate.ended()
    with gate.lock:
        started.end()
    gate.leave(party)


def _join(original: Callable[..., Any]) -> Callable[..., Any]:
    def join(self: threading.Thread, timeout: Any = None) -> None:
        lane = strand()
        gate = ordering(lane)
        started = _started.get(self)
        if lane is None or gate is None or started is None or not gate.holds:
            original(self, timeout)
            return
        if (timeout is not None and timeout <= 0) or self is threading.current_thread() or debugged():
            original(self, timeout)
            return
        turn = begin(gate, lane, timeout)
        with gate.lock:
            over = started.joined(turn)
        if over:
            gate.give_up(turn)
        if over or block(gate, lane, turn, timeout):
            original(self)

    return join
