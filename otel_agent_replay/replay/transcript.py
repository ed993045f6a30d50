"""What a replay is recorded as: a run of its own that names its origin, and holds each call as the program made it.

Input is what the replayed program asked, outcome is what it was given. A crossing is written once, when it has ended:
what a kill takes, the next replay gives again. Readings that came from the recording stand there; only those that it
does not know are kept. Nothing here ever fails a replay.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.session import was_cancelled
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording import codec, names
from otel_agent_replay.recording.names import Answered
from otel_agent_replay.recording.values import (
    Attempt,
    CrossingRecord,
    End,
    Note,
    Raised,
    ReadingRecord,
    Returned,
)
from otel_agent_replay.replay.marks import enclosing, end_of, line_of

if TYPE_CHECKING:
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Call
    from otel_agent_replay.boundary.sink import ReplaySink
    from otel_agent_replay.recording.divergence import DivergenceClass, Position
    from otel_agent_replay.recording.values import Json, Outcome, RunRecord, WireRequest

_PLAIN = frozenset((int, float, str, bool))


class Transcript:
    """One replay, being recorded.

    Args:
        run: the new run; its ids are set and its entry names its origin.
        sink: where frames are written.
    """

    def __init__(self, run: RunRecord, sink: ReplaySink) -> None:
        self.run = run
        self._sink = sink
        self._lock = threading.RLock()  # a finaliser may come back here
        self._open: dict[int, TranscribedCrossing] = {}
        self._readings: dict[tuple[str, str, str], ReadingRecord] = {}
        self._notes: list[Note] = []
        self._ended = False
        sink.run_started(run)

    @property
    def lost(self) -> int:
        """How many frames could not be written."""
        return self._sink.lost

    def open(self, lane: Lane, inside: Lane, position: Position, call: Call) -> TranscribedCrossing | None:
        """A crossing is made in `lane`; `inside` is the lane beneath it. None where it cannot be kept."""
        try:
            crossing = TranscribedCrossing(self, position, call)
            outer = enclosing(lane, TranscribedCrossing)
            self._sink.begun(crossing.record, None if outer is None else outer.record)
        except Exception as error:  # noqa: BLE001 (recording never hurts the replay)
            fault("opening a crossing of a replay", error, self.note)
            return None
        inside.mark = crossing
        self._open[id(crossing)] = crossing
        return crossing

    def finished(self, crossing: TranscribedCrossing) -> None:
        """A crossing has ended: written whole."""
        self._open.pop(id(crossing), None)
        self._sink.replayed(crossing.record)

    def derived(self, lane: str, source: str, site: str, number: int, value: object) -> None:
        """A reading that the recording does not know was answered with `value`."""
        try:
            told = value if type(value) in _PLAIN else codec.encode(value)
        except Exception as error:  # noqa: BLE001 (recording never hurts the replay)
            fault("keeping a reading of a replay", error, self.note)
            return
        with self._lock:
            reading = self._readings.get((lane, source, site))
            if reading is None:
                reading = self._readings[lane, source, site] = ReadingRecord(lane, source, site, number, [])
            reading.values.append(told)  # type: ignore[arg-type]  # plain, or encoded

    def note(self, note: Note) -> None:
        """Add a line to the capture manifest."""
        with self._lock:
            self._notes.append(note)

    def end(self, end: End, outcome: dict[str, Json]) -> None:
        """The replay is over. Later calls change nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        for crossing in list(self._open.values()):
            crossing.abandon()
        self._sink.packed(list(self._readings.values()), [], self._notes)
        self.run.end, self.run.outcome, self.run.ended_ns = end, outcome, real.time_ns()
        self._sink.run_ended(self.run)


