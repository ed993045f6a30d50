"""Record: let every call through, and write down what came back."""

from __future__ import annotations

import inspect
import threading
from collections import defaultdict
from datetime import datetime
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.completions import UNFIRED
from otel_agent_replay.boundary.draws import DRAWN, MOST_COUNTED, Draws
from otel_agent_replay.boundary.lanes import FARTHEST, NEVER, OFFSETS, ROOT, Lane, Memo, offset_of
from otel_agent_replay.boundary.session import captured
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.boundary.signals import RAISED
from otel_agent_replay.boundary.sites import site_of
from otel_agent_replay.recording import codec, names, series
from otel_agent_replay.recording.values import (
    CREDENTIAL,
    End,
    Note,
    OrderEvent,
    ReadingRecord,
)
from otel_agent_replay.replay.marks import enclosing
from otel_agent_replay.replay.recorded import RecordedCrossing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from otel_agent_replay.boundary.order import Gate
    from otel_agent_replay.boundary.session import Call, Turn
    from otel_agent_replay.boundary.sink import Sink
    from otel_agent_replay.recording.values import Json, RunRecord

T = TypeVar("T")
Log: TypeAlias = "Callable[[str, str, int, int], None]"

PACK_AT = 4096
"""Readings are written by themselves once this many wait; else with the next frame of any kind."""


