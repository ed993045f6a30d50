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

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.draws import DRAWN, MOST_COUNTED, Draws
from otel_agent_replay.boundary.lanes import FARTHEST, NEVER, OFFSETS, Lane, Memo, offset_of
from otel_agent_replay.boundary.session import captured, was_cancelled
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.boundary.sites import site_of
from otel_agent_replay.recording import codec, names, series
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.values import (
    Attempt,
    CrossingRecord,
    End,
    Ended,
    Note,
    OrderEvent,
    Raised,
    ReadingRecord,
    Returned,
)
from otel_agent_replay.recording.variables import beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from otel_agent_replay.boundary.order import Gate
    from otel_agent_replay.boundary.session import Answer, Call, Turn
    from otel_agent_replay.boundary.sink import Sink
    from otel_agent_replay.recording.values import Attribute, Json, Outcome, RunRecord, WireHead, WireRequest

T = TypeVar("T")
Log: TypeAlias = "Callable[[str, str, int, int], None]"

PACK_AT = 4096
"""Readings are written by themselves once this many wait; else with the next frame of any kind."""

CREDENTIAL = "environment:credential"
"""Source of the reading that a credential was looked for; its site is the variable's name."""


class RecordSession:
    """One run, being recorded.

    Args:
        run: the run, its ids set.
        sink: where frames are written.
        gate: makes the order; called with what is to be told of each numbered completion, and of its own trouble.
    """

    replaying = False

    def __init__(self, run: RunRecord, sink: Sink, gate: Callable[[Log, Callable[[Note], None]], Gate]) -> None:
        self.run = run
        self.world = run.world
        self.captured = captured(run.world)
        self.trace_id = run.trace_id
        self.root = Lane(self)
        self.order = gate(self._numbered, self.note)
        self._sink = sink
        self._lock = threading.RLock()  # a finaliser may come back here
        self._servings: set[str] = set()
        self._readings: dict[tuple[str, str, str], ReadingRecord] = {}
        self._counts: dict[tuple[str, str, str], int] = {}
        """How many readings of each have been handed on."""
        self._seeded: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._draws: list[Draws] = []
        self._places: dict[int, dict[int, Any]] = {}
        """What lanes and frames remember of the readings that wait, by id."""
        self._waiting = 0
        self._events: list[OrderEvent] = []
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
        self._keep(lane.path, source, site_of(frame).id, value)
        return value

    def seeded(self, lane: Lane, frame: FrameType) -> Draws:
        """Count the draws that the seed of a generator stands for."""
        site = site_of(frame).id
        with self._lock:
            if len(self._draws) >= MOST_COUNTED or self._ended:
                return Draws(lane)
            number = self._seeded[lane.path, site]
            self._seeded[lane.path, site] += 1
            draws = Draws(lane, tell=partial(self._keep, lane.path, f"{DRAWN}{number}", site))
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
            reading = self._waiting_for(key)
            reading.values.append(value)  # type: ignore[arg-type]  # encoded when packed
            full = len(reading.values) >= PACK_AT
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
        if key not in self._counts and key not in self._readings:
            self._keep(*key, value is not None)
        return value

    def slept(self, lane: Lane, seconds: float) -> None:
        """A recorded sleep took its time: nothing to do."""

    def declare(self, values: dict[str, Json]) -> None:
        self.declared.update(values)

    def note(self, note: Note) -> None:
        """Add a line to the capture manifest, each line once."""
        with self._lock:
            if note not in self._noted:
                self._noted.add(note)
                self._notes.append(note)

    def end(self, end: End, outcome: dict[str, Json]) -> None:
        """The run is over: what is still open was abandoned. Later calls change nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self.order.finish()
        for crossing in list(self._open.values()):
            crossing.abandon()
        for draws in self._draws:
            draws.settle()
        self.pack()
        if self._servings:
            text = ",".join(sorted(self._servings))
            outcome = {**outcome, "serving": blake2b(text.encode(), digest_size=8).hexdigest()}
        self.run.end, self.run.outcome, self.run.ended_ns = end, outcome, real.time_ns()
        self._sink.run_ended(self.run)

    def pack(self) -> None:
        """Hand on the readings, order events and notes that wait, to be written with the next frame."""
        with self._lock:
            if not (self._readings or self._events or self._notes):
                return
            readings, events, notes = list(self._readings.values()), self._events, self._notes
            self._readings, self._events, self._notes, self._waiting = {}, [], [], 0
            places, self._places = self._places, {}
            for remembered in places.values():
                remembered.clear()  # from here on nobody adds to what was taken
            for reading in readings:
                self._counts[reading.lane, reading.source, reading.site] = reading.first + len(reading.values)
        for reading in readings:
            if reading.source not in OFFSETS or not reading.source.startswith("clock:time."):  # those are numbers
                reading.values = _plain(reading.values)
        self._sink.packed(readings, events, notes)

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

    def _keep(self, lane: str, source: str, site: str, value: object) -> None:
        key = (lane, source, site)
        with self._lock:
            self._waiting_for(key).values.append(value)  # type: ignore[arg-type]  # encoded when packed
            self._waiting += 1
            full = self._waiting >= PACK_AT
        if full:
            self.pack()

    def _waiting_for(self, key: tuple[str, str, str]) -> ReadingRecord:
        """The record that the readings of a lane, source and site wait in."""
        reading = self._readings.get(key)
        if reading is None:
            reading = self._readings[key] = ReadingRecord(*key, self._counts.get(key, 0), [])
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


class RecordedCrossing:
    """One call through a boundary, being recorded."""

    answer: Outcome | None = None

    def __init__(self, session: RecordSession, lane: Lane, call: Call) -> None:
        self._session = session
        ordinal = lane.ordinal(call.key)
        self.record = CrossingRecord(
            position=Position(lane.path, call.key, ordinal),
            kind=call.kind,
            span_id=0,
            parent_span_id=0,
            started_ns=real.time_ns(),
            wire=call.wire,
            attributes=dict(call.attributes),
            name=call.name or call.key,
        )
        self.lane = Lane(session, lane, "call", call.key, ordinal)
        self.lane.mark = self
        if call.wire:
            self.lane.beneath = self
        self._caller = lane
        self._lock = threading.RLock()  # a finaliser may come back here
        self._returned = False
        self._finished = False
        self._exchanges = 0
        self._items_open = False
        self._handle = session.opened(self)

    def begin(self, call: Call, lane: Lane) -> None:
        """Write the input."""
        if not call.wire:
            self.record.input = codec.encode(call.input, strict=False)
        self._session.pack()
        self.lane.enter = self._session.sink.opened(self.record, _enclosing(lane))

    def attempt(self, request: WireRequest) -> RecordedExchange:
        """An attempt is about to leave; the request is on disk first."""
        exchange = RecordedExchange(self, Attempt(request))
        with self._lock:
            self.record.attempts.append(exchange.attempt)
            self._exchanges += 1
        try:
            self._session.pack()
            self._session.sink.asked(self.record)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing a request", error, self._session.note)
        return exchange

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        self.record.attributes.update(attributes)
        self._session.sink.described(self.record, attributes)

    def turn(self, outcome: Outcome) -> Turn | None:
        if was_cancelled(outcome):
            return None
        position = self.record.position
        return self._session.numbered(self._caller, position.key, position.ordinal, self._number)

    def chunk_turn(self, index: int, attempt: Attempt) -> Turn | None:
        """The place of a chunk in the run's order; chunks count through all attempts of a crossing."""

        def tell(seq: int) -> None:
            attempt.seqs.extend([None] * (index - len(attempt.seqs)))
            attempt.seqs.append(seq)

        return self._session.numbered(self.lane, "chunk", self.lane.ordinal("chunk"), tell)

    def close(self, outcome: Outcome) -> None:
        """The program sees `outcome` now; streams of a wire crossing may go on."""
        try:
            self._settle(outcome)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("closing a crossing", error, self._session.note)

    def item(self, outcome: Outcome) -> None:
        """A generator behind this crossing gave an item (the crossing stays open), ended or raised."""
        try:
            if isinstance(outcome, Returned):
                self.record.items.append(codec.encode(outcome.value, strict=False))
                return
            self._items_open = False
            self._outcome(outcome)
            self._finish()
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("recording an item", error, self._session.note)

    def stream_items(self) -> None:
        """What this crossing returns is a generator, whose items are to come."""
        self._items_open = True

    def recorded_items(self) -> list[Outcome]:
        return []

    def past_end(self) -> BaseException:
        raise AssertionError("a recording crossing has no recorded end")

    def abandon(self) -> None:
        """The run ends while this is open."""
        if self.record.end is End.UNFINISHED and self._returned:
            self.record.end = End.ABANDONED
        self._items_open, self._exchanges = False, 0
        self._finish()

    def exchange_ended(self, attempt: Attempt) -> None:
        """The body of an attempt ended; the last one ends a crossing that has returned."""
        with self._lock:
            self._exchanges -= 1
        if self._returned:
            if self.record.end is End.UNFINISHED:
                self.record.end = End.RETURNED if attempt.end is End.ENDED else attempt.end
            self._finish()

    def _number(self, seq: int) -> None:
        self.record.seq = seq

    def _settle(self, outcome: Outcome) -> None:
        self._returned = True
        streaming = self.record.wire and isinstance(outcome, Returned) and self._exchanges > 0
        if not streaming and not (self._items_open and isinstance(outcome, Returned)):
            self._outcome(outcome)
            self._exchanges, self._items_open = 0, False
            self._finish()

    def _outcome(self, outcome: Outcome) -> None:
        record = self.record
        if isinstance(outcome, Returned):
            record.end = End.RETURNED
            if not record.wire:
                record.outcome = codec.encode(outcome.value, strict=False)
        elif isinstance(outcome, Ended):
            record.end = End.ENDED
        elif was_cancelled(outcome) or (isinstance(outcome, Raised) and isinstance(outcome.error, GeneratorExit)):
            record.end = End.ABANDONED
        else:
            record.end = End.RAISED
            error = outcome.error
            # At the wire the SDK raises it again by itself; a line is kept for people to read.
            record.outcome = (
                beginning(f"{type(error).__name__}: {error}", 500) if record.wire else codec.encode(error, strict=False)
            )

    def _finish(self) -> None:
        with self._lock:
            if self._finished or self._exchanges or self._items_open:
                return
            self._finished = True
        self._session.closed(self._handle)
        self.record.ended_ns = real.time_ns()
        self._session.pack()
        self._session.sink.finished(self.record)


def _enclosing(lane: Lane | None) -> CrossingRecord | None:
    """The crossing that this lane runs inside, however deep its tasks and threads nest."""
    while lane is not None:
        if isinstance(lane.mark, RecordedCrossing):
            return lane.mark.record
        lane = lane.parent
    return None


class RecordedExchange:
    """One HTTP attempt, being recorded."""

    answer: Answer | None = None

    def __init__(self, crossing: RecordedCrossing, attempt: Attempt) -> None:
        self._crossing = crossing
        self.attempt = attempt
        self._since = real.perf_counter_ns()
        self._ended = False

    def head(self, head: WireHead) -> None:
        self.attempt.head = head

    def chunk(self, data: bytes) -> None:
        self.attempt.chunks.append(data)
        self.attempt.offsets.append((real.perf_counter_ns() - self._since) // 1000)

    def end(self, how: End, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self.attempt.end = how
            if error is not None:
                self.attempt.error = codec.encode(error, strict=False)
            self._crossing.exchange_ended(self.attempt)
        except Exception as failure:  # noqa: BLE001 (recording never hurts the agent)
            fault("ending an attempt", failure)

    def chunk_turn(self, index: int) -> Turn | None:
        return self._crossing.chunk_turn(index, self.attempt)
