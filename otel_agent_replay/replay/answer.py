"""Replay: answer every call from a recording, perform none."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from otel_agent_replay.boundary.callers import AGENT, caller, frames, kind_of
from otel_agent_replay.boundary.lanes import Lane, child_path
from otel_agent_replay.boundary.order import FREE, NEVER
from otel_agent_replay.boundary.session import captured, was_cancelled
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording import canonical, codec, exact
from otel_agent_replay.recording.divergence import Difference, Divergence, DivergenceClass, Position
from otel_agent_replay.recording.values import Attempt, CrossingRecord, End, Ended, Note, Raised, Returned
from otel_agent_replay.recording.variables import Bindings
from otel_agent_replay.replay.exchange import ReplayedExchange
from otel_agent_replay.replay.lanes import LaneMap
from otel_agent_replay.replay.matching import Matcher
from otel_agent_replay.replay.readings import Readings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from otel_agent_replay.boundary.draws import Draws
    from otel_agent_replay.boundary.order import Due, ReplayGate
    from otel_agent_replay.boundary.session import Call, Turn
    from otel_agent_replay.recording.values import Attribute, Json, Outcome, Recording, WireRequest
    from otel_agent_replay.replay.elsewhere import Elsewhere
    from otel_agent_replay.replay.transcript import TranscribedCrossing, Transcript

T = TypeVar("T")

PLACEHOLDER = "sk-replay-00000000000000000000000000000000"
"""What a program gets for a credential that only the recording machine had; clients accept its shape."""

MOST_CALLS = 2000
"""With more calls than this, only what happened in a call's own lane is told from the rest beforehand."""

MOST_DIVERGENCES = 1000
"""A program that swallows this many divergences is in a loop without end: it is stopped."""

RERUN = "The question has changed: rerun it against the model, or give the program as it was."


@dataclass(frozen=True, slots=True)
class Pinned:
    """A call that was answered by its place though it asked something else."""

    divergence: Divergence
    site: str
    """File and line of the program's own code that asked; empty where none is near."""
    recorded: str = ""
    """What was asked when it was recorded, as text …"""
    asked: str = ""
    """… and what is asked now."""


