"""Frames become Recordings: in any order, each any number of times, and whatever is lacking is said, not raised.

Request bodies stay references to content until they are read: in a chat of 1,000 turns they are a thousand times
what is stored of them. So what a recording takes in memory grows with its frames.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from otel_agent_replay.errors import UnreadableRecording
from otel_agent_replay.recording import names, series
from otel_agent_replay.recording.contents import ContentReader, MissingContent
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.exact import loads
from otel_agent_replay.recording.frames import payload_digest
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.parts import join_pieces, payload_size, whole_payload
from otel_agent_replay.recording.payload import references, restore
from otel_agent_replay.recording.tally import end_of, number, run_id_of
from otel_agent_replay.recording.values import (
    CrossingRecord,
    End,
    Kind,
    Note,
    NoteKind,
    OrderEvent,
    ReadingRecord,
    Recording,
    RunRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.recording.values import Json

T = TypeVar("T")

MOST_GAPS = 20
"""So many lost crossings or readings of one run are named; of more only the count is."""

_OURS = "agent_replay."


def assemble(frames: Iterable[Frame], run_id: str | None = None) -> dict[str, Recording]:
    """The recordings that frames hold, by run id; only one where `run_id` is given."""
    assembler = Assembler(run_id)
    for frame in frames:
        assembler.add(frame)
    return assembler.recordings()


class Assembler:
    """Takes frames one by one. Give it a run id to keep that run alone: frames of others are not looked into."""

    def __init__(self, run_id: str | None = None) -> None:
        self._only = run_id
        self._runs: dict[str, _Run] = {}

    def add(self, frame: Frame) -> None:
        """Take a frame. One that belongs to no run is left out."""
        run_id = run_id_of(frame)
        if run_id and (self._only is None or run_id == self._only):
            run = self._runs.get(run_id)
            if run is None:
                run = self._runs[run_id] = _Run(frame.trace_id, run_id)
            run.add(frame)

    def recordings(self) -> dict[str, Recording]:
        """What has come so far, by run id. May be asked again when more has come."""
        return {run_id: run.recording() for run_id, run in self._runs.items()}


@dataclass(slots=True)
class _Span:
    """The frames of one span: what began, and what ended. Whole ones replace cut ones, and ends their beginnings."""

    start: Frame | None = None
    end: Frame | None = None

    def add(self, frame: Frame, *, ends: bool) -> None:
        if ends:
            if self.end is None or _payload_fault(self.end):
                self.end = frame
            if not _payload_fault(self.end):
                self.start = None
        elif (self.end is None or _payload_fault(self.end)) and (
            self.start is None or _payload_fault(self.start) or _payload_size(frame) > _payload_size(self.start)
        ):
            self.start = frame  # each further attempt of a call is written with those before it


@dataclass(slots=True)
class _Run:
    """The frames of one run."""

    trace_id: int
    run_id: str
    own: _Span = field(default_factory=_Span)
    crossings: dict[int, _Span] = field(default_factory=dict)
    readings: dict[int, _Span] = field(default_factory=dict)
    pieces: dict[str, bytes] = field(default_factory=dict)

    def add(self, frame: Frame) -> None:
        kind = frame.kind
        if kind is FrameKind.CONTENTS:
            self._add_contents(frame)
        elif kind in (FrameKind.RUN, FrameKind.RUN_START):
            self.own.add(frame, ends=kind is FrameKind.RUN)
        elif kind in (FrameKind.CROSSING, FrameKind.CROSSING_START):
            self.crossings.setdefault(frame.span_id, _Span()).add(frame, ends=kind is FrameKind.CROSSING)
        elif kind is FrameKind.READINGS:
            self.readings.setdefault(frame.span_id, _Span()).add(frame, ends=True)

    def _add_contents(self, frame: Frame) -> None:
        for name, value in frame.attributes.items():
            if not isinstance(value, str):
                continue
            if name.startswith(names.CONTENT_PREFIX):
                self.pieces.setdefault(name.removeprefix(names.CONTENT_PREFIX), value.encode("utf-8", "replace"))
            elif name.startswith(names.CONTENT_BINARY_PREFIX):
                try:
                    piece = b64decode(value, validate=True)
                except ValueError:
                    continue  # whatever refers to it says that it is not there
                self.pieces.setdefault(name.removeprefix(names.CONTENT_BINARY_PREFIX), piece)

    def recording(self) -> Recording:
        missing: list[str] = []
        join_pieces(self.pieces)
        run = self._run_record(missing)
        crossings = self._crossings(missing)
        readings, order, notes = self._packed(missing)
        missing += _shortened(_lost_crossings(crossings), "crossings are lacking")
        missing += _shortened(_lost_readings(readings), "stretches of readings are lacking")
        return Recording(run, crossings, readings, order, notes, missing)

    def _payload(self, frame: Frame) -> dict[str, Json]:
        """The payload of a frame, put together where it came in parts. Raises UnreadableRecording."""
        payload = whole_payload(_payload(frame), self.pieces)
        if not isinstance(payload, dict):
            raise MissingContent("its parts make no JSON object")
        return payload

    def _run_record(self, missing: list[str]) -> RunRecord:
        frame = self.own.end or self.own.start
        if frame is None:
            missing.append("The frames that say what was run are lost.")
            every = [span.end or span.start for span in (*self.crossings.values(), *self.readings.values())]
            began = min((frame.started_ns for frame in every if frame is not None), default=0)
            return RunRecord(self.trace_id, int(self.run_id[33:], 16), 0, "", began, {}, {})
        payload: dict[str, Any] = {}
        for source in (self.own.end, self.own.start):
            if source is None or payload:
                continue
            try:
                payload = self._payload(source)
            except UnreadableRecording as error:
                missing.append(f"What was run: {error}")
        entry, world, outcome = (payload.get(name) for name in ("entry", "world", "outcome"))
        return RunRecord(
            frame.trace_id,
            frame.span_id,
            frame.parent_span_id,
            frame.name,
            frame.started_ns,
            entry if isinstance(entry, dict) else {},
            world if isinstance(world, dict) else {},
            frame.ended_ns,
            end_of(str(frame.attributes.get(names.END, ""))),
            outcome if isinstance(outcome, dict) else {},
        )

    def _crossings(self, missing: list[str]) -> list[CrossingRecord]:
        reader = ContentReader(self.pieces)
        payloads: dict[int, dict[str, Json]] = {}
        faults: dict[int, str] = {}
        for span_id, span in self.crossings.items():
            for frame in (span.start, span.end):
                if frame is None:
                    continue
                try:
                    payload = self._payload(frame)
                    for ref in references(payload, span_id):
                        reader.add_rope(ref)
                    payloads[span_id] = payload
                except UnreadableRecording as error:
                    faults[span_id] = str(error)
        records: list[CrossingRecord] = []
        for span_id, span in self.crossings.items():
            frame = span.end or span.start
            base = _base(frame) if frame is not None else None
            if base is None:
                missing.append(f"The crossing {span_id:016x} is of a kind that this version does not know.")
                continue
            if span_id not in faults:
                try:
                    records.append(_restored(payloads.pop(span_id), base, reader))
                    continue
                except UnreadableRecording as error:
                    faults[span_id] = str(error)
            missing.append(f"{base.position}: {faults[span_id]}")
            # It keeps its position. Having no outcome, it must not pass for a call that returned None.
            base.end = End.UNFINISHED
            records.append(base)
        records.sort(
            key=lambda record: (record.started_ns, record.position.lane, record.position.ordinal, record.span_id)
        )
        return records

    def _packed(self, missing: list[str]) -> tuple[list[ReadingRecord], list[OrderEvent], list[Note]]:
        readings: list[ReadingRecord] = []
        order: list[OrderEvent] = []
        notes: list[Note] = []
        frames = [span.end for span in self.readings.values() if span.end is not None]
        for frame in sorted(frames, key=lambda frame: (frame.started_ns, frame.span_id)):
            try:
                payload = self._payload(frame)
                readings += [_reading(row) for row in _rows(payload, "readings")]
                order += [OrderEvent(*_typed(row, str, str, int, int)) for row in _rows(payload, "order")]
                for kind, what, where, incomplete in (
                    _typed(row, str, str, str, bool) for row in _rows(payload, "notes")
                ):
                    notes.append(Note(_note_kind(kind), what, where, incomplete))
            except UnreadableRecording as error:
                missing.append(f"Readings, order and notes: {error}")
        order.sort(key=lambda event: event.seq)
        return _merged(readings), order, notes


def _restored(payload: dict[str, Json], base: CrossingRecord, reader: ContentReader) -> CrossingRecord:
    for ref in references(payload, base.span_id):
        reader.check(ref)
    return restore(payload, base, reader.resolve)


def _base(frame: Frame) -> CrossingRecord | None:
    """A crossing as far as its attributes tell."""
    attributes = frame.attributes
    try:
        kind = Kind(str(attributes.get(names.KIND)))
    except ValueError:
        return None
    lane, key = str(attributes.get(names.LANE, "")), str(attributes.get(names.KEY, ""))
    seq = attributes.get(names.SEQ)
    return CrossingRecord(
        Position(lane, key, number(frame, names.ORDINAL)),
        kind,
        frame.span_id,
        frame.parent_span_id,
        frame.started_ns,
        end=end_of(str(attributes.get(names.END, ""))) if frame.kind is FrameKind.CROSSING else End.UNFINISHED,
        ended_ns=frame.ended_ns,
        seq=seq if type(seq) is int else None,
        attributes={
            name: value for name, value in attributes.items() if not name.startswith(_OURS) or name in names.KEPT
        },
        name=frame.name,
    )


def _payload_size(frame: Frame) -> int:
    return payload_size(str(frame.attributes.get(names.PAYLOAD, "")))


def _payload_fault(frame: Frame) -> str:
    """What is wrong with the payload of a frame, as a clause; empty where nothing is."""
    text = frame.attributes.get(names.PAYLOAD)
    if number(frame, names.SCHEMA) > names.SCHEMA_VERSION:
        return f"it was written by a later version (schema {number(frame, names.SCHEMA)})"
    if not isinstance(text, str):
        return "its payload is not there"
    data = text.encode("utf-8", "replace")
    length = frame.attributes.get(names.PAYLOAD_LENGTH)
    if len(data) != length:
        return f"{len(data)} of the {length} bytes of its payload are there"
    digest = frame.attributes.get(names.PAYLOAD_DIGEST)
    if digest is not None and digest != payload_digest(data):
        return "its payload is not the one that was recorded"
    return ""


def _payload(frame: Frame) -> dict[str, Json]:
    fault = _payload_fault(frame)
    payload: Json = None
    if not fault:
        try:
            payload = loads(str(frame.attributes[names.PAYLOAD]))
        except (ValueError, RecursionError) as error:
            fault = f"its payload is no JSON ({error})"
    if not fault and not isinstance(payload, dict):
        fault = "its payload is no JSON object"
    if fault or not isinstance(payload, dict):
        remedy = "a limit on attributes on its way is the usual cause, so raise it and record the run again"
        raise UnreadableRecording("A frame", fault, remedy)
    return payload


def _rows(payload: dict[str, Json], name: str) -> list[Any]:
    rows = payload.get(name, [])
    return rows if isinstance(rows, list) else [rows]


def _reading(row: Any) -> ReadingRecord:
    packed = row[4] if isinstance(row, list) and len(row) == 5 else None
    try:
        values = series.unpack(packed)
    except ValueError as error:
        raise UnreadableRecording(
            "A frame", f"{str(row)[:80]!r} stands in it ({error})", "record the run again"
        ) from None
    lane, source, site, first = _typed(row[:4], str, str, str, int)
    return ReadingRecord(lane, source, site, first, values)


def _typed(row: Any, *types: type) -> list[Any]:
    if not isinstance(row, list) or [type(value) for value in row] != list(types):
        raise UnreadableRecording("A frame", f"{str(row)[:80]!r} stands in it", "record the run again")
    return row


def _note_kind(text: str) -> NoteKind:
    try:
        return NoteKind(text)
    except ValueError:
        return NoteKind.FAULT


def _merged(readings: list[ReadingRecord]) -> list[ReadingRecord]:
    """Readings of one call site joined where one record goes on with what another ends with."""
    readings.sort(key=lambda reading: (reading.lane, reading.source, reading.site, reading.first))
    merged: list[ReadingRecord] = []
    for reading in readings:
        before = merged[-1] if merged else None
        end = before.first + len(before.values) if before is not None else 0
        if before is not None and _series(before) == _series(reading) and reading.first <= end:
            before.values += reading.values[end - reading.first :]
        else:
            merged.append(ReadingRecord(*_series(reading), reading.first, list(reading.values)))
    return merged


def _series(reading: ReadingRecord) -> tuple[str, str, str]:
    return reading.lane, reading.source, reading.site


def _lost_readings(readings: list[ReadingRecord]) -> list[str]:
    found: list[str] = []
    for (lane, source, site), stretches in groupby(readings, key=_series):
        expected = 0
        for reading in stretches:
            if reading.first > expected:
                found.append(f"{lane} {source} at {site}: readings {expected} to {reading.first - 1} are lost.")
            expected = max(expected, reading.first + len(reading.values))
    return found


def _lost_crossings(crossings: list[CrossingRecord]) -> list[str]:
    """Positions before the last of a lane and key that nothing stands at, and those that two stand at."""
    series: dict[tuple[str, str], dict[int, int]] = {}
    for record in crossings:
        counts = series.setdefault((record.position.lane, record.position.key), {})
        counts[record.position.ordinal] = counts.get(record.position.ordinal, 0) + 1
    found: list[str] = []
    for (lane, key), counts in series.items():
        found += (f"{Position(lane, key, at)} stands in the recording {n} times." for at, n in counts.items() if n > 1)
        expected = 0
        for ordinal in sorted(counts):
            if ordinal > expected:
                span = f"#{expected}" if ordinal == expected + 1 else f"#{expected} to #{ordinal - 1}"
                found.append(f"{lane} {key} {span}: its frame is lost.")
            expected = ordinal + 1
    return found


def _shortened(sentences: list[str], what: str) -> list[str]:
    if len(sentences) <= MOST_GAPS:
        return sentences
    return [*sentences[:MOST_GAPS], f"{len(sentences) - MOST_GAPS} more {what}."]
