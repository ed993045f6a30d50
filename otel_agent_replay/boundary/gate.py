"""Recording the order: completions are numbered as the program sees them, one after the other.

Strict, a completion is held back until what the previous one woke has settled; that makes the order one
that a replay can follow exactly. Holding back costs a bounded time. Each reaction to a completion may run
for `GRACE`; what runs longer, while something is held back for it, is charged to a budget of `ALLOWANCE`
and `SHARE` of the run so far. Beyond it, or in a loop that is not idle for `MOST_PASSES` passes, what is
held back is let go. A thread or loop of which that happened `MOST_STRIKES` times more often than not is
not waited for any more, and after `LAST_STRIKE` no thread is.

Time is that which the waited-for thread has run, as the operating system tells: waiting for the processor
costs nothing, so a loaded machine changes no order.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from collections import defaultdict, deque
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.completions import FREE, SIGNALLED, UNFIRED, Completion, Due, State
from otel_agent_replay.boundary.delivery import Delivery
from otel_agent_replay.boundary.handlers import in_recorder
from otel_agent_replay.boundary.signals import key_of, send
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.loops import LoopWatch
    from otel_agent_replay.boundary.parties import Party
    from otel_agent_replay.boundary.stall import Look

GRACE = 2_000_000
"""Nanoseconds that a reaction may run."""
ALLOWANCE = 5_000_000
"""Nanoseconds by which a run may be delayed beyond that, however short it is."""
SHARE = 0.02
"""Part of a run's duration by which it may be delayed beyond that."""
MOST_PASSES = 32
"""Passes of a loop that never idles, for which something is held back."""
MOST_STRIKES = 3
"""Times that something was let go, less the times that something settled, before a thread or loop of which
it happens is not waited for any more."""
LAST_STRIKE = 6
"""The same before no thread is waited for any more."""
LONGEST_HOLD = 0.25
"""Seconds after which what is held back is let go, whatever the reason. Only such count in which looks were taken:
while the machine gives this process no processor, nothing can settle …"""
SPARSE = 0.005
"""… so of the seconds between two looks at most so many count …"""
LAST_HOLD = 2.0
"""… and this is the end, by the clock alone."""
DEFERRAL = 0.0005
"""Seconds after which a signal is sent again that came while something was being recorded."""
MOST_DEFERRALS = 2000
"""Times in a row that it is kept from the program, in case the recorder hangs."""
BLOCKED = 2
"""Looks in which a thread must have been asleep to count as blocked, while the whole process was."""
BLOCKED_ALONE = 8
"""The same while other threads run: they may keep it from the interpreter's lock, which looks like sleep."""


def _send_again(number: int) -> None:
    """Send a signal to the main thread, a little later."""
    real.sleep(DEFERRAL)
    send(lanes.root_thread(), number)


