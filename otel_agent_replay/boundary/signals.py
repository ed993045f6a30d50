"""Signals that the program handles: the call of a handler has a place in the order of what the program sees.

Recording, it takes the next number when it is called, and its key says whether the main thread was asleep. Replaying,
the signal is sent to the main thread again once its place has come: when the thread blocks, or comes to something that
is later in the order. A sleep takes no time in a replay, so a signal that came in one is raised in the same sleep,
counted since the last completion of the main lane.
"""

# ruff: noqa: SLF001 (a lock tells only so whether this thread holds it)

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass
from functools import partial
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Final

from otel_agent_replay.boundary.completions import Completion, State
from otel_agent_replay.boundary.handlers import UNPLACED
from otel_agent_replay.boundary.lanes import ROOT
from otel_agent_replay.boundary.stall import Look

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from otel_agent_replay.boundary.completions import Due
    from otel_agent_replay.boundary.interruption import Interruption
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.regate import ReplayGate
    from otel_agent_replay.recording.values import OrderEvent

PREFIX: Final = "signal:"
"""Keys of such completions begin so."""
RAISED: Final = "signal:raised"
"""Key of what has no place of its own: the handler of the signal in the place that stands for its ordinal raised, and
not into a call."""
send: Final = signal.pthread_kill
"""The real one; a patch stands before it later."""
UNNOTICED: Final = 5
"""Looks of the sampler after which a signal is sent again."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A recorded call of a handler."""

    place: int
    number: int
    """Of the signal, on this machine."""
    slept: int | None
    """In which sleep it came, counted from 0 since `after`; None where the main thread was not asleep."""
    after: int
    """The last place of the main lane before it; -1 for none."""
    inside: bool = False
    """Its handler raised into a call, so it is to come there."""
    outside: bool = False
    """Its handler raised into no call, so it is to come before the next one."""


def key_of(number: int, slept: int | None) -> str:
    """The key of such a completion."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # one of the real-time signals between the first and the last
        name = str(number)
    return f"{PREFIX}{name}" if slept is None else f"{PREFIX}{name}:{slept}"


def arrivals(
    events: Iterable[OrderEvent], places: Iterable[int], inside: Container[int] = frozenset()
) -> list[Arrival]:
    """The signals of a run, in order, from its order events and the places of its main lane's crossings.

    Those in the places `inside` came into calls.
    """
    main = [event for event in events if event.lane == ROOT]
    outside = {event.ordinal for event in main if event.key == RAISED}
    taken = sorted({*places, *(event.seq for event in main)})
    found = []
    for event in sorted(main, key=lambda event: event.seq):
        name, _, slept = event.key.removeprefix(PREFIX).partition(":")
        number = _number(name) if event.key.startswith(PREFIX) else None
        if number is not None and event.seq >= 0 and (slept.isdecimal() or not slept):
            after = max((place for place in taken if place < event.seq), default=-1)
            within = event.seq in inside
            found.append(
                Arrival(
                    event.seq,
                    number,
                    int(slept) if slept else None,
                    after,
                    inside=within,
                    outside=event.seq in outside and not within,
                )
            )
    return found


def _number(name: str) -> int | None:
    """A signal by its name; None for one that this machine has not."""
    if name.isdecimal():
        return int(name) if int(name) in signal.valid_signals() else None
    found = getattr(signal, name, None)
    return int(found) if isinstance(found, signal.Signals) else None


class SignalTurn(Completion):
    """The call of a handler, in a replay: waits for its place from the beginning, or from its sleep on."""

    __slots__ = ("held", "look", "number", "outside", "sent", "signal")

    def __init__(self, gate: ReplayGate, lane: Lane, arrival: Arrival) -> None:
        place: Due = arrival.place
        super().__init__(gate, lane, key_of(arrival.number, arrival.slept), 0, place)
        self.number = arrival.number
        self.signal = arrival.place
        self.outside = arrival.outside
        self.held = arrival.inside
        """It is to come into a call that the thread has not come to."""
        self.sent = self.look = 0
        """How often it was sent, and the sampler's latest look when it was sent last."""


