"""Writes one run into the spool, and shows it to other OpenTelemetry backends as live spans."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import orjson
from opentelemetry.trace import NonRecordingSpan

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.recording import exact, masked, payload
from otel_agent_replay.recording.contents import ContentWriter
from otel_agent_replay.recording.crossing_bytes import contents_bytes, crossing_bytes
from otel_agent_replay.recording.frames import encode, readings_frame, run_frame
from otel_agent_replay.recording.masked import MaskedCrossing
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import End, Note, NoteKind
from otel_agent_replay.telemetry import entropy, forks, live
from otel_agent_replay.telemetry.behind import LARGE, on_event_loop
from otel_agent_replay.telemetry.spool import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import Span

    from otel_agent_replay.recording.masking import Masker
    from otel_agent_replay.recording.values import (
        Attribute,
        CrossingRecord,
        Json,
        OrderEvent,
        ReadingRecord,
        RunRecord,
    )
    from otel_agent_replay.telemetry.spool import SpoolWriter

PACKED_AT = 4096
"""Readings that wait for a frame to be written with; more are written by themselves."""


_thread = threading.local()
"""`busy` is true while this thread does a job of some run."""


class _Open:
    """A crossing that has not ended: its live span, and the references that its frames have in common."""

    __slots__ = ("mask", "refs", "requests", "span")

    def __init__(self, masker: Masker | None) -> None:
        self.span: Span | None = None
        self.mask = None if masker is None else MaskedCrossing(masker)
        self.refs: dict[str, tuple[bytes, Json]] = {}
        self.requests: dict[int, dict[str, Json]] = {}
        """What is composed of each attempt's request, by its number."""


