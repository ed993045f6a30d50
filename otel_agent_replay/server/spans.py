"""OTLP traces as rows of the landing table, as the Collector's ClickHouse exporter writes them.

The bytes of a request come from anybody. What is no protobuf is refused whole; a span with ids, times or sizes
that cannot be is left out and counted, and the others are kept. A string goes from the request into its row as the
bytes that it is; where these are no UTF-8 they get replacement characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from otel_agent_replay.recording import names
from otel_agent_replay.recording.wire import BYTES, FIXED64, VARINT, fields, varint
from otel_agent_replay.server import limits
from otel_agent_replay.server.span_schema import parse
from otel_agent_replay.server.values import A_SPAN, AN_EVENT, Budget, SpanError, key_value, messages, text_of, utf8
from otel_agent_replay.store.rows import as_text

if TYPE_CHECKING:
    from otel_agent_replay.recording.wire import Value

PARTED = b'{"$parts":'
"""How a payload begins that went to pieces of content (`recording.parts`)."""

SMALL = 1 << 20
"""Bytes of a span that the protobuf library reads; a larger one is read by our own reader."""

_KINDS = tuple(
    bytes((len(kind),)) + kind for kind in (b"Unspecified", b"Internal", b"Server", b"Client", b"Producer", b"Consumer")
)
_STATUSES = tuple(bytes((len(status),)) + status for status in (b"Unset", b"Ok", b"Error"))
_UINT64 = Struct("<Q").pack
_NO_EVENTS, _NO_LINKS = b"\0" * 3, b"\0" * 4
_EMPTY = b"\0"
_LAST_NS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """What a frame of ours says that it is: the whole of one thing in a recording."""

    frame: str
    """Of what kind it is, as the store names it."""
    run_id: str
    span_id: str
    digest: str = field(default="", compare=False)
    """Of its payload, as it says itself; empty where that went to pieces, which are others for another receiver."""


@dataclass(frozen=True, slots=True)
class Row:
    """One span as a row."""

    pieces: tuple[bytes, ...]
    """RowBinary of the landing table's columns."""
    claim: Claim | None


@dataclass(slots=True)
class Batch:
    """What a request came to."""

    rows: list[Row] = field(default_factory=list)
    size: int = 0
    """Bytes of the rows."""
    accepted: int = 0
    rejected: int = 0
    why: str = ""
    """What was wrong with the first span that was left out; a clause."""
    budget: Budget = field(default_factory=Budget)

    def reject(self, why: str) -> None:
        """Leave a span out."""
        self.rejected += 1
        self.why = self.why or why


def decode(data: bytes) -> Batch:
    """The rows of an ExportTraceServiceRequest. Raises MalformedError where it is none."""
    batch = Batch()
    for resource_spans in messages(memoryview(data), 1):  # a view: what is large is copied once, as a span
        _resource_spans(batch, resource_spans)
    return batch


def _resource_spans(batch: Batch, data: memoryview) -> None:
    batch.budget.spend(A_SPAN)
    shared, why = _EMPTY + _EMPTY, ""
    try:
        for resource in messages(data, 1):
            attributes = _attributes(batch, bytes(resource), 1)
            shared = _sized(attributes.get(b"service.name", b"")) + _map(attributes)
    except SpanError as error:
        why = f"its resource has {error}"
    for scope_spans in messages(data, 2):
        batch.budget.spend(A_SPAN)
        scope = _EMPTY + _EMPTY
        for message in messages(scope_spans, 1):
            scope = _scope(bytes(message))
        for span in messages(scope_spans, 2):
            batch.budget.spend(A_SPAN)
            try:
                if why:
                    raise SpanError(why)
                row = _row(batch, bytes(span), shared, scope)
            except SpanError as error:
                batch.reject(str(error))
                continue
            batch.accepted += 1
            batch.size += sum(map(len, row.pieces))
            batch.rows.append(row)


def _scope(data: bytes) -> bytes:
    held = {number: value for number, kind, value in fields(data, 0, len(data)) if kind == BYTES}
    return _text(held.get(1, b""), "a scope's name") + _text(held.get(2, b""), "a scope's version")


@dataclass(slots=True)
class Parts:
    """The fields of a span, unchecked."""

    trace_id: bytes = b""
    span_id: bytes = b""
    trace_state: bytes = b""
    parent: bytes = b""
    name: bytes = b""
    kind: int = 0
    started: int = 0
    ended: int = 0
    status: bytes = b""
    attributes: dict[bytes, bytes] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)


