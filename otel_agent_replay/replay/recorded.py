"""One call of a run that is recorded, and its HTTP attempts. What fails here never hurts the agent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import ref

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.handlers import raised_by
from otel_agent_replay.boundary.lanes import Lane
from otel_agent_replay.boundary.session import was_cancelled
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.recording import codec
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.encoder import Encoder
from otel_agent_replay.recording.values import Attempt, CrossingRecord, End, Raised, Returned
from otel_agent_replay.replay import changes
from otel_agent_replay.replay.marks import as_it_stands, enclosing, end_of, item_key, line_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.boundary.session import Answer, Call, Turn
    from otel_agent_replay.recording.changed import Handed
    from otel_agent_replay.recording.values import Attribute, Json, Outcome, WireHead, WireRequest
    from otel_agent_replay.replay.record import RecordSession


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
        inside = Lane(session, lane, "call", call.key, ordinal)
        inside.mark = self
        if call.wire:
            inside.beneath = self
        self._lane: Lane | ref[Lane] = inside
        self._caller = lane
        self._lock = threading.RLock()  # a finaliser may come back here
        self._handed: Handed | None = None
        self._returned = False
        self._finished = False
        self._exchanges = 0
        self._items_open = False
        self._since = session.order.last
        """Place of what the main lane saw last before this call."""
        self._handle = session.opened(self)

    @property
    def lane(self) -> Lane:
        """The lane of the code beneath.

        It holds this for good, so this holds it only while the call lasts: else all that a call leaves, bodies too,
        would be for the garbage collector.
        """
        lane = self._lane
        return lane if isinstance(lane, Lane) else lane() or self._caller

    def begin(self, call: Call, lane: Lane) -> None:
        """Write the input."""
        if not call.wire:
            encoder = Encoder(strict=False)
            self.record.input = codec.encode(call.input, strict=False, by=encoder)
            self._handed = changes.handed(call, None if encoder.refused else self.record.input, self._session.note)
        self._session.pack()
        outer = enclosing(lane, RecordedCrossing)
        self.lane.enter = self._session.sink.opened(self.record, None if outer is None else outer.record)

    def attempt(self, request: WireRequest) -> RecordedExchange:
        """An attempt is about to leave; the request is on disk first."""
        exchange = RecordedExchange(self, Attempt(request))
        with self._lock:
            if self._finished:  # the run has ended while another thread was about to ask
                return exchange
            self.record.attempts.append(exchange.attempt)
            self._exchanges += 1
        try:
            self._session.pack()
            self._session.sink.asked(self.record)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing a request", error, self._session.note)
        return exchange

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        with self._lock:
            if not self._finished:
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

    def interrupted(self, outcome: Outcome, error: BaseException) -> tuple[Outcome, None]:
        place = raised_by(error, self._since)
        if place is not None:
            self.broken(place)
        return Raised(error), None

    def broken(self, place: int) -> None:
        """The handler of the signal in this place of the order has raised into this call."""
        with self._lock:
            if not self._finished:
                self.record.signals.append([place, len(self.record.attempts)])

    def pause(self) -> None:
        return None

    def restored(self, outcome: Outcome) -> Outcome:
        return outcome

    def close(self, outcome: Outcome) -> None:
        """The program sees `outcome` now; streams of a wire crossing may go on."""
        try:
            self._settle(outcome)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("closing a crossing", error, self._session.note)

    def item_turn(self) -> Turn | None:
        return self._session.order.turn(self._caller, item_key(self.record.position), len(self.record.items))

    def item(self, outcome: Outcome) -> None:
        """A generator behind this crossing gave an item (the crossing stays open), ended or raised."""
        try:
            if isinstance(outcome, Returned):
                item = codec.encode(outcome.value, strict=False)
                with self._lock:
                    if not self._finished:
                        self.record.items.append(item)
                return
            if was_cancelled(outcome):
                where = self.record.position
                self._session.never(where.lane, item_key(where), len(self.record.items))
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
        """The run ends while this is open; its thread may go on."""
        with self._lock:
            if self._finished:
                return
            self.record = as_it_stands(self.record)
            if self.record.end is End.UNFINISHED and self._returned:
                self.record.end = End.ABANDONED
            self._items_open, self._exchanges = False, 0
            self._finished, self._handed = True, None
        self._write()

    def exchange_ended(self, attempt: Attempt) -> None:
        """The body of an attempt ended; the last one ends a crossing that has returned."""
        with self._lock:
            self._exchanges -= 1
            if self._finished or not self._returned:
                return
            if self.record.end is End.UNFINISHED:
                self.record.end = End.RETURNED if attempt.end is End.ENDED else attempt.end
        self._finish()

    @property
    def place(self) -> int:
        """Of what the main lane has seen last."""
        return self._session.order.last

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
        end, told = end_of(outcome), None
        wire = self.record.wire
        if isinstance(outcome, Returned) and not wire:
            told = codec.encode(outcome.value, strict=False)
        elif isinstance(outcome, Raised) and end is End.RAISED:
            # At the wire the SDK raises it again by itself; a line is kept for people to read.
            told = line_of(outcome.error) if wire else _with_trace(outcome.error)
        handed, self._handed = self._handed, None
        changed = None if handed is None else changes.of_call(handed, outcome, self.record, self._session.note)
        with self._lock:
            if not self._finished:
                self.record.end, self.record.outcome = end, told
                if changed is not None:
                    self.record.after, self.record.same = changed.after, changed.same

    def _finish(self) -> None:
        with self._lock:
            if self._finished or self._exchanges or self._items_open:
                return
            self._finished = True
        self._write()

    def _write(self) -> None:
        self._session.closed(self._handle)
        self._lane = ref(self.lane)
        self.record.ended_ns = real.time_ns()
        self._session.pack()
        self._session.sink.finished(self.record)


class RecordedExchange:
    """One HTTP attempt, being recorded."""

    answer: Answer | None = None

    def __init__(self, crossing: RecordedCrossing, attempt: Attempt) -> None:
        self._crossing = crossing
        self.attempt = attempt
        self._since = real.perf_counter_ns()
        self._after = crossing.place
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
                self.attempt.error = _with_trace(error)
                self.attempt.signal = raised_by(error, self._after)
            self._crossing.exchange_ended(self.attempt)
        except Exception as failure:  # noqa: BLE001 (recording never hurts the agent)
            fault("ending an attempt", failure)

    def chunk_turn(self, index: int) -> Turn | None:
        return self._crossing.chunk_turn(index, self.attempt)


def _with_trace(error: BaseException) -> Json:
    """The JSON of an error, with where it was raised."""
    return codec.encode(error, strict=False, by=Encoder(strict=False, traces=True))
