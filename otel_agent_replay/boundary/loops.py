"""What the gates need to know of an event loop: whether anything of the program is left to run in it.

Two methods of the loop object are replaced, once a run has code in it: `_run_once`, at whose beginning the
loop is about to wait for the world if nothing is ready; and `_process_events`, at which it has stopped
waiting. Loops that have no such methods (uvloop) are watched from outside: they
count as settled a few passes after something was delivered to them.

While the program reacts to a completion its loop does not look at the world: what comes in meanwhile would
change, say, which of two cancelled tasks is the first to notice. Such passes need no system call either.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from enum import IntEnum
from threading import get_ident
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.lanes import LANE, OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.delivery import Delivery
    from otel_agent_replay.boundary.lanes import Lane

ATTRIBUTE = "_otel_agent_replay_watch"
"""Where a loop keeps its watch."""

PROBES = 3
"""Passes after which a loop that cannot be looked into counts as settled."""

OWN_FILES = 1
"""Files that a loop of its own accord waits for: the pipe by which other threads wake it."""


MOST_CLOSED = 32
"""Passes in a row in which a loop may be kept from looking at the world."""

RETRY = "_deliver_cancellation"
"""Name of the callback by which anyio tries to cancel a shielded task again, in each pass of the loop."""

SOON = 1.0
"""Seconds within which a timer counts as able to wake its loop."""


class Ready(IntEnum):
    """What a loop has to run."""

    NOTHING = 0
    BENEATH = 1
    """Only code beneath a crossing, or of no run."""
    PROGRAM = 2


def _what(handle: Any, gate: Delivery, root: Lane | None) -> Ready:
    """What a handle is to the run of `gate`."""
    if handle._cancelled:
        return Ready.NOTHING
    lane = handle._context.get(LANE) or root
    if lane is None or lane is OUTSIDE:
        return Ready.BENEATH
    if getattr(lane.session, "order", None) is not gate:
        return Ready.NOTHING
    if lane.beneath is not None:
        return Ready.BENEATH
    return Ready.NOTHING if getattr(handle._callback, "__name__", "") == RETRY else Ready.PROGRAM


class LoopWatch:
    """One event loop. All of it happens in the loop's thread, but for `post`."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.gates: tuple[Delivery, ...] = ()
        self.ident = 0
        """The thread that runs it."""
        self.running = loop.is_running()
        self.inbound: deque[Callable[[], object]] = deque()
        """Deliveries that other threads have posted. They are made between two passes, once the loop has run
        what it had: a delivery that comes into the middle of something could not be repeated."""
        self._known: dict[Delivery, Any] = {}
        """By gate: the last of the handles that were seen to run nothing of the program."""
        self.context = _outside()
        self.sees = hasattr(loop, "_run_once") and hasattr(loop, "_ready")
        self._plain = getattr(type(loop), "_run_once", None) is asyncio.BaseEventLoop.__dict__["_run_once"]
        self.closed = 0
        """Passes in a row in which it did not look at the world."""
        if self.sees:
            self._once: Callable[[], None] = loop._run_once
            loop._run_once = self._run_once
            self._process: Callable[[Any], None] = loop._process_events
            loop._process_events = self._process_events

    def join(self, gate: Delivery) -> None:
        """Tell `gate` of each pass from now on."""
        if gate in self.gates:
            return
        self.gates = (*self.gates, gate)

    def leave(self, gate: Delivery) -> None:
        """The run of `gate` is over."""
        self.gates = tuple(other for other in self.gates if other is not gate)
        self._known.pop(gate, None)

    def ready(self, gate: Delivery) -> Ready:
        """What the loop has to run for the run of `gate`."""
        found = Ready.NOTHING
        root = lanes.process_root
        for handle in tuple(self.loop._ready):
            what = _what(handle, gate, root)
            if what is Ready.PROGRAM:
                return what
            found = what or found
        return found

    def runs_program(self, gate: Delivery) -> bool:
        """Whether `ready` is PROGRAM. Asked for each of many completions, it looks at each handle once."""
        root = lanes.process_root
        handles = tuple(self.loop._ready)
        known = self._known.get(gate)
        for handle in reversed(handles):
            if handle is known:
                break
            if _what(handle, gate, root) is Ready.PROGRAM:
                return True
        if handles:
            self._known[gate] = handles[-1]
        return False

    def awaits_world(self) -> bool:
        """Whether files other than its own could wake it, or a timer that is none of the program's, soon."""
        soon = real.monotonic() + SOON
        if any(timer.when() < soon and not timer.cancelled() for timer in tuple(getattr(self.loop, "_scheduled", ()))):
            return True
        selector = getattr(self.loop, "_selector", None)
        files = selector.get_map() if selector is not None else None
        return files is None or len(files) > OWN_FILES

    def post(self, action: Callable[[], object]) -> None:
        """Call `action` in the loop's thread, as soon as can be."""
        if asyncio._get_running_loop() is self.loop:
            action()
            return
        self.inbound.append(action)
        try:
            _outside().run(self.loop.call_soon_threadsafe, self._posted)
        except RuntimeError:  # the loop is closed: nobody is there to be woken
            self.inbound.clear()

    def append(self, handle: Any) -> None:
        """Let the loop run a handle in its next pass."""
        if self.sees:
            self.loop._ready.append(handle)
        else:
            handle._run()

    def probe(self, gate: Delivery, passes: int = PROBES) -> None:
        """Look at a blind loop again, a few passes from now."""
        if passes:
            self.loop.call_soon(self.probe, gate, passes - 1, context=self.context)
        else:
            gate.pass_begins(self)

    def started(self) -> None:
        """The loop begins to run, in this thread."""
        self.running, self.ident = True, get_ident()

    def stopped(self) -> None:
        """It no longer runs."""
        self.running = False

    def _posted(self) -> None:
        if not self.sees:
            self._deliver()

    def _deliver(self) -> None:
        while self.inbound:
            self.inbound.popleft()()

    def _run_once(self) -> None:
        if self._reacts():
            self._closed_pass()
        else:
            self.closed = 0
            self._once()

    def _process_events(self, events: Any) -> None:
        """It has stopped waiting: what threads of the program posted meanwhile goes first."""
        for gate in self.gates:
            gate.pass_continues(self)
        while self.loop._ready and not self.loop._stopping and self._reacts():
            self._closed_pass()
        self._process(events)

    def _reacts(self) -> bool:
        """Whether the program is reacting to a completion, so that the world has to wait."""
        reacting = False
        if self.inbound:
            reacting = True
            if self.closed >= MOST_CLOSED or all(self.ready(gate) is Ready.NOTHING for gate in self.gates):
                self._deliver()
        for gate in self.gates:
            reacting = gate.pass_begins(self) or reacting
        if self.closed >= MOST_CLOSED or self.loop._debug or not self._plain:
            return False
        return reacting and bool(self.loop._ready)

    def _closed_pass(self) -> None:
        """What a plain loop does in a pass, but for looking at the world."""
        self.closed += 1
        ready = self.loop._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


def watch_of(loop: Any) -> LoopWatch | None:
    """The watch of a loop; None where no run has code in it."""
    return getattr(loop, ATTRIBUTE, None)


def watched(loop: Any) -> LoopWatch:
    """The watch of a loop, made if need be."""
    watch = watch_of(loop)
    if watch is None:
        watch = LoopWatch(loop)
        setattr(loop, ATTRIBUTE, watch)
    return watch


def _outside() -> Context:
    context = Context()
    context.run(LANE.set, OUTSIDE)
    return context
