"""What recording and replaying have in common.

One completion is delivered, and the next one only when everything that it woke has settled.

    arrive      a completion is there
    grant       its turn has come: whoever waits for it is woken, and busy from now on
    settle      a busy party blocks where we can see it, arrives itself, or ends
    woken       a party that had settled was woken by another one: it is busy again

All state is guarded by `lock`, which is re-entrant: a signal handler or a finaliser may come back here.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import os
from threading import RLock, get_ident
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

from otel_agent_replay.boundary.completions import Completion, State, TimerTurn, WaitTurn
from otel_agent_replay.boundary.loops import MOST_CLOSED, LoopWatch, Ready, watched
from otel_agent_replay.boundary.parties import THREADS, UNBORN, Party
from otel_agent_replay.boundary.stall import Look, attend

if TYPE_CHECKING:
    from types import FrameType

    from otel_agent_replay.boundary.completions import Due
    from otel_agent_replay.boundary.lanes import Lane


class Delivery:
    """One run's order of completions. Implements `Order`; the patches of concurrency tell it what they see."""

    replaying: ClassVar[bool] = False
    pace: ClassVar[float] = 0.0
    """Seconds for which the sampler leaves it alone after each progress."""
    slowest: ClassVar[float] = 0.02
    """Seconds between two looks of the sampler, while nothing changes."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.parties: dict[int, Party] = {}
        """By ident of their thread."""
        self.busy: set[Party] = set()
        self.grants = 0
        """Completions granted so far."""
        self.nested = 0
        """Lanes that live beside the one that spawned them."""
        self.top = 0
        """Tasks whose spawner waits for their loop to end."""
        self.finished = False
        """The main lane has ended."""
        self._watches: WeakSet[LoopWatch] = WeakSet()
        self._last: Completion | None = None
        """What was granted last."""
        self.detached = False
        """This is a forked child: nothing is ordered here."""
        self.told = 0.0
        """What the program was last told of an event loop's clock, in seconds."""
        self.last = -1
        """Place of what the main lane saw last."""
        self.slept = 0
        """Sleeps of the main lane since then."""
        self.asleep = False
        """Whether it sleeps."""
        self.handling = 0
        """Handlers of signals that have been called and have not returned."""
        _gates.add(self)

    # -- what a session asks

    @property
    def alone(self) -> bool:
        """Whether a single lane lives, so that nothing could come in another order."""
        return self.nested == 0 and self.top <= 1

    def turn(self, lane: Lane, key: str, ordinal: int) -> Completion:
        """The turn of a completion, to be waited for; granted already where nothing can be ahead of it."""
        raise NotImplementedError

    def event(self, lane: Lane, key: str) -> Completion:
        """The turn of a completion that is no crossing."""
        return self.turn(lane, key, lane.ordinal(key))

    def away(self, lane: Lane, *, blocks: bool) -> None:
        """A call is being performed in `lane`."""
        raise NotImplementedError

    def back(self, lane: Lane, *, blocks: bool) -> None:
        """It has ended."""
        raise NotImplementedError

    def finish(self) -> None:
        """The main lane has ended."""
        raise NotImplementedError

    # -- what is different

    @property
    def holds(self) -> bool:
        """Whether waits have to be seen, because completions are held back until threads settle."""
        raise NotImplementedError

    def now(self) -> float:
        """The clock that timers and timeouts go by, in seconds."""
        raise NotImplementedError

    def place(self, lane: Lane, key: str, ordinal: int) -> Due:
        """Replaying: place of a completion in the recorded order, asked once for each; else FREE."""
        raise NotImplementedError

    def expect(self, completion: Completion) -> None:
        """A timer or a timeout begins: it will come of itself, or be given up."""
        raise NotImplementedError

    def passed(self, completion: Completion) -> None:
        """The program sees a completion now."""
        if completion.lane.parent is None and completion.seq is not None:
            self.last, self.slept = completion.seq, int(self.asleep)

    def falls_asleep(self, sleep: Completion) -> None:
        """The main lane sleeps, until `wakes`. Raises, in a replay, what a signal raised then."""
        self.asleep = True
        self.slept += 1

    def wakes(self) -> None:
        """It sleeps no more."""
        self.asleep = False

    def called(self, lane: Lane, number: int, frame: FrameType | None) -> int | None:
        """The handler of a signal is about to be called in the main thread, which `frame` runs.

        Gives the place of the signal, or None where it is not to be called now.
        """
        raise NotImplementedError

    def handled(self, place: int, *, raised: bool) -> None:
        """It has returned, or `raised`."""

    def timers_change(self, lane: Lane, ordinal: int) -> None:
        """The main thread sets a timer or a handler, for the how-manyth time."""
        raise NotImplementedError

    def expects(self, number: int) -> bool:
        """Whether this signal is sent to the main thread in its recorded places, and in no other."""
        return False

    def give_up(self, completion: Completion) -> None:
        """Nobody waits for it any more."""
        raise NotImplementedError

    def tick(self, look: Look) -> bool:
        """The sampler's look at the threads; False where it need not look again."""
        raise NotImplementedError

    def pass_continues(self, watch: LoopWatch) -> None:
        """A loop has stopped waiting for the world."""
        raise NotImplementedError

    def _enqueue(self, completion: Completion) -> None:
        raise NotImplementedError

    def _next(self) -> Completion | None:
        raise NotImplementedError

    def _peek(self) -> Completion | None:
        """What `_next` is sure to give."""
        raise NotImplementedError

    def _keeps_holding(self, party: Party) -> bool:
        """Whether to go on waiting for a loop that still has something to run."""
        raise NotImplementedError

    def _held(self) -> None:
        """Something was left waiting."""
        raise NotImplementedError

    def _settled(self, party: Party) -> None:
        """A party has settled by itself."""

    def _may_go_on(self, watch: LoopWatch) -> bool:
        """Whether a completion that arrives in a loop may go on to the program at once."""
        return watch.ready(self) is Ready.NOTHING

    # -- lanes

    def spawned(self, *, top: bool = False) -> None:
        """A lane was spawned; `top` where its spawner will wait for it, not running beside it."""
        with self.lock:
            if top:
                self.top += 1
            else:
                self.nested += 1

    def ended(self, *, top: bool = False) -> None:
        """A spawned lane ended."""
        with self.lock:
            if top:
                self.top -= 1
            else:
                self.nested -= 1
            self._retire()

    def _retire(self) -> None:
        """The last lane has ended: loops and threads have nothing to do with this run any more."""
        if self.finished and self.nested <= 0 and self.top <= 0:
            for watch in list(self._watches):
                watch.leave(self)
            for party in list(self.parties.values()):
                self.leave(party)

    # -- parties

    def here(self, lane: Lane) -> Party:
        """The calling thread; busy, where it was not known."""
        party = self.parties.get(get_ident())
        if party is None:
            party = Party(self)
            party.lane = lane
            self.enter(party)
        return party

    def enter(self, party: Party) -> None:
        """The calling thread takes part from now on, as `party`."""
        party.born()
        with self.lock:
            self.parties[party.ident] = party
            self._mark(party)
        THREADS[party.ident] = party

    def leave(self, party: Party) -> None:
        """A thread takes part no longer."""
        with self.lock:
            if self.parties.get(party.ident) is party:
                del self.parties[party.ident]
        if THREADS.get(party.ident) is party:
            del THREADS[party.ident]
        self.settle(party)

    def meet(self, loop: asyncio.AbstractEventLoop) -> LoopWatch:
        """Code of this run is in a loop. Called in its thread, or before it runs."""
        watch = watched(loop)
        if self.holds and self not in watch.gates:
            watch.join(self)
            self._watches.add(watch)
        if asyncio._get_running_loop() is loop:
            watch.started()
        return watch

    def settle(self, party: Party) -> None:
        """A party blocks, or has ended: whoever is next may go on."""
        with self.lock:
            party.quiet = True
            self._settled(party)
            self.busy.discard(party)
            self._advance()

    def woken(self, party: Party) -> None:
        """A party was woken, or goes on."""
        with self.lock:
            party.quiet = False
            self._mark(party)

    # -- the gate

    def arrive(self, completion: Completion) -> bool:
        """A completion is there, in the calling thread: True where the program may see it at once."""
        party, watch = completion.party, completion.watch
        assert party is not None
        with self.lock:
            completion.arriving = True
            if watch is None:
                party.quiet = True
                self._settled(party)
                self.busy.discard(party)
            elif party.unheld or not watch.sees or (not watch.inbound and self._may_go_on(watch)):
                party.watch = watch
                self.busy.discard(party)
            else:
                party.watch = watch
                self._mark(party)
            completion.state = State.QUEUED
            self._enqueue(completion)
            granted = self.grants
            self._advance()
            completion.arriving = False
            if completion.state is not State.GRANTED:
                return False
            if isinstance(completion, TimerTurn) and completion.wake is not None and self.grants > granted + 1:
                completion.wake()  # behind the timers for the same moment that were granted with it
                return False
            return True

    def pass_begins(self, watch: LoopWatch) -> bool:
        """A loop is about to wait for the world, unless something is ready: whether it should rather not."""
        party = self.parties.get(watch.ident)
        if party is None or (party not in self.busy and (party.quiet or not self.replaying)):
            return False
        with self.lock:
            party.watch = watch
            if watch.inbound:
                return True
            ready = watch.ready(self) if watch.sees else Ready.NOTHING
            if ready is Ready.BENEATH and watch.closed < MOST_CLOSED:
                return True  # what has come in already is through first
            if ready is not Ready.PROGRAM:
                self._settled(party)
            elif self._keeps_holding(party):
                return True
            party.quiet = ready is Ready.NOTHING
            self.busy.discard(party)
            self._advance()
            return party in self.busy

    def _advance(self) -> None:
        while not self.busy or self._together():
            completion = self._next()
            if completion is None:
                break
            self._grant(completion)
        self._held()

    def _together(self) -> bool:
        """Timers of one loop for one moment fire in one pass, as they do in any loop: nested timeouts need it."""
        last, coming = self._last, self._peek()
        if not isinstance(last, TimerTurn) or not isinstance(coming, TimerTurn) or last.when != coming.when:
            return False
        return last.watch is coming.watch and all(party.watch is last.watch for party in self.busy)

    def _grant(self, completion: Completion) -> None:
        completion.state = State.GRANTED
        self._last = completion
        self.grants += 1
        watch = completion.watch
        party = completion.party if watch is None else self.parties.get(watch.ident)
        if party is not None and (watch is None or watch.running):
            self._mark(party)
        wake = completion.wake
        if not completion.arriving and wake is not None:
            wake()

    def _mark(self, party: Party) -> None:
        if party.unheld or not self.holds:
            return
        party.quiet = False
        party.since = Look.latest
        if party not in self.busy:
            party.passes = party.ran = 0
            self.busy.add(party)
            watch = party.watch
            if watch is not None and watch.running and not watch.sees and asyncio._get_running_loop() is watch.loop:
                watch.probe(self)

    def _attend(self) -> None:
        attend(self)

    @staticmethod
    def _asleep(party: Party, look: Look, *, still: int, awake: int) -> bool:
        """Whether a busy party is blocked, by looks that began after it was woken.

        Args:
            party: who may be blocked.
            look: the last of the looks.
            still: looks in which it must have been asleep, while nothing else in the process ran.
            awake: the same while other threads ran; an unborn party has no thread that could be asleep.
        """
        seen = look.number - party.since
        if min(look.still, seen) >= still:
            return True
        return party.ident != UNBORN and min(look.asleep(party.native), seen) >= awake

    def fork(self) -> None:
        """This is a forked child: threads and loops of the parent are not here."""
        self.lock = RLock()
        self.parties.clear()
        self.busy.clear()
        self.detached = True


_gates: WeakSet[Delivery] = WeakSet()


def _forked() -> None:
    THREADS.clear()
    for gate in list(_gates):
        gate.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

__all__ = ["Completion", "Delivery", "State", "TimerTurn", "WaitTurn"]