class Gate(Delivery):
    """The order of one recorded run.

    Args:
        strict: hold back; else only number.
        log: told the lane's path, the key, the ordinal and the number of each completion that the program
            saw, and UNFIRED instead of a number for a timer or timeout that was asked for and never came.
        note: told, once, that completions are not held back as they should be.
    """

    def __init__(
        self,
        strict: bool,  # noqa: FBT001 (the first thing to say of a gate)
        log: Callable[[str, str, int, int], None],
        note: Callable[[Note], None] | None = None,
    ) -> None:
        super().__init__()
        self.strict = strict
        self._log = log
        self._note = note
        self._numbers = count()
        self._queue: deque[Completion] = deque()
        self._expected: set[Completion] = set()
        self._began = real.monotonic()
        self._held_since = self._held_for = self._looked = 0.0
        self._spent = 0
        self._strikes = 0
        self._ran: int | None = None
        self._signalled: int | None = None
        """Place of the latest signal."""
        self._early: defaultdict[int, int] = defaultdict(int)
        """How often in a row a signal has come while something was being recorded, by its number."""

    slowest: ClassVar[float] = 0.001

    @property
    def holds(self) -> bool:
        return self.strict

    def turn(self, lane: Lane, key: str, ordinal: int) -> Completion:
        completion = Completion(self, lane, key, ordinal)
        if self.detached:
            completion.state = State.PASSED
        elif not self.strict or (self.nested == 0 and self.top <= 1 and not self._queue):
            self.passed(completion)
        return completion

    def observe(self) -> None:
        """Hold nothing back any more: other runs share the process from now on."""
        with self.lock:
            if self.strict:
                self.strict = False
                self._say("other runs share the process")
                self.busy.clear()
                self._advance()

    def finish(self) -> None:
        """The run ends: timers that are left never came. Other threads may go on."""
        with self.lock:
            self.finished = True
            expected, self._expected = self._expected, set()
            self._retire()
        for completion in expected:
            self._log(completion.lane.path, completion.key, completion.ordinal, UNFIRED)

    def away(self, lane: Lane, *, blocks: bool) -> None:
        if blocks and self.strict and not (self.nested == 0 and self.top <= 1):
            self.settle(self.here(lane))

    def back(self, lane: Lane, *, blocks: bool) -> None:
        if blocks and self.strict and self.parties:
            self.woken(self.here(lane))

    def now(self) -> float:
        return real.monotonic()

    def place(self, lane: Lane, key: str, ordinal: int) -> Due:
        return FREE

    def expect(self, completion: Completion) -> None:
        self._expected.add(completion)

    def passed(self, completion: Completion) -> None:
        completion.seq = seq = next(self._numbers)
        completion.state = State.PASSED
        if self._expected:
            self._expected.discard(completion)
        super().passed(completion)
        self._log(completion.lane.path, completion.key, completion.ordinal, seq)

    def called(self, lane: Lane, number: int, frame: FrameType | None) -> int | None:
        if self._is_early(number, frame):
            return None
        key = key_of(number, self.slept - 1 if self.asleep and self.handling == 0 else None)
        self.passed(completion := Completion(self, lane, key, lane.ordinal(key)))
        self._signalled = self.last
        return completion.seq

    def timers_change(self, lane: Lane, ordinal: int) -> None:
        if self.last == self._signalled:
            self.passed(Completion(self, lane, SIGNALLED, ordinal))

    def _is_early(self, number: int, frame: FrameType | None) -> bool:
        """Whether the main thread is in the middle of recording something: then the signal is sent once more."""
        owned: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        if self.finished or not (owned or in_recorder(frame)):
            self._early.pop(number, None)
            return False
        self._early[number] += 1
        if self._early[number] > MOST_DEFERRALS:
            del self._early[number]
            return False
        try:
            start_new_thread(_send_again, (number,))
        except RuntimeError:  # there can be no more threads
            return False
        return True

    def give_up(self, completion: Completion) -> None:
        with self.lock:
            if completion.state is State.PASSED:
                return
            if completion.state is State.QUEUED:
                self._queue.remove(completion)
            if completion.state is not State.GRANTED:
                completion.state = State.GONE
            expected = completion in self._expected
            self._expected.discard(completion)
        if expected and not self.detached:
            self._log(completion.lane.path, completion.key, completion.ordinal, UNFIRED)

    def pass_continues(self, watch: LoopWatch) -> None:
        """Recording looks at the beginning of a pass only."""

    def tick(self, look: Look) -> bool:
        with self.lock:
            if not self._queue:
                return False
            self._held_for += min(max(0.0, look.began - max(self._looked, self._held_since)), SPARSE)
            self._looked = look.began
            long = self._held_for > LONGEST_HOLD or look.began - self._held_since > LAST_HOLD
            for party in tuple(self.busy):
                self._spend(party, look.delta.get(party.native, 0))
                if self._asleep(party, look, still=BLOCKED, awake=BLOCKED_ALONE):
                    self.busy.discard(party)
                elif long or self._exhausted(party):
                    self._let_go(party)
            self._advance()
            return bool(self._queue)

    def _enqueue(self, completion: Completion) -> None:
        if not self._queue:
            self._begin_hold()
        if completion.watch is None and asyncio._get_running_loop() is not None:
            self._queue.appendleft(completion)  # it blocks its loop, so nothing of that loop could go first
        else:
            self._queue.append(completion)

    def _next(self) -> Completion | None:
        if not self._queue:
            return None
        self._begin_hold()
        return self._queue.popleft()

    def _peek(self) -> Completion | None:
        return self._queue[0] if self._queue else None

    def _held(self) -> None:
        if not self._queue:
            return
        waiting = self._queue[0].party
        if any(party is not waiting or party.watch is None for party in self.busy):
            self._attend()

    def _begin_hold(self) -> None:
        self._held_since = real.monotonic()
        self._held_for = 0.0
        self._ran = None

    def _keeps_holding(self, party: Party) -> bool:
        if not self._queue:
            return True
        party.passes += 1
        ran = real.thread_time_ns()
        if self._ran is not None:
            self._spend(party, ran - self._ran)
        self._ran = ran
        if party.passes <= MOST_PASSES and not self._exhausted(party):
            return True
        self._let_go(party)
        return False

    def _spend(self, party: Party, nanoseconds: int) -> None:
        beyond = min(nanoseconds, party.ran + nanoseconds - GRACE)
        party.ran += nanoseconds
        if beyond > 0:
            self._spent += beyond

    def _exhausted(self, party: Party) -> bool:
        if party.ran <= GRACE:
            return False
        return self._spent > ALLOWANCE + SHARE * (real.monotonic() - self._began) * 1e9

    def _let_go(self, party: Party) -> None:
        self._strikes += 1
        party.unheld = self._strikes >= MOST_STRIKES
        party.ran = 0
        self.busy.discard(party)
        self._say("something never settles between two completions" if party.unheld else "something was slow to settle")

    def _mark(self, party: Party) -> None:
        if self._strikes < LAST_STRIKE or party.watch is not None:
            super()._mark(party)

    def _settled(self, party: Party) -> None:
        if self._queue and party in self.busy:
            self._strikes = max(0, self._strikes - 1)

    def _may_go_on(self, watch: LoopWatch) -> bool:
        # Code beneath other calls may wait: all that it can do is to arrive, and then it is behind this one.
        return not watch.runs_program(self)

    def _say(self, why: str) -> None:
        note, self._note = self._note, None
        if note is not None:
            note(Note(NoteKind.OBSERVED, f"completions were not always held back: {why}", incomplete=False))