class SpoolRecorder:
    """The sink of one run. Thread-safe; no method raises.

    Whatever a frame refers to is written before it, with it, in one append: a lock is held from the moment that
    content is first referred to until it is on disk. A finaliser or signal handler that comes back here while
    its own thread is at work is put off until that is done.

    Args:
        writer: appends to the spool.
        shown: whether what is recorded has live spans, for others to see. A replay has none: nothing of it happened.
        masker: masks all that is written and shown; nothing is masked without one. What a run was begun with
            (`entry` and `world`) is to be masked already, as it is signed.

    Attributes:
        lost: crossings and readings that could not be written.
    """

    rank = 1

    def __init__(self, writer: SpoolWriter, masker: Masker | None = None, *, shown: bool = True) -> None:
        self.lost = 0
        self._writer = writer
        self._masker = masker
        self._contents = ContentWriter()
        self._tracer = live.LiveTracer()
        self._shown = shown
        self._run: RunRecord | None = None
        self._root: Span | None = None
        self._open: dict[int, _Open] = {}
        self._waiting: deque[tuple[list[ReadingRecord], list[OrderEvent], list[Note]]] = deque()
        self._waiting_count = 0
        self._stopped = False
        self._lock = threading.RLock()
        self._held = False
        self._busy = False
        self._deferred: deque[Callable[[], None]] = deque()
        if masker is not None:
            masker.note = lambda what: self._note(Note(NoteKind.FAULT, what))
            for what in masker.said:
                masker.note(what)
        forks.watch(self)

    def run_started(self, run: RunRecord) -> Callable[[], Callable[[], None]] | None:
        """The run began; its ids are set. Gives what makes its span current."""
        self._run = run
        try:
            self._root = self._tracer.start_run(run) if self._shown else None
            self._locked(lambda: self._append(encode(run_frame(run, FrameKind.RUN_START)), {}, vital=True))
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing the start of a run", error, self._note)
        return live.entering(self._root) if self._root is not None else None

    def run_ended(self, run: RunRecord) -> None:
        """The run ended. All of it is on disk when this returns, or has been lost and is said to be."""
        try:
            if self._masker is not None:
                run.outcome = self._masker.ended(run.outcome)
            stopped = self._stopped
            self._locked(lambda: self._append(encode(run_frame(run, FrameKind.RUN)), {}, vital=True))
            if self._stopped and not stopped:  # there was no room for the readings before it
                self._locked(lambda: self._append(encode(run_frame(run, FrameKind.RUN)), {}, vital=True))
            self._writer.drain()
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing the end of a run", error, self._note)
        for kept in list(self._open.values()):
            self._end_span(kept.span, run.ended_ns)
        self._open.clear()
        error_type = _error_type(run.outcome.get("exception")) if run.end is End.RAISED else ""
        self._end_span(self._root, run.ended_ns, error_type)

    def opened(
        self, crossing: CrossingRecord, parent: CrossingRecord | None
    ) -> Callable[[], Callable[[], None]] | None:
        """A crossing is about to be made: sets its ids, and writes its input unless the wire is to tell it.

        Gives what makes its span current beneath it; None for boundaries that are no span for others.
        """
        span = None
        try:
            crossing.parent_span_id = parent.span_id if parent is not None else self._required_run().span_id
            kept = _Open(self._masker)
            if self._masker is not None:
                crossing.name = self._masker.text(crossing.name)
                crossing.attributes = self._masker.attributes(crossing.attributes) or crossing.attributes
            if crossing.kind in live.LIVE_KINDS:
                span = kept.span = self._tracer.start(crossing)
                if span is None:
                    span = NonRecordingSpan(self._tracer.context_of(crossing.span_id))
            else:
                crossing.span_id = entropy.span_id()
            self._open[crossing.span_id] = kept
            if not crossing.wire:
                self._locked(partial(self._crossing, crossing, kept, whole=False))
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing what a crossing was asked", error, self._note)
        return live.entering(span) if span is not None else None

    def asked(self, crossing: CrossingRecord) -> None:
        """A wire crossing sends an attempt: writes all that is known of the crossing, before a byte leaves."""
        try:
            kept = self._open.get(crossing.span_id) or _Open(self._masker)
            self._locked(partial(self._crossing, crossing, kept, whole=False))
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing a request", error, self._note)

    def described(self, crossing: CrossingRecord, attributes: Mapping[str, Attribute]) -> None:
        """Semantic attributes, for the live span and for the record."""
        try:
            if self._masker is not None:
                attributes = self._masker.attributes(attributes) or attributes
            crossing.attributes.update(attributes)
            kept = self._open.get(crossing.span_id)
            if kept is not None and kept.span is not None:
                live.describe(kept.span, attributes)
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("describing a crossing", error, self._note)

    def finished(self, crossing: CrossingRecord) -> None:
        """A crossing ended: writes all of it, and ends its live span."""
        kept = self._open.pop(crossing.span_id, None) or _Open(self._masker)
        error_type = ""
        try:
            if not crossing.span_id:  # its beginning could not be written
                crossing.span_id, crossing.parent_span_id = entropy.span_id(), self._required_run().span_id
            if crossing.end is End.RAISED:
                error_type = str(crossing.attributes.setdefault("error.type", _error_type(crossing.outcome)))
            self._locked(partial(self._crossing, crossing, kept, whole=True))
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing how a crossing ended", error, self._note)
        self._end_span(kept.span, crossing.ended_ns, error_type)

    def begun(self, crossing: CrossingRecord, parent: CrossingRecord | None) -> None:
        """A crossing of a replay is made: sets its ids. Nothing is written yet, and it has no live span."""
        crossing.span_id = entropy.span_id()
        crossing.parent_span_id = parent.span_id if parent is not None else self._required_run().span_id

    def replayed(self, crossing: CrossingRecord) -> None:
        """A crossing of a replay has ended: writes all of it."""
        try:
            if self._masker is not None:
                crossing.name = self._masker.text(crossing.name)
                crossing.attributes = self._masker.attributes(crossing.attributes) or crossing.attributes
            if crossing.end is End.RAISED:
                crossing.attributes.setdefault("error.type", _error_type(crossing.outcome))
            self._locked(lambda: self._crossing(crossing, _Open(self._masker), whole=True))
        except Exception as error:  # noqa: BLE001 (recording never hurts the replay)
            fault("writing a crossing of a replay", error, self._note)

    def packed(self, readings: list[ReadingRecord], order: list[OrderEvent], notes: list[Note]) -> None:
        """Readings, order events and notes since the last call; written with the next frame of any kind."""
        if self._stopped:
            self.lost += len(readings)
            self._waiting.append(([], [], notes))
            return
        self._waiting.append((readings, order, notes))
        self._waiting_count += sum(len(reading.values) for reading in readings) + len(order) + len(notes)
        if self._waiting_count >= PACKED_AT:
            self.flush()

    def flush(self) -> None:
        """Write the readings that wait."""
        try:
            self._locked(lambda: self._append([], {}))
        except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
            fault("writing readings", error, self._note)

    def hold(self, patience: float) -> None:
        self._held = self._lock.acquire(timeout=patience)

    def go_on(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()

    def begin_again(self) -> None:
        self._lock = threading.RLock()
        self._held = self._busy = False
        self._deferred.clear()
        self._waiting.clear()  # the parent writes them

    def _locked(self, job: Callable[[], None]) -> None:
        """Do a job of this run while no other is half done."""
        within = getattr(_thread, "busy", False)
        if not self._lock.acquire(timeout=0 if within else PATIENCE):
            if not within:
                raise TimeoutError("another thread's write does not end")
            self._deferred.append(job)  # waiting here for another run, inside a job of one, could be for ever
            return
        try:
            if self._busy:
                self._deferred.append(job)
                return
            self._busy = _thread.busy = True
            try:
                job()
            finally:
                try:
                    while self._deferred:
                        self._deferred.popleft()()
                finally:
                    self._busy, _thread.busy = False, within
        finally:
            self._lock.release()

    def _crossing(self, record: CrossingRecord, kept: _Open, *, whole: bool) -> None:
        """Compose a crossing and write it, with the content that is new in it."""
        if self._stopped:
            self.lost += 1
            return
        pieces: dict[str, bytes] = {}
        stream, prefix = f"{record.position.lane}\0{record.position.key}", payload.ident(record.span_id, "")

        def refer(slot: str, body: bytes) -> Json:
            known = kept.refs.get(slot)
            if known is not None and known[0] == body:
                return known[1]
            name = prefix + slot
            ref, fresh = self._contents.refer(f"{stream}\0{slot[-1]}", name, body)
            pieces.update(fresh)
            ref = payload.unnamed(ref, name)
            kept.refs[slot] = (body, ref)
            return ref

        try:
            mask = None if kept.mask is None else kept.mask.of(stream)
            data = _json(payload.compose(record, refer, kept.requests, mask))
            self._append(crossing_bytes(self._required_run(), record, data, whole=whole), pieces)
        except BaseException:
            kept.requests.clear()
            kept.refs.clear()  # what was referred to is not on disk: nothing may refer to it any more
            self._contents.reset()
            raise

    def _append(self, frame: list[bytes], pieces: Mapping[str, bytes], *, vital: bool = False) -> None:
        """Write contents, then whatever waits, then the frame (its bytes; none for none), all in one append."""
        if self._stopped and not vital:
            self.lost += 1
            self._waiting.append(([], [], self._take()[2]))
            return
        if self._stopped:  # of what waits only what is said of the run has room beside its end
            self._waiting.append(([], [], self._take()[2]))
        if pieces or self._waiting:
            run, now = self._required_run(), real.time_ns()
            if self._waiting:
                frame = [*self._drained(now), *frame]
            size = sum(map(len, pieces.values()))
            if size > LARGE and on_event_loop():
                self._writer.write_behind(lambda: [*contents_bytes(run, pieces, now), *frame], size, self._failed)
                return
            frame = [*contents_bytes(run, pieces, now), *frame]
        if frame:
            self._writer.write(frame, self._failed, vital=vital)

    def _take(self) -> tuple[list[ReadingRecord], list[OrderEvent], list[Note]]:
        """All that waits, which no longer does."""
        readings: list[ReadingRecord] = []
        order: list[OrderEvent] = []
        notes: list[Note] = []
        while self._waiting:
            more = self._waiting.popleft()
            readings += more[0]
            order += more[1]
            notes += more[2]
        self._waiting_count = 0
        return readings, order, notes

    def _drained(self, now: int) -> list[bytes]:
        """A frame of all that waits; none where nothing does."""
        readings, order, notes = self._take()
        if not (readings or order or notes):
            return []
        run, span_id = self._required_run(), entropy.span_id()
        try:
            if self._masker is not None:
                readings = masked.readings(readings, self._masker)
                notes = [masked.note(found, self._masker) for found in notes]
            return encode(readings_frame(run, readings, order, notes, span_id=span_id, now_ns=now))
        except Exception as error:  # noqa: BLE001 (a crossing is not lost with the readings before it)
            fault("writing readings", error, self._note)
            return []

    def _failed(self) -> None:
        """Frames could not be written: nothing more is recorded of this run, and its end says so if it can."""
        self.lost += 1
        if not self._stopped:
            self._stopped = True
            why = f" ({self._writer.why})" if self._writer.why else ""
            what = f"frames could not be written to the spool{why}"
            self._note(Note(NoteKind.FAULT, what, str(self._writer.directory)))

    def _note(self, note: Note) -> None:
        self._waiting.append(([], [], [note]))

    def _required_run(self) -> RunRecord:
        if self._run is None:
            raise RuntimeError("the run has not started")
        return self._run

    def _end_span(self, span: Span | None, ended_ns: int, error_type: str = "") -> None:
        if span is None:
            return
        try:
            live.end(span, ended_ns, error=error_type)
        except Exception as error:  # noqa: BLE001 (a span processor of others may raise)
            fault("ending a live span", error, self._note)


def _json(value: dict[str, Json]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return exact.dumps(value).encode()


def _error_type(outcome: Json) -> str:
    """Class of the exception that an outcome stands for, as `error.type` has it."""
    if isinstance(outcome, dict):  # as the codec writes an exception, or the run's own `exception`
        outcome = outcome.get("c") or outcome.get("type")
    if not isinstance(outcome, str) or not outcome:
        return "_OTHER"
    module, found, name = outcome.partition(": ")[0].partition(":")
    return f"{module}.{name}" if found and module != "builtins" else name or module
