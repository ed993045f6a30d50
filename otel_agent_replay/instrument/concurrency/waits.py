"""Threads that wait: a Condition (and with it Event, Queue, Semaphore, Barrier, Future), and `Thread.join`.

A waiting thread has settled; who notifies it says that it is busy again, before it has even woken. A wait
with a timeout is a timer: recording, its end has a place in the order; replaying, it never takes time.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import queue
import sys
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.completions import NEVER, State, WaitTurn
from otel_agent_replay.boundary.lanes import strand
from otel_agent_replay.boundary.order import TIMEOUT, Delivery, monotonic, ordering
from otel_agent_replay.boundary.parties import THREADS
from otel_agent_replay.boundary.stall import in_debugger

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument.concurrency.patching import Patches


def install(patches: Patches) -> None:
    """Patch threading.Condition, and the clock of what waits for it again and again until a deadline."""
    patches.put(threading.Condition, "wait", _wait)
    patches.same(threading, "_time", monotonic)
    patches.same(queue, "time", monotonic)


def block(gate: Delivery, lane: Lane, turn: WaitTurn, timeout: float | None) -> bool:
    """Block the calling thread until `turn.release`; False where the timeout came first.

    Recording, the timeout is real. Raises DivergenceError where a replay cannot go on.
    """
    party = gate.here(lane)
    turn.party = party
    gate.settle(party)
    try:
        if turn.acquire(-1 if timeout is None or gate.replaying else timeout):
            return _woken(gate, turn)
        with gate.lock:
            late = turn.notified or gate.arrive(turn)
        if turn.notified or not late:
            turn.acquire()
    except BaseException:
        gate.give_up(turn)
        gate.woken(party)
        raise
    return _woken(gate, turn)


def _woken(gate: Delivery, turn: WaitTurn) -> bool:
    if turn.notified:
        return True
    if turn.error is not None:
        raise turn.error
    gate.passed(turn)
    return False


def begin(gate: Delivery, lane: Lane, timeout: float | None) -> WaitTurn:
    """A wait begins; one with a timeout counts among those of its lane, and is to be blocked on or given up."""
    if timeout is None:
        return WaitTurn(gate, lane, TIMEOUT, -1, NEVER)
    ordinal = lane.ordinal(TIMEOUT)
    turn = WaitTurn(gate, lane, TIMEOUT, ordinal, gate.place(lane, TIMEOUT, ordinal))
    turn.due = gate.now() + timeout
    if gate.holds:
        turn.party = gate.here(lane)
    gate.expect(turn)
    return turn


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, timeout: Any = None) -> Any:
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None:
            if THREADS:
                _idle(lane)
            return original(self, timeout)
        if (timeout is not None and timeout <= 0) or debugged():
            return original(self, timeout)
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        turn = begin(gate, lane, timeout)
        if not gate.holds:
            return _observe(gate, turn, timeout, lambda: original(self, timeout))
        return _among_waiters(self, gate, lane, turn, timeout)

    return wait


def _among_waiters(condition: Any, gate: Delivery, lane: Lane, turn: WaitTurn, timeout: float | None) -> bool:
    """What Condition.wait does, with a waiter of ours."""
    condition._waiters.append(turn)
    saved = condition._release_save()
    notified = False
    try:
        notified = block(gate, lane, turn, timeout)
        return notified
    finally:
        condition._acquire_restore(saved)
        if not notified:
            try:
                condition._waiters.remove(turn)
            except ValueError:
                pass


def _observe(gate: Delivery, turn: WaitTurn, timeout: float | None, really: Callable[[], bool]) -> bool:
    """A wait of a run whose completions are only numbered."""
    if timeout is None:
        return really()
    notified = False
    try:
        notified = really()
    finally:
        if notified or sys.exc_info()[0] is not None:
            gate.give_up(turn)
        elif turn.state is State.NEW:
            gate.passed(turn)
    return notified


def _idle(lane: Lane | None) -> None:
    """A worker thread blocks between two items."""
    party = THREADS.get(get_ident())
    if party is not None and party.serves and lane is None:
        party.gate.leave(party)


def debugged() -> bool:
    """Whether the calling thread stands in a debugger, whose own waits are nobody's business."""
    loaded = "pydevd" in sys.modules or "bdb" in sys.modules
    return loaded and in_debugger(get_ident())