def read_small(budget: Budget, data: bytes) -> Parts:
    """The fields, by the protobuf library. Raises SpanError, MalformedError."""
    span = parse(data)
    if len(span.attributes) > limits.ATTRIBUTES:
        raise _too_many()
    budget.spend(len(span.attributes))
    attributes: dict[bytes, bytes] = {}
    for pair in span.attributes:
        value = pair.value
        form = value.WhichOneof("value")
        if form == "string_value":
            text = value.string_value
            if not text.isascii():
                text = utf8(text)
        elif form == "int_value":
            text = b"%d" % value.int_value
        elif form == "double_value":
            text = as_text(value.double_value).encode()
        elif form == "bool_value":
            text = b"true" if value.bool_value else b"false"
        else:
            text = b"" if form is None else text_of(budget, value.SerializeToString())
        attributes[pair.key] = text
    return Parts(
        span.trace_id,
        span.span_id,
        span.trace_state,
        span.parent_span_id,
        span.name,
        span.kind,
        span.started,
        span.ended,
        span.status,
        attributes,
        list(span.events),
        list(span.links),
    )


def read_large(budget: Budget, data: bytes) -> Parts:
    """The same by our own reader, whose memory is bounded by what it is given. Raises SpanError, MalformedError."""
    parts = Parts()
    count = 0
    for number, kind, value in fields(data, 0, len(data)):
        if number == 9 and kind == BYTES:
            count += 1
            if count > limits.ATTRIBUTES:
                raise _too_many()
            key, text = key_value(budget, value)  # type: ignore[arg-type]
            parts.attributes[key] = text
        elif number == 11 and kind == BYTES:
            parts.events.append(value)  # type: ignore[arg-type]
        elif number == 13 and kind == BYTES:
            parts.links.append(value)  # type: ignore[arg-type]
        elif (known := _FIELDS.get((number, kind))) is not None:
            setattr(parts, known, int.from_bytes(value, "little") if kind == FIXED64 else value)  # type: ignore[arg-type]
    return parts


_FIELDS = {
    (1, BYTES): "trace_id",
    (2, BYTES): "span_id",
    (3, BYTES): "trace_state",
    (4, BYTES): "parent",
    (5, BYTES): "name",
    (6, VARINT): "kind",
    (7, FIXED64): "started",
    (8, FIXED64): "ended",
    (15, BYTES): "status",
}
"""Number and wire type of a span's single fields; in another wire type one is ignored, as protobuf does."""


def _row(batch: Batch, data: bytes, shared: bytes, scope: bytes) -> Row:
    """One row. Raises SpanError."""
    parts = (read_small if len(data) <= SMALL else read_large)(batch.budget, data)
    if max(parts.started, parts.ended) > _LAST_NS:
        raise SpanError("a time after the year 2262")
    trace_id, span_id = _ident(parts.trace_id, 16, "trace id"), _ident(parts.span_id, 8, "span id")
    pieces = (
        _UINT64(parts.started),
        b"\x20" + trace_id,
        b"\x10" + span_id,
        b"\x10" + _ident(parts.parent, 8, "parent span id") if parts.parent else _EMPTY,
        _text(parts.trace_state, "a trace state"),
        _text(parts.name, "a name"),
        _choice(_KINDS, parts.kind),
        shared,
        scope,
        *_pairs(parts.attributes),
        _UINT64(max(parts.ended - parts.started, 0) if parts.ended else 0),
        *_status(parts.status),
        _events(batch, parts.events) if parts.events else _NO_EVENTS,
        _links(batch, parts.links) if parts.links else _NO_LINKS,
    )
    return Row(pieces, _claim(parts.attributes, trace_id, span_id))


def _claim(attributes: dict[bytes, bytes], trace_id: bytes, span_id: bytes) -> Claim | None:
    """What a frame of ours is the whole of. Raises SpanError where it is not what it says."""
    kind = attributes.get(_FRAME)
    if kind is None:
        return None
    run_span = attributes.get(_RUN_SPAN, b"")
    if not _RUN.fullmatch(run_span):
        raise SpanError("a run's span id that is none")
    if kind not in _WHOLE:
        return None
    parted = attributes.get(_PAYLOAD, b"").startswith(PARTED)
    digest = "" if parted else attributes.get(_DIGEST, b"").decode()
    return Claim(kind.decode(), f"{trace_id.decode()}-{run_span.decode()}", span_id.decode(), digest)