class ReplaySession:
    """One run, being answered from its recording.

    Args:
        recording: the run.
        gate: makes the order of a session, from what `place`, `diverge`, `departed` and `absent` tell.
        stop: called where the program cannot or will not end by itself; it need not come back.
        pins: a call that asks something else than was recorded is answered by its place all the same.
    """

    replaying = True

    def __init__(
        self,
        recording: Recording,
        gate: Callable[[ReplaySession], ReplayGate],
        stop: Callable[[], None] = lambda: None,
        *,
        pins: bool = False,
    ) -> None:
        self.recording = recording
        self.world = recording.run.world
        self.captured = captured(self.world)
        self.trace_id = recording.run.trace_id
        self.root = Lane(self)
        lanes = {record.position.lane for record in recording.crossings}
        lanes.update(reading.lane for reading in recording.readings)
        lanes.update(event.lane for event in recording.order)
        self.lanes = LaneMap(lanes - {""})
        self.matcher = Matcher(recording.crossings)
        self.readings = Readings(recording)
        self.bound = Bindings()
        self.divergences: list[Divergence] = []
        self.pins = pins
        self.pinned: list[Pinned] = []
        self.moved: list[tuple[Position, str]] = []
        """Crossings found in another lane of the same name: where asked, and the recorded lane."""
        self.changed: dict[str, str] = {}
        """Files, by path, that the disk has otherwise than the recording, which answers: what they are called."""
        self.unrecorded: list[Position] = []
        """Calls that the recording does not know, answered with what the program itself had made before."""
        self.notes: list[Note] = []
        self.declared: dict[str, Json] = {}
        self.answered = 0
        self.watch: Callable[[Position], None] | None = None
        """Told of each crossing that is about to be made."""
        self.elsewhere: Elsewhere | None = None
        """Told of what is answered in forked children."""
        self.transcript: Transcript | None = None
        """What this replay is recorded as."""
        self.strict = False
        """Whether a reading that was not recorded is a divergence."""
        self._stop = stop
        self._lock = threading.RLock()  # a finaliser may come back here
        self._events = {(event.lane, event.key, event.ordinal): event.seq for event in recording.order}
        self._due: dict[tuple[str, str, int], Due] = {}
        self._inside = _inside(recording)
        self._world = recording.run.world.get("environment")
        self.order = gate(self)

    def open(self, lane: Lane, call: Call) -> ReplayedCrossing:
        """Begin a crossing. A call that is not answered at the wire has its answer now, or diverges."""
        crossing = ReplayedCrossing(self, lane, call)
        if self.watch is not None:
            self.watch(crossing.position)
        if not call.wire:
            asked = codec.encode(call.input, strict=False)
            if crossing.kept is not None:
                crossing.kept.record.input = asked
            crossing.match(
                lambda record: canonical.same_value(record.input, asked, self.bound),
                lambda record: canonical.value_similarity(record.input, asked),
                lambda record: canonical.value_differences(record.input, asked, "input", bound=self.bound),
                lambda record: (exact.dumps(record.input), exact.dumps(asked)),
            )
        return crossing

    def read(self, lane: Lane, source: str, frame: FrameType, real: Callable[[], T]) -> T:
        """The recorded value of this reading, or a derived one where the recording has none."""
        refuse = self._unrecorded if self.strict else None
        with self._lock:
            return self.readings.read(lane, self.lanes.resolve(lane), source, frame, real, refuse)

    def _unrecorded(self, position: Position, place: str) -> DivergenceError:
        """What is raised for a reading that was not recorded, in a strict replay."""
        summary = f"{place} reads what was not recorded there"
        remedy = "Replay without --strict to give it a derived value, or give the program as it was."
        return self.diverge(Divergence(DivergenceClass.EXHAUSTED, position, None, summary, (), remedy))

    def seeded(self, lane: Lane, frame: FrameType) -> Draws:
        """How many draws of this generator were kept by its seed."""
        with self._lock:
            return self.readings.seeded(lane, self.lanes.resolve(lane), frame)

    def environment(self, name: str, value: str | None) -> str | None:
        """What was recorded by name; a placeholder for a credential that is not here."""
        if isinstance(self._world, dict) and name in self._world:
            recorded = self._world[name]
            return recorded if isinstance(recorded, str) else None
        if value is None and self.readings.had_credential(name):
            return PLACEHOLDER
        return value

    def named_environment(self) -> list[str]:
        """Environment variables that were recorded by value."""
        return list(self._world) if isinstance(self._world, dict) else []

    def slept(self, lane: Lane, seconds: float) -> None:
        self.readings.slept(seconds)

    def declare(self, values: dict[str, Json]) -> None:
        self.declared.update(values)

    def note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)
            if self.transcript is not None:
                self.transcript.note(note)

    def record_as(self, transcript: Transcript) -> None:
        """Record this replay from now on."""
        self.transcript = transcript
        self.readings.told = transcript.derived

    def diverge(self, divergence: Divergence) -> DivergenceError:
        """Keep a divergence, for ever, and give what is to be raised."""
        with self._lock:
            self.divergences.append(divergence)
            if self.elsewhere is not None:
                self.elsewhere.diverged(self.recording.run.run_id, divergence)
            too_many = len(self.divergences) > MOST_DIVERGENCES
        if too_many:
            self._stop()
        return DivergenceError(divergence)

    def pin(self, divergence: Divergence, site: str) -> bool:
        """Tell of a divergence that ends nothing. Whether it need not be raised."""
        if self.pins:
            self.pinned.append(Pinned(divergence, site))
        return self.pins

    def unconsumed(self) -> list[CrossingRecord]:
        """Recorded crossings that completed and were never asked for."""
        return [record for record in self.matcher.left() if record.end not in (End.UNFINISHED, End.ABANDONED)]

    def due(self, lane: Lane, key: str, ordinal: int, place: Due) -> Turn | None:
        """The turn of a completion whose recorded place is known."""
        self._due[lane.path, key, ordinal] = place
        return self.order.turn(lane, key, ordinal)

    def departed(self) -> bool:
        """Whether a divergence has been raised."""
        return bool(self.divergences)

    def absent(self, place: int) -> bool:
        """Whether a place in the order is inside a call that is answered as a whole: nobody asks for it."""
        return place in self._inside

    def place(self, lane: Lane, key: str, ordinal: int) -> Due:
        """The recorded place of a completion."""
        known = self._due.pop((lane.path, key, ordinal), None)
        if known is not None:
            return known
        path = self.lanes.resolve(lane)
        if path is None:
            return FREE
        return self._events.get((path, key, ordinal), FREE)