class TranscribedCrossing:
    """One call of a replay. No method raises."""

    def __init__(self, transcript: Transcript, position: Position, call: Call) -> None:
        self.record = CrossingRecord(
            position,
            call.kind,
            span_id=0,
            parent_span_id=0,
            started_ns=real.time_ns(),
            wire=call.wire,
            attributes={**call.attributes, names.ANSWERED: Answered.NOT_ASKED.value},
            name=call.name or call.key,
        )
        self._transcript = transcript
        self._origin: CrossingRecord | None = None
        """What answers."""
        self._streams: set[int] = set()
        """Attempts whose response has not been read to its end, by identity."""
        self._returned = False
        self._items_open = False
        self._finished = False
        self._lock = threading.RLock()

    def answered(self, origin: CrossingRecord, *, moved: bool) -> None:
        """A recorded crossing answers this one."""
        self._origin = origin
        how = Answered.MOVED if moved else Answered.RECORDED
        with self._lock:
            if self._finished:
                return
            # What was asked is this program's; what the response said is what was recorded of it.
            self.record.attributes = {
                **origin.attributes,
                **self.record.attributes,
                names.ANSWERED: how.value,
                names.ANSWERED_BY: f"{origin.span_id:016x}",
            }

    def departed(self, kind: DivergenceClass, error: DivergenceError) -> None:
        """The call has no recorded answer, and raises. One at the wire ends when it does."""
        self.record.attributes[names.ANSWERED] = kind.value
        if not self.record.wire:
            self._items_open = False
            self.closed(Raised(error))

    def asked(self, request: WireRequest) -> Attempt:
        """The program sends an HTTP request."""
        attempt = Attempt(request)
        with self._lock:
            if not self._finished:  # else the replay has ended while another thread was about to ask
                self.record.attempts.append(attempt)
        return attempt

    def served(self, attempt: Attempt, recorded: Attempt) -> None:
        """A recorded response answers it; its chunks are kept as far as they are read."""
        with self._lock:
            if not self._finished:
                attempt.head, attempt.error = recorded.head, recorded.error
                self._streams.add(id(attempt))

    def stream_ended(self, attempt: Attempt, recorded: Attempt, how: End, read: int) -> None:
        """The program has read a response to its end, or left it after so many chunks. Later calls change nothing."""
        with self._lock:
            if id(attempt) not in self._streams:
                return
            self._streams.discard(id(attempt))
            count = len(recorded.chunks) if how is not End.ABANDONED else read
            attempt.chunks, attempt.offsets, attempt.seqs = (
                recorded.chunks[:count],
                recorded.offsets[:count],
                recorded.seqs[: count + (how is not End.ABANDONED)],  # the end has a place too
            )
            attempt.end = how
            if how is End.ABANDONED and recorded.end is not End.ABANDONED:
                attempt.error = None
            if self._returned:
                self.record.end = End.RETURNED if how is End.ENDED else how
                self._finish()

    def gives_items(self) -> None:
        """What this returns is a generator, which has an end of its own."""
        self._items_open = True

    def item(self, outcome: Outcome) -> None:
        """The generator gave an item, ended or raised, or was left."""
        if isinstance(outcome, Returned):
            with self._lock:
                known = self.record.items
                if not self._finished and self._origin is not None and len(known) < len(self._origin.items):
                    known.append(self._origin.items[len(known)])
            return
        self._items_open = False
        self.closed(outcome)

    def closed(self, outcome: Outcome) -> None:
        """The program sees `outcome` now. A stream of a wire crossing may go on."""
        with self._lock:
            if self._finished:
                return
            self._returned = True
            origin = self._origin
            if origin is not None and not was_cancelled(outcome):
                self.record.seq = origin.seq
            if isinstance(outcome, Returned) and (self._streams or self._items_open):
                return
            self._streams.clear()
            self._items_open = False
            self._outcome(outcome)
            self._finish()

    def abandon(self) -> None:
        """The replay ends while this is open."""
        with self._lock:
            if self.record.end is End.UNFINISHED and (self._returned or self._items_open):
                self.record.end = End.ABANDONED
            self._streams.clear()
            self._items_open = False
            self._finish()

    def _outcome(self, outcome: Outcome) -> None:
        record, origin = self.record, self._origin
        record.end = end_of(outcome)
        if origin is not None:
            record.after, record.same = origin.after, origin.same
        if isinstance(outcome, Returned) and not record.wire and origin is not None:
            record.outcome = origin.outcome
        elif isinstance(outcome, Raised) and record.end is End.RAISED:
            if origin is not None and origin.end is End.RAISED and not isinstance(outcome.error, DivergenceError):
                record.outcome = origin.outcome
            else:
                record.outcome = line_of(outcome.error)

    def _finish(self) -> None:
        if self._finished or self._streams or self._items_open:
            return
        self._finished = True
        self.record.ended_ns = real.time_ns()
        self._transcript.finished(self)
