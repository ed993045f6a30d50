"""Replay: answer every call from a recording, perform none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from otel_agent_replay.boundary.lanes import ROOT, Lane, child_path
from otel_agent_replay.boundary.order import FREE
from otel_agent_replay.boundary.session import captured
from otel_agent_replay.boundary.signals import arrivals
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording import canonical, codec, exact
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass, Position
from otel_agent_replay.recording.values import CrossingRecord, End, Note
from otel_agent_replay.recording.variables import Bindings
from otel_agent_replay.replay.crossing import Pinned, ReplayedCrossing
from otel_agent_replay.replay.lanes import LaneMap
from otel_agent_replay.replay.matching import Matcher
from otel_agent_replay.replay.readings import Readings

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.draws import Draws
    from otel_agent_replay.boundary.order import Due, ReplayGate
    from otel_agent_replay.boundary.session import Call, Turn
    from otel_agent_replay.boundary.signals import Arrival
    from otel_agent_replay.recording.values import Json, Recording
    from otel_agent_replay.replay.elsewhere import Elsewhere
    from otel_agent_replay.replay.transcript import Transcript

T = TypeVar("T")

PLACEHOLDER = "sk-replay-00000000000000000000000000000000"
"""What a program gets for a credential that only the recording machine had; clients accept its shape."""

MOST_CALLS = 2000
"""With more calls than this, only what happened in a call's own lane is told from the rest beforehand."""

MOST_DIVERGENCES = 1000
"""A program that swallows this many divergences is in a loop without end: it is stopped."""


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
        self.apart = False
        self.world = recording.run.world
        self.captured = captured(self.world)
        self.trace_id, self.run_id = recording.run.trace_id, recording.run.run_id
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
        self.variables: set[str] = set()
        """Variables of the environment that have another value here than in the recording, which answers."""
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
        self._freed: frozenset[str] = frozenset()
        self.strict = False
        """Whether a reading that was not recorded is a divergence."""
        self._stop = stop
        self.lock = threading.RLock()  # a finaliser may come back here
        self._events = {(event.lane, event.key, event.ordinal): event.seq for event in recording.order}
        self._due: dict[tuple[str, str, int], Due] = {}
        self._inside = _inside(recording)
        self._world = recording.run.world.get("environment")
        self.order = gate(self)

    def open(self, lane: Lane, call: Call) -> ReplayedCrossing:
        """Begin a crossing. A call that is not answered at the wire has its answer now, or diverges."""
        self.order.let_come(lane, outside=True)
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
        with self.lock:
            return self.readings.read(lane, self.lanes.resolve(lane), source, frame, real, refuse)

    def _unrecorded(self, position: Position, place: str) -> DivergenceError:
        """What is raised for a reading that was not recorded, in a strict replay."""
        summary = f"{place} reads what was not recorded there"
        remedy = "Replay without --strict to give it a derived value, or give the program as it was."
        return self.diverge(Divergence(DivergenceClass.EXHAUSTED, position, None, summary, (), remedy))

    def seeded(self, lane: Lane, frame: FrameType) -> Draws:
        """How many draws of this generator were kept by its seed."""
        with self.lock:
            return self.readings.seeded(lane, self.lanes.resolve(lane), frame)

    def environment(self, name: str, value: str | None) -> str | None:
        """What was recorded by name; a placeholder for a credential that is not here."""
        if isinstance(self._world, dict) and name in self._world and "environment" not in self._freed:
            recorded = self._world[name]
            return recorded if isinstance(recorded, str) else None
        if value is None and self.readings.had_credential(name):
            return PLACEHOLDER
        return value

    def variable(self, name: str) -> Json:
        """What was recorded first of a variable of the environment, as JSON text; None where it was not read."""
        return self.readings.variable(name)

    def expects(self, lane: Lane, source: str, frame: FrameType) -> bool:
        """Whether the recording has a value for this reading, which was not asked for yet."""
        with self.lock:
            return self.readings.expects(self.lanes.resolve(lane), source, frame)

    def differs(self, name: str) -> None:
        """This machine has another value for a variable of the environment, which the recording answers."""
        self.variables.add(name)

    def named_environment(self) -> list[str]:
        """Environment variables that were recorded by value."""
        return list(self._world) if isinstance(self._world, dict) else []

    def slept(self, lane: Lane, seconds: float) -> None:
        self.readings.slept(seconds)

    def interrupted(self, lane: Lane, place: int) -> None:
        """What a handler raises comes to the program by itself."""

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
        with self.lock:
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

    def free(self, kinds: frozenset[str]) -> None:
        """Leave to this machine what was captured of these kinds; see `Session.captured`."""
        self._freed = kinds
        self.captured -= kinds

    def unconsumed(self) -> list[CrossingRecord]:
        """Recorded crossings that completed and were never asked for, but for those that are left to the machine."""
        return [
            record
            for record in self.matcher.left()
            if record.end not in (End.UNFINISHED, End.ABANDONED) and record.kind not in self._freed
        ]

    def unread(self) -> list[str]:
        """Recorded readings that were not asked for again, but for those that are left to the machine."""
        return list(self.readings.unread(self._freed))

    def due(self, lane: Lane, key: str, ordinal: int, place: Due) -> Turn | None:
        """The turn of a completion whose recorded place is known."""
        self._due[lane.path, key, ordinal] = place
        return self.order.turn(lane, key, ordinal)

    def signals(self) -> list[Arrival]:
        """The signals whose handlers were called in the main thread, in order."""
        records = self.recording.crossings
        places = (record.seq for record in records if record.position.lane == ROOT and record.seq is not None)
        inside = {place for record in records for place, _ in record.signals}
        inside.update(attempt.signal for record in records for attempt in record.attempts if attempt.signal is not None)
        return arrivals(self.recording.order, places, inside)

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
        return FREE if path is None else self.recorded_place(path, key, ordinal)

    def recorded_place(self, path: str, key: str, ordinal: int) -> Due:
        """The place of a completion of the recording that is no crossing."""
        return self._events.get((path, key, ordinal), FREE)


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