class Interruptions:
    """The signals of a replayed run."""

    def __init__(self, gate: ReplayGate) -> None:
        self._gate = gate
        self.numbers: frozenset[int] = frozenset()
        """Those that were handled in the recording."""
        self._asleep: list[Arrival] = []
        """Those that came in sleeps, and are still to come."""
        self._waiting: list[SignalTurn] = []
        """Those that came at other times, and are still to come."""
        self._due: deque[SignalTurn] = deque()
        """Their place has come; to be sent at the sampler's next look."""
        self._sent: list[SignalTurn] = []
        """Sent; their handlers have not been called yet."""
        self._raised: Arrival | None = None
        """Raised in a sleep just now."""
        self._echoes: set[int] = set()
        """Numbers of signals that may come once more, for they were sent again just as they were noticed."""
        self._sending = RLock()
        """Whether a signal has been noticed, and whether to send it again, is settled by one thread at a time."""
        self._left: set[int] = set()
        """Places of those whose handlers have not ended."""
        self._broken: dict[int, Interruption] = {}
        """Calls that wait for them, by place."""

    def begin(self, lane: Lane, expected: Sequence[Arrival]) -> list[SignalTurn]:
        """The main thread begins to run the program: the turns that wait from now on."""
        self.numbers = frozenset(arrival.number for arrival in expected)
        self._left = {arrival.place for arrival in expected}
        self._asleep = [arrival for arrival in expected if arrival.slept is not None]
        party = self._gate.here(lane) if expected else None
        turns = [SignalTurn(self._gate, lane, arrival) for arrival in expected if arrival.slept is None]
        for turn in turns:
            turn.party, turn.state = party, State.QUEUED
            turn.wake = partial(self._comes_due, turn)
        self._waiting = list(turns)
        return turns

    def _comes_due(self, turn: SignalTurn) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        self._due.append(turn)

    @property
    def waiting(self) -> bool:
        """Whether any is under way."""
        return bool(self._due or self._sent)

    @property
    def under_way(self) -> SignalTurn | None:
        """The first of those."""
        return next(iter((*self._sent, *self._due)), None)

    def comes_into(self, place: int) -> None:
        """The thread has come to the call into which the handler of this signal raised. The gate's lock is held."""
        for turn in self._waiting:
            if turn.signal == place:
                turn.held = False

    def await_(self, broken: Interruption) -> bool:
        """A call waits for the handler of a signal to raise; False where it will not. The gate's lock is held."""
        if broken.signal not in self._left:
            return False
        self._broken[broken.signal] = broken
        self.comes_into(broken.signal)
        return True

    def ended(self, place: int, *, raised: bool) -> Interruption | None:
        """A handler has ended, or is not to be called. Gives the call that waits for it in vain."""
        self._left.discard(place)
        broken = self._broken.pop(place, None)
        if broken is None or (raised and broken.party is not None and broken.party.ident == get_ident()):
            return None
        return broken

    def send(self) -> None:
        """Send what is due. Never with the gate's lock held: the main thread may want it.

        What has not been noticed is sent again, for a thread that is just about to block does not notice.
        """
        while self._due:
            turn = self._due[0]
            handled = callable(signal.getsignal(turn.number))
            if handled:
                self._sent.append(turn)
            self._due.popleft()
            if not handled:  # the program handles it no more
                self._gate.passed(turn)
                self._gate.handled(turn.seq or 0, raised=False)
        for turn in tuple(self._sent):
            assert turn.party is not None
            turn.party.since = Look.latest  # it is not blocked
            with self._sending:
                if turn in self._sent and (turn.sent == 0 or Look.latest - turn.look >= UNNOTICED):
                    turn.sent, turn.look = turn.sent + 1, Look.latest
                    send(turn.party.ident, turn.number)

    def called(self, number: int) -> int | None:
        """A handler is about to be called, in the main thread: its place, or None where it is not called now."""
        with self._sending:
            turn = next((turn for turn in self._sent if turn.number == number), None)
            if turn is not None:
                self._sent.remove(turn)
                if self._gate.lock._is_owned():  # type: ignore[attr-defined]  # it may raise, and leave things half done
                    turn.sent = 0
                    self._due.append(turn)
                    return None
                if turn.sent > 1:
                    self._echoes.add(number)
        if turn is not None:
            self._gate.passed(turn)
            assert turn.party is not None
            self._gate.woken(turn.party)
            return turn.seq
        raised, self._raised = self._raised, None
        if raised is not None and raised.number == number:
            return raised.place
        if number in self._echoes:
            self._echoes.discard(number)
            return None
        return self._came_by_itself(number)

    def went_on(self) -> None:
        """The main lane has come to something else: a signal that was sent twice has come, or never will."""
        self._echoes.clear()

    def _came_by_itself(self, number: int) -> int:
        """The program has sent it to itself, as it did in the recording: it will not be sent once more."""
        early = next((arrival for arrival in self._asleep if arrival.number == number), None)
        turn = next((turn for turn in self._waiting if turn.number == number), None)
        if early is not None and (turn is None or not isinstance(turn.place, int) or early.place < turn.place):
            self._asleep.remove(early)
            return early.place
        if turn is not None:
            self._waiting.remove(turn)
            self._gate.give_up(turn)
        return turn.place if turn is not None and isinstance(turn.place, int) else UNPLACED

    def in_sleep(self, sleep: Completion) -> None:
        """The main thread sleeps: raise what came in this sleep. Raises what the handlers raise."""
        while (arrival := self._comes(sleep)) is not None:
            self._asleep.remove(arrival)
            if isinstance(sleep.place, int) and sleep.place < arrival.place:
                sleep.wait()
            SignalTurn(self._gate, sleep.lane, arrival).wait()
            self._raised = arrival
            signal.raise_signal(arrival.number)

    def _comes(self, sleep: Completion) -> Arrival | None:
        """What came in this sleep next, or is overdue; None for nothing."""
        reached, slept = self._gate.last, self._gate.slept
        ends = sleep.place if isinstance(sleep.place, int) else reached
        for arrival in self._asleep:
            if arrival.place < max(reached, ends):
                return arrival
            if reached < ends:  # a sleep that nobody can come before is numbered as it begins
                reached, slept = ends, 1
            if arrival.after <= reached and arrival.slept == slept - 1:
                return arrival
        return None
