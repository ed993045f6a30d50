"""Frames of one spool file as OTLP, in batches bounded by encoded bytes.

Content comes before what refers to it, as it does in the file. A beginning whose end is in the same batch is left
out: the end holds all of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from otel_agent_replay.recording import names, wire
from otel_agent_replay.recording.frames import Damage, Frame, Harm, as_otlp
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.parts import split
from otel_agent_replay.recording.windows import scan_windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_agent_replay.recording.values import Json

MOST_FRAMES = 5_000
"""Frames of one batch, at most."""

_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"
_PER_SPAN = 6
"""Bytes that a span takes in a request beside itself, at most."""
_BEGUN = {FrameKind.CROSSING: FrameKind.CROSSING_START, FrameKind.RUN: FrameKind.RUN_START}
_STARTS = frozenset(_BEGUN.values())


class Envelope:
    """What is around spans in a request: the resource of the process that recorded them, and our scope."""

    def __init__(self, resource: Mapping[str, Json]) -> None:
        held = {"service.name": "unknown_service", **resource}
        attributes = b"".join(_attribute(name, value) for name, value in held.items())
        scope = _sized(_FIELD_1, names.SCOPE.encode()) + _sized(_FIELD_2, version("otel-agent-replay").encode())
        self._resource = _sized(_FIELD_1, attributes)
        self._scope = _sized(_FIELD_1, scope)
        self.size = len(self._resource) + len(self._scope) + 24

    def request(self, spans: Sequence[bytes]) -> bytes:
        """An ExportTraceServiceRequest."""
        inner: list[bytes] = [self._scope]
        for span in spans:
            inner += (_FIELD_2, wire.varint(len(span)), span)
        size = sum(map(len, inner))
        before = self._resource + _FIELD_2 + wire.varint(size)
        return b"".join((_FIELD_1, wire.varint(len(before) + size), before, *inner))


@dataclass(slots=True)
class Span:
    """One span of a request, and the frame, or part of one, that it is."""

    frame: Frame
    data: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes in a request."""
        return len(self.data) + _PER_SPAN


@dataclass(slots=True)
class Batch:
    """Consecutive frames of a file."""

    begin: int
    end: int = 0
    """Offset in the file that all of it lies before."""
    frames: int = 0
    bytes: int = 0
    """That they take in the file."""
    size: int = 0
    """Bytes of the spans in a request."""
    spans: list[Span] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    """Stretches that give no frame and never will."""
    newer: bool = False
    """What follows is for a later version of this package."""
    begun: dict[tuple[int, int, FrameKind], Frame] = field(default_factory=dict)
    """Beginnings whose ends have not come yet; they are encoded at last, because most of them never are."""

    def add(self, frame: Frame, spans: list[Span]) -> None:
        """Add a frame that is no beginning; where it is an end, its beginning goes."""
        self._count(frame)
        if (kind := _BEGUN.get(frame.kind)) is not None:
            before = self.begun.pop((frame.trace_id, frame.span_id, kind), None)
            if before is not None:
                self.size -= _bound(before)
        self.spans += spans
        self.size += sum(span.size for span in spans)

    def add_beginning(self, frame: Frame) -> None:
        """Add a beginning. A later one of the same span holds all of an earlier one."""
        self._count(frame)
        key = (frame.trace_id, frame.span_id, frame.kind)
        before = self.begun.get(key)
        self.size += _bound(frame) - (_bound(before) if before is not None else 0)
        self.begun[key] = frame

    def close(self, most: int) -> Batch:
        """Encode the beginnings that are left: they follow the content that they refer to."""
        for frame in self.begun.values():
            self.spans += encoded(frame, most)
        self.begun.clear()
        return self

    def _count(self, frame: Frame) -> None:
        self.end = frame.offset + frame.size
        self.frames += 1
        self.bytes += frame.size


def batches(descriptor: int, begin: int, end: int, most: int, *, written: bool) -> Iterator[Batch]:
    """Batches of a file from one offset to another.

    Args:
        descriptor: the file, open for reading.
        begin: offset of the first frame.
        end: how long the file is.
        most: bytes of the spans of a batch.
        written: whether it still has a writer, so that its tail may be no more than not yet there.
    """
    batch = Batch(begin, begin)
    for item in scan_windows(partial(_read, descriptor), begin, end):
        if isinstance(item, Damage):
            if item.harm is Harm.NEWER or item.harm is Harm.FOREIGN:
                batch.newer = True
                break
            if written and item.offset + item.length == end:
                break
            batch.damages.append(item)
            batch.end = item.offset + item.length
            continue
        begins = item.kind in _STARTS
        spans = [] if begins else encoded(item, most)
        size = _bound(item) if begins else sum(span.size for span in spans)
        if batch.frames and (batch.size + size > most or batch.frames >= MOST_FRAMES):
            yield batch.close(most)
            batch = Batch(item.offset, item.offset)
        if begins:
            batch.add_beginning(item)
        else:
            batch.add(item, spans)
    if batch.end > batch.begin or batch.newer:
        yield batch.close(most)


def encoded(frame: Frame, most: int) -> list[Span]:
    """A frame as spans, each below `most` bytes where parts can help."""
    data = as_otlp(frame)
    if len(data) + _PER_SPAN <= most:
        return [Span(frame, data)]
    return [Span(part, as_otlp(part)) for part in split(frame, most - _PER_SPAN)]


def _bound(frame: Frame) -> int:
    """More bytes than a frame takes as a span, told without encoding it: the names are what the file leaves out."""
    return frame.size + len(frame.name) + 128 + sum(len(name) + 24 for name in frame.attributes)


def _read(descriptor: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def open_file(path: Path) -> int | None:
    """A descriptor for reading; None where the file is gone. Raises OSError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _attribute(name: str, value: Json) -> bytes:
    held = value if isinstance(value, str | bool | int | float) else _listed(value)
    return _FIELD_1 + wire.attribute(name, held)[1:]  # a field 9 of a span, a field 1 of a resource


def _listed(value: Json) -> list[str] | str:
    return [str(item) for item in value] if isinstance(value, list) else str(value)


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + wire.varint(len(data)) + data