_FRAME, _RUN_SPAN = names.FRAME.encode(), names.RUN_SPAN.encode()
_PAYLOAD, _DIGEST = names.PAYLOAD.encode(), names.PAYLOAD_DIGEST.encode()
_RUN = re.compile(rb"[0-9a-f]{16}")
_WHOLE = frozenset({b"crossing", b"run", b"readings"})


def _status(data: bytes) -> tuple[bytes, bytes]:
    held = {number: value for number, _, value in fields(data, 0, len(data))}
    return _choice(_STATUSES, held.get(3, 0)), _text(held.get(2, b""), "a status message")


def _events(batch: Batch, events: list[bytes]) -> bytes:
    if len(events) > limits.EVENTS:
        raise SpanError(f"more than {limits.EVENTS} events")
    times, texts, maps = [], [], []
    for data in events:
        batch.budget.spend(AN_EVENT)
        held = {n: v for n, kind, v in fields(data, 0, len(data)) if _EVENT_WIRE.get(n) == kind}
        times.append(_UINT64(_moment(held.get(1))))
        texts.append(_text(held.get(2, b""), "an event's name"))
        maps.append(_map(_attributes(batch, data, 3)))
    count = varint(len(events))
    return b"".join((count, *times, count, *texts, count, *maps))


_EVENT_WIRE = {1: FIXED64, 2: BYTES}


def _links(batch: Batch, links: list[bytes]) -> bytes:
    if len(links) > limits.EVENTS:
        raise SpanError(f"more than {limits.EVENTS} links")
    traces, spans, states, maps = [], [], [], []
    for data in links:
        batch.budget.spend(AN_EVENT)
        held = {n: v for n, kind, v in fields(data, 0, len(data)) if kind == BYTES and n != 4}
        traces.append(b"\x20" + _ident(held.get(1), 16, "linked trace id"))
        spans.append(b"\x10" + _ident(held.get(2), 8, "linked span id"))
        states.append(_text(held.get(3, b""), "a link's trace state"))
        maps.append(_map(_attributes(batch, data, 4)))
    count = varint(len(links))
    return b"".join((count, *traces, count, *spans, count, *states, count, *maps))


def _attributes(batch: Batch, data: bytes, number: int) -> dict[bytes, bytes]:
    return dict(key_value(batch.budget, message) for message in messages(data, number))


def _too_many() -> SpanError:
    return SpanError(f"more than {limits.ATTRIBUTES} attributes")


def _pairs(attributes: dict[bytes, bytes]) -> list[bytes]:
    """A Map(String, String), in pieces. Raises SpanError."""
    if len(attributes) > limits.ATTRIBUTES:
        raise _too_many()
    out = [varint(len(attributes))]
    for key, value in attributes.items():
        out += (_key(key), varint(len(value)), value)
    return out


@lru_cache(maxsize=4096)
def _key(key: bytes) -> bytes:
    """An attribute's name, which comes again and again, with its length. Raises SpanError where it is too long."""
    if len(key) > limits.KEY_BYTES:
        raise SpanError(f"an attribute's name of more than {limits.KEY_BYTES:,} bytes")
    return _sized(utf8(key))


def _map(attributes: dict[bytes, bytes]) -> bytes:
    return b"".join(_pairs(attributes))


def _ident(value: Value | None, length: int, what: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != length or not any(value):
        found = len(value) if isinstance(value, bytes) else 0
        raise SpanError(f"a {what} of {found} bytes or of zeros where {length} bytes belong")
    return value.hex().encode()


def _moment(value: Value | None) -> int:
    moment = int.from_bytes(value, "little") if isinstance(value, bytes) else 0
    if moment > _LAST_NS:
        raise SpanError("a time after the year 2262")
    return moment


def _choice(known: tuple[bytes, ...], value: Value) -> bytes:
    return known[value] if isinstance(value, int) and value < len(known) else known[0]


def _text(value: Value, what: str) -> bytes:
    """A short text with its length."""
    if not isinstance(value, bytes):
        return _EMPTY
    if len(value) > limits.NAME_BYTES:
        raise SpanError(f"{what} of more than {limits.NAME_BYTES:,} bytes")
    return _sized(utf8(value))


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data
