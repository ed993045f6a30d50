"""Replaying the order: each completion is delivered in its recorded place.

That is, once what the previous one woke has settled. Nothing here waits for time to pass.

What the recording does not know is delivered as soon as everything has settled, ahead of what is recorded:
its lane is on its way to a recorded place. An unknown timeout comes last, when nothing else can progress.
A recorded place that nobody asks for is skipped once nothing in the process can run any more.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextlib import suppress
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar

from otel_agent_replay.boundary import lanes, real, stall
from otel_agent_replay.boundary.completions import FREE, NEVER, SIGNALLED, SLEEP, Completion, Due, State
from otel_agent_replay.boundary.delivery import Delivery
from otel_agent_replay.boundary.interruption import Interruption
from otel_agent_replay.boundary.signals import Interruptions, SignalTurn
from otel_agent_replay.boundary.stall import Look
from otel_agent_replay.boundary.stuck import incomplete
from otel_agent_replay.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.loops import LoopWatch
    from otel_agent_replay.boundary.parties import Party
    from otel_agent_replay.boundary.signals import Arrival
    from otel_agent_replay.recording.divergence import Divergence

MOST_PASSES = 100
"""Passes of a loop that never idles, after which it counts as settled; after the first time, a tenth."""
MOST_FIRINGS = 10_000
"""Unknown timers or sleeps in a row without any recorded progress, before the program counts as stuck."""
BLOCKED = 4
"""Looks in which a thread must have been asleep to count as blocked, while the whole process was."""
BLOCKED_ALONE = 40
"""The same while other threads run."""
LONGEST_RUN = 2_000_000_000
"""Nanoseconds for which a thread may run without settling, before the others go on without it."""
SURE = 10
"""Looks in which nothing in the process ran, before a recorded place is skipped."""
PATIENCE = 0.05
"""Seconds without progress before a place is skipped, where something may still come from outside."""
LAST_PATIENCE = 2.0
"""Seconds without progress before the program counts as stuck, where something may still come from outside."""


def _nothing() -> None:
    """Nothing to do."""


class _ReturnedError(Exception):
    """A handler has returned, so what it came into goes on."""


def _never() -> bool:
    return False


class ReplayGate(Delivery):
    """The order of one replayed run.

    Args:
        due: the recorded place of a completion: a number from 0, NEVER (or a negative number) where it was
            recorded and never completed, FREE where the recording does not know it. Asked once for each.
        stuck: called once nothing can progress any more, after the waiting lanes were woken.
        diverge: makes the error that those lanes raise, from the divergence; the session keeps it there.
        departed: whether a divergence has been raised already.
        absent: whether a place can never be asked for in this replay, such as one inside a call that is
            answered as a whole; it is skipped at once.
    """

    replaying: ClassVar[bool] = True
    pace: ClassVar[float] = 0.001

    def __init__(
        self,
        due: Callable[[Lane, str, int], Due],
        stuck: Callable[[], object] = _nothing,
        diverge: Callable[[Divergence], BaseException] = DivergenceError,
        departed: Callable[[], bool] = _never,
        absent: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__()
        self.due = due
        self.stuck = stuck
        self.diverge = diverge
        self.departed = departed
        self.absent = absent
        self.skipped: list[int] = []
        """Recorded places that nobody asked for."""
        self._place = 0
        self._waiting: dict[int, Completion] = {}
        self._left: set[int] = set()
        self._free: deque[Completion] = deque()
        self._deadlines: list[tuple[float, int, Completion]] = []
        self._parked: set[Completion] = set()
        self._woken: set[Completion] = set()
        """Granted in a loop that has not run them yet."""
        self._performing: set[Lane] = set()
        self._serial = count()
        self._firings = 0
        self._sleeps = 0
        """Sleeps in a row that the recording does not know."""
        self._ended = False
        self._progress = (0, 0.0)
        self._now = real.monotonic()
        self._stirred = 0
        """Number of the sampler's latest look when a thread of the program was last seen here."""
        self._interruptions = Interruptions(self)
        self._killed = False
        self._settled_at = 0.0
        """Since when nothing has run; 0.0 where something does. Time in which a thread waits for the processor
        is none in which the world was waited for."""

    # -- what a session and the patches ask

    def turn(self, lane: Lane, key: str, ordinal: int) -> Completion:
        completion = Completion(self, lane, key, ordinal, self.place(lane, key, ordinal))
        place = completion.place
        if self.detached:
            completion.state = State.PASSED
        elif self.alone and place is not NEVER and not (self._waiting or self._free or self._interruptions.waiting):
            if isinstance(place, int) and place >= self._place:
                self._place = place + 1
            self.passed(completion)
        return completion

    @property
    def holds(self) -> bool:
        return True

    def now(self) -> float:
        return self._now

    def place(self, lane: Lane, key: str, ordinal: int) -> Due:
        place = self.due(lane, key, ordinal)
        return NEVER if isinstance(place, int) and place < 0 else place

    def away(self, lane: Lane, *, blocks: bool) -> None:
        if lane.beneath is None:
            return
        with self.lock:
            self._performing.add(lane)
        if blocks:
            self.settle(self.here(lane))

    def back(self, lane: Lane, *, blocks: bool) -> None:
        if lane.beneath is None:
            return
        with self.lock:  # at once: else nothing would be left to wait for, in between
            self._performing.discard(lane)
            self._stirred = Look.latest
            if blocks:
                self.woken(self.here(lane))

    def begin(self, lane: Lane, signals: Sequence[Arrival], *, killed: bool) -> None:
        """The program begins, in the main thread, which is in this lane.

        Args:
            lane: the main lane.
            signals: will be sent to the thread.
            killed: the recorded program may have waited for what never came, so this one may, too.
        """
        with self.lock:
            self._killed = killed
            if killed:
                self.here(lane)
            for turn in self._interruptions.begin(lane, signals):
                self._enqueue(turn)
            self._held()

    def called(self, lane: Lane, number: int, frame: FrameType | None) -> int | None:
        return self._interruptions.called(number)

    def handled(self, place: int, *, raised: bool) -> None:
        with self.lock:
            broken = self._interruptions.ended(place, raised=raised)
            if broken is not None and broken.state is State.QUEUED:
                self._parked.discard(broken)
                broken.fails()
                self._grant(broken)

    def timers_change(self, lane: Lane, ordinal: int) -> None:
        if self.place(lane, SIGNALLED, ordinal) is not FREE:
            self.turn(lane, SIGNALLED, ordinal).wait()

    def let_come(self, lane: Lane, *, outside: bool = False) -> None:
        """The main thread has come to what was not recorded: if a signal is next, the handler is called first.

        It may have been called in the middle of something that asks the world for nothing. Raises what it raises.

        Args:
            lane: what the main thread runs.
            outside: the thread has come to a call, so only where the handler raised into none.
        """
        if get_ident() != lanes.root_thread() or asyncio._get_running_loop() is not None:
            return
        while True:
            with self.lock:
                coming = self._interruptions.under_way or self._waiting.get(self._place)
            if not isinstance(coming, SignalTurn) or coming.held or (outside and not coming.outside):
                return
            turn = self.interruption(lane, coming.signal, None, _ReturnedError)
            if turn is None:
                return
            with suppress(_ReturnedError):
                turn.wait()

    def interruption(
        self, lane: Lane, place: int, error: BaseException | None, unbroken: Callable[[], BaseException]
    ) -> Interruption | None:
        """What a call waits for that the signal in this place ended; None where no signals are sent here."""
        if self.detached or not self._interruptions.numbers:
            return None
        return Interruption(self, lane, place, error, unbroken)

    def comes_into(self, places: Iterable[int]) -> None:
        """The main thread is in the call into which the handlers of these signals raised."""
        with self.lock:
            for place in places:
                self._interruptions.comes_into(place)

    def expects(self, number: int) -> bool:
        return number in self._interruptions.numbers

    def falls_asleep(self, sleep: Completion) -> None:
        super().falls_asleep(sleep)
        self._interruptions.in_sleep(sleep)

    def finish(self) -> None:
        """The main lane has ended: threads that wait for what never came, and would keep the process, end."""
        with self.lock:
            self.finished = True
            for completion in tuple(self._waiting.values()):
                if isinstance(completion, SignalTurn):
                    self.give_up(completion)
            for completion in tuple(self._parked):
                self._release(completion)
            self._retire()

    def expect(self, completion: Completion) -> None:
        with self.lock:
            completion.state = State.QUEUED
            self._enqueue(completion)
            self._held()

    def passed(self, completion: Completion) -> None:
        completion.state = State.PASSED
        self._woken.discard(completion)
        if completion.lane.parent is None and not isinstance(completion, SignalTurn):
            self._interruptions.went_on()
        if completion.place is not FREE:
            completion.seq = completion.place if isinstance(completion.place, int) else None
        super().passed(completion)
        if completion.place is not FREE:
            self._sleeps = 0
        elif completion.key == SLEEP:
            self._sleeps += 1
            if self._sleeps > MOST_FIRINGS:
                self._sleeps_on()
        if completion.due is not None:
            ahead = completion.due - self._now
            if ahead > 0:
                self._now = completion.due
                completion.lane.session.slept(completion.lane, ahead)

    def _sleeps_on(self) -> None:
        """The program sleeps and sleeps: a signal may end that, else it is stuck."""
        with self.lock:
            self._sleeps = 0
            if self._waiting and self._leap():
                return
        self._stop()

    def give_up(self, completion: Completion) -> None:
        with self.lock:
            self._woken.discard(completion)
            if completion.state >= State.GRANTED:
                return
            place = completion.place
            if isinstance(place, int):
                if self._waiting.get(place) is completion:
                    del self._waiting[place]
                self._left.add(place)
            self._parked.discard(completion)
            completion.state = State.GONE

    # -- the order

    def _enqueue(self, completion: Completion) -> None:
        place = completion.place
        if self._ended:
            self._fail(completion)
        elif isinstance(completion, Interruption) and not self._interruptions.await_(completion):
            completion.fails()
            self._grant(completion)
        elif place is NEVER:
            if completion.state is State.QUEUED and not completion.last_resort:
                self._parked.add(completion)
                if self.finished:
                    self._release(completion)
        elif place is FREE:
            if completion.last_resort:
                heapq.heappush(self._deadlines, (completion.due or 0.0, next(self._serial), completion))
            else:
                self._free.append(completion)
        elif not isinstance(place, int) or place < self._place or place in self._waiting:
            self._free.append(completion)
        else:
            self._waiting[place] = completion

    def _next(self) -> Completion | None:
        if self._interruptions.waiting:
            return None
        coming = self._waiting.get(self._place)
        held = isinstance(coming, SignalTurn) and coming.held
        if isinstance(coming, SignalTurn) and not held and coming.party is not None and coming.party.quiet:
            del self._waiting[self._place]
            self._take()
            return coming  # ahead of what is new, too: the thread may be in a loop that ends by the signal
        while self._free:
            completion = self._free.popleft()
            if completion.state is State.QUEUED:
                self._firings += completion.key.startswith("clock:")
                return completion
        blocking = self._blocking()
        if blocking is not None:
            return blocking
        if held:
            return None
        while True:
            completion_ = self._waiting.pop(self._place, None)
            if completion_ is not None:
                self._take()
                return completion_
            if self._place in self._left:
                self._left.discard(self._place)
            elif self.absent is None or not self.absent(self._place):
                return self._next() if self._certain() and self._leap() else None
            self._place += 1

    def _take(self) -> None:
        self._place += 1
        self._firings = 0

    def _peek(self) -> Completion | None:
        return None if self._free else self._waiting.get(self._place)

    def _blocking(self) -> Completion | None:
        """A call that blocks its loop: what waits in that loop cannot come before it."""
        for place, completion in self._waiting.items():
            watch = completion.party.watch if completion.party is not None else None
            if completion.watch is not None or watch is None or not watch.running:
                continue
            if isinstance(completion, SignalTurn):
                continue
            if place - self._place > len(self._waiting) + len(self._left):
                continue
            before = (self._waiting.get(earlier) for earlier in range(self._place, place) if earlier not in self._left)
            if all(other is not None and other.watch is watch for other in before):
                del self._waiting[place]
                self._left.add(place)
                return completion
        return None

    def _certain(self) -> bool:
        """Whether a single thread is all there is, and waits, so that what it does not ask for now never comes."""
        asked = any(not isinstance(completion, SignalTurn) for completion in self._waiting.values())
        return asked and self._quiet() and stall.threads() == 1 and not self._open_to_world()

    def _quiet(self) -> bool:
        inner = sum(completion.lane in self._performing for completion in self._all())
        return inner >= len(self._performing) and all(party.quiet for party in self.parties.values())

    def _all(self) -> list[Completion]:
        return [*self._waiting.values(), *self._parked, *self._free]

    def _open_to_world(self) -> bool:
        watches = {party.watch for party in self.parties.values() if party.watch is not None and party.watch.running}
        return any(watch.awaits_world() for watch in watches)

    def _leap(self) -> bool:
        """Nothing can come by itself: skip to the next place that is asked for, or let a timeout come."""
        if self._waiting:
            place = min(self._waiting)
            coming = self._waiting[place]
            if isinstance(coming, SignalTurn):
                coming.held = False  # the thread does not come to the call that it came into
            self.skipped.extend(place for place in range(self._place, place) if place not in self._left)
            self._place = place
            return True
        while self._deadlines and self._firings <= MOST_FIRINGS:
            _, _, completion = heapq.heappop(self._deadlines)
            if completion.state is State.QUEUED:
                self._firings += 1
                self._free.append(completion)
                return True
        return False

    def _grant(self, completion: Completion) -> None:
        if completion.watch is not None:
            self._woken.add(completion)
        super()._grant(completion)

    def _held(self) -> None:
        if self._attends():
            self._attend()

    def _attends(self) -> bool:
        return self._holds_any() or self._killed or self.departed()

    def _holds_any(self) -> bool:
        held = self._woken or self._waiting or self._free or self._parked or self._deadlines
        return bool(held or self._interruptions.waiting)

    # -- settling

    def pass_continues(self, watch: LoopWatch) -> None:
        party = self.parties.get(watch.ident)
        if party is not None:
            party.watch = watch
            party.quiet = False
            party.since = self._stirred = Look.latest
            self.busy.add(party)

    def _keeps_holding(self, party: Party) -> bool:
        if self._place not in self._waiting and not self._free:
            return True
        party.passes += 1
        if party.passes <= (MOST_PASSES // 10 if party.strikes else MOST_PASSES):
            return True
        party.passes = 0
        party.strikes += 1
        return False

    def _settled(self, party: Party) -> None:
        party.strikes = 0
        self._stirred = Look.latest

    def _mark(self, party: Party) -> None:
        self._stirred = Look.latest
        super()._mark(party)

    def tick(self, look: Look) -> bool:
        self._interruptions.send()
        with self.lock:
            if self._ended or not self._attends():
                return False
            if self._progress[0] != self.grants or not self._progress[1]:
                self._progress = (self.grants, real.monotonic())
            for party in tuple(self.busy):
                party.ran += look.delta.get(party.native, 0)
                if party.ran > LONGEST_RUN or self._blocked(party, look):
                    self.busy.discard(party)
                    party.quiet = True
            if self.busy:
                self._settled_at = 0.0
                return True
            self._advance()
            if self.busy or not self._settled_for_good(look):
                return True
            if self._woken:
                for completion in tuple(self._woken):
                    wake = completion.wake
                    if wake is not None:
                        wake()  # nothing runs, so its loop was woken and did not notice
                return True
            if self._leap():
                self._advance()
                return True
            stuck = self._is_stuck()
        if stuck:
            self._stop()
        return True

    def _blocked(self, party: Party, look: Look) -> bool:
        still = SURE if isinstance(self._peek(), SignalTurn) else BLOCKED  # it may be raised, where it does not belong
        blocked = self._asleep(party, look, still=still, awake=BLOCKED_ALONE)
        return blocked and not stall.in_debugger(party.ident)

    def _settled_for_good(self, look: Look) -> bool:
        seen = look.number - self._stirred
        asleep = min((look.asleep(party.native) for party in self.parties.values()), default=BLOCKED_ALONE)
        if not self._quiet() or (min(look.still, seen) < SURE and min(asleep, seen) < BLOCKED_ALONE):
            self._settled_at = 0.0
            return False
        if any(stall.in_debugger(ident) for ident in tuple(self.parties)):
            return False
        # By when looks began, not by when this thread came to judge them: meanwhile the world may have answered.
        self._settled_at = self._settled_at or look.began
        patience = PATIENCE if self._open_to_world() else 0.0
        coming = self._waiting.get(self._place)
        held = isinstance(coming, SignalTurn) and coming.held
        if (coming is None or held) and all(isinstance(each, SignalTurn) for each in self._waiting.values()):
            patience = LAST_PATIENCE if self._waiting else patience
        if not self._waiting and not self._deadlines:
            # A divergence may have ended, in a task or thread, what the others wait for.
            patience = LAST_PATIENCE if patience or not self._holds_any() else PATIENCE
        return look.began - max(self._progress[1], self._settled_at) >= patience

    # -- the end

    def _is_stuck(self) -> bool:
        return not self.finished and bool(self._parked or self._killed or self.departed())

    def _stop(self) -> None:
        with self.lock:
            if self._ended:
                return
            self._ended = True
            self._error = self.diverge(incomplete(self._all(), self.parties.values(), self.skipped))
            for completion in self._all():
                self._fail(completion)
            self._waiting.clear()
            self._parked.clear()
            self._free.clear()
        self.stuck()

    def _fail(self, completion: Completion) -> None:
        completion.error = self._error
        self._grant(completion)

    def _release(self, completion: Completion) -> None:
        party = completion.party
        if party is not None and not party.daemon:
            self._parked.discard(completion)
            completion.error = SystemExit(0)
            self._grant(completion)