class RecordSession:
    """One run, being recorded.

    Args:
        run: the run, its ids set.
        sink: where frames are written.
        gate: makes the order; called with what is to be told of each numbered completion, and of its own trouble.
    """

    replaying = False
    apart = False

    def __init__(self, run: RunRecord, sink: Sink, gate: Callable[[Log, Callable[[Note], None]], Gate]) -> None:
        self.run = run
        self.world = run.world
        self.captured = captured(run.world)
        self.trace_id, self.run_id = run.trace_id, run.run_id
        self.root = Lane(self)
        self.order: Gate = gate(self._numbered, self.note)
        self._sink = sink
        self._lock = threading.RLock()  # a finaliser may come back here
        self._servings: set[str] = set()
        self._readings: dict[tuple[str, str, str], ReadingRecord] = {}
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        """Whose the readings are that wait."""
        self._counts: WeakKeyDictionary[Lane, dict[tuple[str, str], int]] = WeakKeyDictionary()
        """How many readings of each source and site have been handed on, as long as the lane may have more."""
        self._seeded: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._draws: list[Draws] = []
        self._places: dict[int, dict[int, Any]] = {}
        """What lanes and frames remember of the readings that wait, by id."""
        self._waiting = 0
        self._events: list[OrderEvent] = []
        self._looked_for: set[str] = set()
        """Credentials that were asked for."""
        self._notes: list[Note] = []
        self._noted: set[Note] = set()
        self._unnumbered: dict[tuple[str, str, int], Callable[[int], None]] = {}
        self._open: dict[int, RecordedCrossing] = {}
        self._handles = count()
        self._ended = False
        self.declared: dict[str, Json] = {}

    def open(self, lane: Lane, call: Call) -> RecordedCrossing:
        """Begin a crossing; its input is on disk before this returns, unless the wire will tell it."""
        crossing = RecordedCrossing(self, lane, call)
        try:
            crossing.begin(call, lane)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("opening a crossing", error, self.note)
        return crossing

    def read(self, lane: Lane, source: str, frame: FrameType, real: Callable[[], T]) -> T:
        """Take the real value, and keep it in the order of its lane, source and call site."""
        value = real()
        self._keep(lane, source, site_of(frame).id, value)
        return value

    def seeded(self, lane: Lane, frame: FrameType) -> Draws:
        """Count the draws that the seed of a generator stands for."""
        site = site_of(frame).id
        with self._lock:
            if len(self._draws) >= MOST_COUNTED or self._ended:
                return Draws(lane)
            number = self._seeded[lane.path, site]
            self._seeded[lane.path, site] += 1
            draws = Draws(lane, tell=partial(self._keep, lane, f"{DRAWN}{number}", site))
            self._draws.append(draws)
        return draws

    def keep(self, lane: Lane, source: str, frame: FrameType, value: object, *, near: bool) -> None:
        """Keep a value that has been read; `near` if its call site is told by `frame` and the frame around it.

        The lane then remembers where it is kept. A `datetime` stays one until it is written.
        """
        key = (lane.path, source, site_of(frame).id)
        outer = frame.f_back or frame
        place = frame.f_lasti * FARTHEST + outer.f_lasti
        with self._lock:
            reading = self._waiting_for(key, lane)
            reading.values.append(value)  # type: ignore[arg-type]  # encoded when packed
            self._waiting += 1
            full = self._waiting >= PACK_AT or len(reading.values) >= PACK_AT
            if near and max(frame.f_lasti, outer.f_lasti) < FARTHEST:
                values = cast("list[object]", reading.values)
                self._places[id(lane.sites)] = lane.sites
                lane.sites[place] = (frame.f_code, outer.f_code, source, values)
                memo = frame.f_trace
                if type(memo) is Memo:
                    self._places[id(memo)] = memo
                    memo[frame.f_lasti + offset_of(source)] = values
                if self._readings.get(key) is not reading:  # a finaliser came in between, and they were handed on
                    for remembered in self._places.values():
                        remembered.clear()
        if full:
            self.pack()

    def follow(self, lane: Lane, source: str, frame: FrameType) -> None:
        """Let a frame remember what its lane remembers of the call that it is making."""
        if frame.f_code.co_flags & _RESUMED:
            frame.f_trace = NEVER
            return
        memo = Memo()
        outer = frame.f_back or frame
        with self._lock:
            self._places[id(memo)] = memo
            frame.f_trace = memo
            known = lane.sites.get(frame.f_lasti * FARTHEST + outer.f_lasti)
            if known is not None and known[0] is frame.f_code and known[1] is outer.f_code and known[2] is source:
                memo[frame.f_lasti + offset_of(source)] = known[3]

    def environment(self, name: str, value: str | None) -> str | None:
        """Note by name that a credential was looked for; its value is never kept."""
        key = ("", CREDENTIAL, name)
        with self._lock:
            if name not in self._looked_for:
                self._looked_for.add(name)
                self._readings[key] = ReadingRecord(*key, 0, [value is not None])
        return value

    def slept(self, lane: Lane, seconds: float) -> None:
        """A recorded sleep took its time: nothing to do."""

    def interrupted(self, lane: Lane, place: int) -> None:
        """Keep with each call that it came into what the handler of a signal raised."""
        try:
            crossing = enclosing(lane, RecordedCrossing)
            if crossing is None:
                self.never(ROOT, RAISED, place)
            while crossing is not None:
                crossing.broken(place)
                crossing = enclosing(crossing.lane.parent, RecordedCrossing)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("keeping a signal", error, self.note)

    def declare(self, values: dict[str, Json]) -> None:
        self.declared.update(values)

    def note(self, note: Note) -> None:
        """Add a line to the capture manifest, each line once."""
        with self._lock:
            if note not in self._noted:
                self._noted.add(note)
                self._notes.append(note)

    def end(self, end: End, outcome: dict[str, Json], *, going_on: bool = False) -> None:
        """The run is over: what is still open was abandoned. Later calls change nothing.

        Where the process is `going_on`, what another thread or task still makes or reads is not: it is written when it
        ends, or by `abandon`.
        """
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self.order.finish()
        if not going_on:
            self.abandon()
        for draws in self._draws:
            draws.settle()
        self.pack()
        if self._servings:
            text = ",".join(sorted(self._servings))
            outcome = {**outcome, "serving": blake2b(text.encode(), digest_size=8).hexdigest()}
        self.run.end, self.run.outcome, self.run.ended_ns = end, outcome, real.time_ns()
        self._sink.run_ended(self.run)

    @property
    def has_open(self) -> bool:
        """Whether a call or a stream of this run is still open."""
        return bool(self._open)

    def abandon(self) -> None:
        """Write what is still open as it stands: nobody will end it."""
        for crossing in list(self._open.values()):
            crossing.abandon()

    def pack(self) -> None:
        """Hand on the readings, order events and notes that wait, to be written with the next frame."""
        with self._lock:
            if not (self._readings or self._events or self._notes):
                return
            readings, events, notes = list(self._readings.values()), self._events, self._notes
            self._readings, self._events, self._notes, self._waiting = {}, [], [], 0
            places, self._places = self._places, {}
            lanes, self._lanes = self._lanes, {}
            for remembered in places.values():
                remembered.clear()  # from here on nobody adds to what was taken
            self._handed_on(readings, lanes)
        for reading in readings:
            if reading.source not in OFFSETS or not reading.source.startswith("clock:time."):  # those are numbers
                reading.values = _plain(reading.values)
        self._sink.packed(readings, events, notes)

    def _handed_on(self, readings: Iterable[ReadingRecord], lanes: Mapping[tuple[str, str, str], Lane]) -> None:
        """Count readings that wait no longer; those of no lane come once."""
        for reading in readings:
            lane = lanes.get((reading.lane, reading.source, reading.site))
            if lane is not None:
                self._counts.setdefault(lane, {})[reading.source, reading.site] = reading.first + len(reading.values)

    def begin_again(self) -> None:
        """This is a forked child: nobody holds the lock here, and what waits is its parent's, who writes it."""
        self._lock = threading.RLock()
        for remembered in self._places.values():
            remembered.clear()
        self._handed_on(self._readings.values(), self._lanes)
        self._readings, self._lanes, self._events, self._notes, self._waiting, self._places = {}, {}, [], [], 0, {}

    def flush(self) -> None:
        """Write what waits, now."""
        self.pack()
        self._sink.flush()

    def opened(self, crossing: RecordedCrossing) -> int:
        """Keep a crossing that has begun; gives the handle for `closed`."""
        serving = crossing.record.attributes.get(names.SERVING)
        if serving is not None:
            self._servings.add(str(serving))
        handle = next(self._handles)
        self._open[handle] = crossing
        return handle

    def closed(self, handle: int) -> None:
        self._open.pop(handle, None)

    def numbered(self, lane: Lane, key: str, ordinal: int, tell: Callable[[int], None]) -> Turn | None:
        """The turn of a completion that is told its own number, instead of being kept as an event."""
        self._unnumbered[lane.path, key, ordinal] = tell
        return self.order.turn(lane, key, ordinal)

    def never(self, lane: str, key: str, ordinal: int) -> None:
        """Keep that this completion was waited for, and never came."""
        self._numbered(lane, key, ordinal, UNFIRED)

    @property
    def sink(self) -> Sink:
        return self._sink

    def _numbered(self, lane: str, key: str, ordinal: int, seq: int) -> None:
        tell = self._unnumbered.pop((lane, key, ordinal), None)
        if tell is not None:
            tell(seq)
        else:
            with self._lock:
                self._events.append(OrderEvent(lane, key, ordinal, seq))

    def _keep(self, lane: Lane, source: str, site: str, value: object) -> None:
        key = (lane.path, source, site)
        with self._lock:
            self._waiting_for(key, lane).values.append(value)  # type: ignore[arg-type]  # encoded when packed
            self._waiting += 1
            full = self._waiting >= PACK_AT
        if full:
            self.pack()

    def _waiting_for(self, key: tuple[str, str, str], lane: Lane) -> ReadingRecord:
        """The record that the readings of a lane, source and site wait in."""
        reading = self._readings.get(key)
        if reading is None:
            first = self._counts[lane].get(key[1:], 0) if lane in self._counts else 0
            reading = self._readings[key] = ReadingRecord(*key, first, [])
            self._lanes[key] = lane
        return reading


_PLAIN = frozenset((int, float, str, bool))


_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code that may go on in another lane, or called from somewhere else."""


def _plain(values: list[Json]) -> list[Json]:
    """Values as they are written; a `datetime` among others as its text, and as it is where all are."""
    kinds = set(map(type, values))
    if kinds <= _PLAIN or kinds == {datetime}:
        return values
    return [_plain_one(value) for value in values]


def _plain_one(value: object) -> Json:
    if type(value) is datetime:
        return series.text(value)
    return value if type(value) in _PLAIN else codec.encode(value)  # type: ignore[return-value]