def _body(request: WireRequest) -> str:
    return request.body.decode("utf-8", "replace")


def _program_line() -> str:
    """File and line of the program's own code that asks; empty where none is near."""
    for frame in frames(caller()):
        if kind_of(frame) == AGENT:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def _inside(recording: Recording) -> frozenset[int]:
    """The places in the order that belong to what happened inside a call that is answered as a whole."""
    answered = [
        child_path(record.position.lane, "call", record.position.key, record.position.ordinal)
        for record in recording.crossings
        if not record.wire
    ]
    inside = tuple(f"{path}/" for path in answered) if len(answered) <= MOST_CALLS else ()
    lanes = frozenset(answered)

    def is_inside(lane: str) -> bool:
        return lane in lanes or (bool(inside) and lane.startswith(inside))

    places = [(event.lane, event.seq) for event in recording.order]
    places += [(record.position.lane, record.seq) for record in recording.crossings if record.seq is not None]
    return frozenset(place for lane, place in places if is_inside(lane))


class ReplayedCrossing:
    """One call through a boundary, being answered."""

    def __init__(self, session: ReplaySession, lane: Lane, call: Call) -> None:
        self._session = session
        self._caller = lane
        self._call = call
        self._ordinal = lane.ordinal(call.key)
        self.position = Position(lane.path, call.key, self._ordinal)
        self.answer: Outcome | None = None
        self.record: CrossingRecord | None = None
        self._attempts = 0
        self._chunks = 0
        self.lane = Lane(session, lane, "call", call.key, self._ordinal)
        if call.wire:
            self.lane.beneath = self
        kept = session.transcript
        self.kept: TranscribedCrossing | None = (
            None if kept is None else kept.open(lane, self.lane, self.position, call)
        )

    def match(
        self,
        fits: Callable[[CrossingRecord], bool],
        alike: Callable[[CrossingRecord], float],
        differences: Callable[[CrossingRecord], tuple[Difference, ...]],
        texts: Callable[[CrossingRecord], tuple[str, str]],
    ) -> None:
        """Find the recorded crossing that answers. Raises DivergenceError where there is none."""
        session, key = self._session, self._call.key
        with session._lock:  # noqa: SLF001 (the session's other half)
            path = session.lanes.resolve(self._caller)
            record, moved_from = session.matcher.find(self._caller, path, key, fits)
            if record is None:
                known = None if self._call.otherwise is None else self._call.otherwise()
                if known is not None:
                    self.answer = known
                    session.unrecorded.append(self.position)
                    return
                nearest = session.matcher.nearest(self._caller, path, key, alike)
                own = session.matcher.own(self._caller, path, key)
                place = None if own is None else next((place for place, _ in own.waiting()), None)
                if own is None or place is None or not session.pins:
                    raise self._depart(self._new(nearest, differences, spent=place is None))
                record = own.take(place)
                pinned = self._new(record, differences, spent=False)
                session.pinned.append(Pinned(pinned, _program_line(), *texts(record)))
            session.answered += 1
            if session.elsewhere is not None:
                session.elsewhere.answered(session.recording.run.run_id, record.span_id)
            if moved_from is not None:
                session.moved.append((self.position, moved_from))
                if session.matcher.has_become(self._caller, moved_from):
                    session.lanes.settle(self._caller, moved_from)
            if self.kept is not None:
                self.kept.answered(record, moved=moved_from is not None)
            self._accept(record)

    def attempt(self, request: WireRequest) -> ReplayedExchange:
        """Answer the next HTTP attempt. Raises DivergenceError where the recording has no such request."""
        number = self._attempts
        self._attempts += 1
        bound = self._session.bound
        kept = None if self.kept is None else self.kept.asked(request)
        if self.record is None:
            self.match(
                lambda record: (
                    bool(record.attempts) and canonical.same_request(record.attempts[0].request, request, bound)
                ),
                lambda record: canonical.similarity(record.attempts[0].request, request) if record.attempts else 0.0,
                lambda record: (
                    canonical.differences(record.attempts[0].request, request, bound=bound) if record.attempts else ()
                ),
                lambda record: (_body(record.attempts[0].request) if record.attempts else "", _body(request)),
            )
        record = self.record
        assert record is not None  # match() found it or raised
        if number >= len(record.attempts):
            if self._was_left(record):  # while it paused before this attempt, which takes no time now
                return ReplayedExchange(self, Attempt(request, end=End.ABANDONED), kept)
            raise self._depart(
                self._departure(
                    DivergenceClass.EXHAUSTED,
                    f"attempt {number + 1} of a call that made {len(record.attempts)} when it was recorded",
                )
            )
        recorded = record.attempts[number]
        if number and not canonical.same_request(recorded.request, request, bound):
            departure = self._departure(
                DivergenceClass.DIVERGED,
                f"attempt {number + 1} of this call asks something else",
                canonical.differences(recorded.request, request, bound=bound),
            )
            if not self._session.pins:
                raise self._depart(departure)
            self._session.pinned.append(Pinned(departure, _program_line(), _body(recorded.request), _body(request)))
        return ReplayedExchange(self, recorded, kept)

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """A replay learns nothing from a recorded response."""

    def turn(self, outcome: Outcome) -> Turn | None:
        record = self.record
        if record is None or (was_cancelled(outcome) and record.end is not End.ABANDONED):
            return None
        if isinstance(outcome, Raised) and isinstance(outcome.error, DivergenceError):
            return None
        place: Due = FREE if record.seq is None else record.seq
        if record.seq is None and not record.wire and self._was_left(record):
            place = NEVER
        return self._session.due(self._caller, self.position.key, self.position.ordinal, place)

    def close(self, outcome: Outcome) -> None:
        """The program sees `outcome` now. A wire call that sent nothing stands for one that sent nothing."""
        if self._call.wire and self.record is None and not self._attempts:
            path = self._session.lanes.resolve(self._caller)
            record, moved = self._session.matcher.find(
                self._caller, path, self._call.key, lambda record: not record.attempts
            )
            if self.kept is not None and record is not None:
                self.kept.answered(record, moved=moved is not None)
        if self.kept is not None:
            self.kept.closed(outcome)

    def item(self, outcome: Outcome) -> None:
        """The program is given an item, an error or the end, or has left the generator."""
        if self.kept is not None:
            self.kept.item(outcome)

    def stream_items(self) -> None:
        """What this crossing returns is a generator: its items are `recorded_items`."""

    def recorded_items(self) -> list[Outcome]:
        """What the generator gave, and how it ended; nothing after the point where its reader left it."""
        record = self.record
        if record is None:
            return []
        if self.kept is not None:
            self.kept.gives_items()
        items: list[Outcome] = [Returned(self._decode(item)) for item in record.items]
        if record.end is End.RAISED:
            items.append(Raised(self._error(record.outcome)))
        elif record.end is not End.ABANDONED:
            items.append(Ended())
        return items

    def past_end(self) -> BaseException:
        record = self.record
        unfinished = record is not None and record.end is End.UNFINISHED
        return self._depart(
            self._departure(
                DivergenceClass.INCOMPLETE if unfinished else DivergenceClass.DIVERGED,
                "the recording process died while this stream was open"
                if unfinished
                else "the program reads on where the recorded reader stopped",
            )
        )

    def exchange_turn(self, attempt: Attempt) -> Turn | None:
        """Where the caller was cancelled before a response came: a place that never comes."""
        left = attempt.end is End.ABANDONED or (self.record is not None and self._was_left(self.record))
        if attempt.head is None and attempt.error is None and left:
            return self._session.due(self.lane, "response", self.lane.ordinal("response"), NEVER)
        return None

    def chunk_turn(self, attempt: Attempt, index: int) -> Turn | None:
        if index >= len(attempt.chunks) and attempt.end is End.ABANDONED and attempt.error is not None:
            # The reader was cancelled while it waited for a chunk: that never comes here either.
            return self._session.due(self.lane, "chunk", self.lane.ordinal("chunk"), NEVER)
        seq = attempt.seqs[index] if index < len(attempt.seqs) else None
        if seq is None:
            return None
        return self._session.due(self.lane, "chunk", self.lane.ordinal("chunk"), seq)

    def error_of(self, attempt: Attempt) -> BaseException | None:
        return None if attempt.error is None else self._error(attempt.error)

    def unanswered(self) -> DivergenceError:
        """The recording process died before this call had an outcome."""
        return self._depart(
            self._departure(DivergenceClass.INCOMPLETE, "the recording process died before this call had an outcome")
        )

    def _depart(self, divergence: Divergence) -> DivergenceError:
        """Keep a divergence of this call, and give what is to be raised."""
        error = self._session.diverge(divergence)
        if self.kept is not None:
            self.kept.departed(divergence.kind, error)
        return error

    def _accept(self, record: CrossingRecord) -> None:
        self.record = record
        where = record.position
        self._session.lanes.settle(self.lane, child_path(where.lane, "call", where.key, where.ordinal))
        if self._call.wire:
            return
        left = self._was_left(record)
        if record.end is End.UNFINISHED and not left:
            raise self.unanswered()
        if left and not record.items:
            self.answer = Raised(asyncio.CancelledError())
        elif record.end is End.RAISED and not record.items:
            self.answer = Raised(self._error(record.outcome))
        else:
            self.answer = Returned(self._decode(record.outcome))

    def _was_left(self, record: CrossingRecord) -> bool:
        """Whether the recorded program did not wait for the end: it cancelled the call, or ended before."""
        if record.end is End.UNFINISHED:
            return self._session.recording.run.end is not End.UNFINISHED
        return record.end is End.ABANDONED

    def _decode(self, value: Json) -> object:
        allowed = self._call.allowed
        if allowed is None:
            allowed = {codec.ref(known): known for known in self._call.types}
        return codec.decode(value, allowed)

    def _error(self, value: Json) -> BaseException:
        error = self._decode(value)
        return error if isinstance(error, BaseException) else RuntimeError(str(error))

    def _new(
        self,
        nearest: CrossingRecord | None,
        differences: Callable[[CrossingRecord], tuple[Difference, ...]],
        *,
        spent: bool,
    ) -> Divergence:
        if spent:
            return Divergence(
                DivergenceClass.EXHAUSTED,
                self.position,
                None if nearest is None else nearest.position,
                "the program asks for more than was recorded in this lane",
                () if nearest is None else differences(nearest),
                "A call was added: rerun the program, or take the call out.",
            )
        assert nearest is not None  # a series that is not spent has a nearest
        return Divergence(
            DivergenceClass.DIVERGED,
            self.position,
            nearest.position,
            "the program asks something that was not recorded",
            differences(nearest),
            RERUN,
        )

    def _departure(self, kind: DivergenceClass, summary: str, differences: tuple[Difference, ...] = ()) -> Divergence:
        nearest = None if self.record is None else self.record.position
        return Divergence(kind, self.position, nearest, summary, differences, RERUN)
