"""OTLP traces as rows of the landing table, as the Collector's ClickHouse exporter writes them.

The bytes of a request come from anybody. What is no protobuf is refused whole; a span with ids, times or sizes
that cannot be is left out and counted, and the others are kept. A string goes from the request into its row as the
bytes that it is; where these are no UTF-8 they get replacement characters.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import orjson

from otel_agent_replay.recording import names
from otel_agent_replay.recording.wire import BYTES, FIXED64, VARINT, MalformedError, fields, read_varint, varint
from otel_agent_replay.server import limits
from otel_agent_replay.store.rows import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.wire import Value

    Plain: TypeAlias = "str | bool | int | float | list[Plain] | dict[str, Plain] | None"

WORK = 2_000_000
"""Messages, one inside the other, that a request may hold: a few bytes each would otherwise cost seconds each MiB."""

_KINDS = tuple(
    bytes((len(kind),)) + kind for kind in (b"Unspecified", b"Internal", b"Server", b"Client", b"Producer", b"Consumer")
)
_STATUSES = tuple(bytes((len(status),)) + status for status in (b"Unset", b"Ok", b"Error"))
_UINT64 = Struct("<Q").pack
_DOUBLE = Struct("<d")
_NO_EVENTS, _NO_LINKS = b"\0" * 3, b"\0" * 4
_EMPTY = b"\0"
_MONTH_NS = 2_629_746 * 1_000_000_000
_LAST_NS = (1 << 63) - 1
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class SpanError(ValueError):
    """A span cannot be kept; the message is a clause."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a frame of ours says that it is: the whole of one thing in a recording."""

    table: str
    """Where it is kept."""
    run_id: str
    span_id: str
    digest: str = field(default="", compare=False)
    """Of its payload, as it says itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """One span as a row."""

    pieces: tuple[bytes, ...]
    """RowBinary of the landing table's columns."""
    month: int
    """That it begins in, about."""
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
    months: set[int] = field(default_factory=set)
    """Months that its spans begin in, about."""
    work: int = 0

    def spend(self) -> None:
        """Count one message. Raises MalformedError where there are too many."""
        self.work += 1
        if self.work > WORK:
            raise MalformedError(f"it holds more than {WORK:,} messages")

    def reject(self, why: str) -> None:
        """Leave a span out."""
        self.rejected += 1
        self.why = self.why or why


def decode(data: bytes) -> Batch:
    """The rows of an ExportTraceServiceRequest. Raises MalformedError where it is none."""
    batch = Batch()
    for number, kind, value in fields(data, 0, len(data)):
        if number == 1 and kind == BYTES:
            _resource_spans(batch, value)  # type: ignore[arg-type]  # its wire type says that it is bytes
    if len(batch.months) > limits.MONTHS:
        raise MalformedError(f"its spans begin in more than {limits.MONTHS} months; send those of each apart")
    return batch


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """The messages that stand in one field of a message."""
    for number, kind, value in fields(data, 0, len(data)):
        if number == wanted and kind == BYTES:
            yield value  # type: ignore[misc]  # its wire type says that it is bytes


def _resource_spans(batch: Batch, data: bytes) -> None:
    batch.spend()
    attributes: list[tuple[bytes, bytes]] = []
    why = ""
    try:
        for resource in _messages(data, 1):
            attributes += _attributes(batch, resource, 1)
    except SpanError as error:
        why = f"its resource has {error}"
    service = next((value for key, value in attributes if key == b"service.name"), b"")
    shared = _sized(service) + _map(attributes)
    for scope_spans in _messages(data, 2):
        batch.spend()
        scope = _EMPTY + _EMPTY
        for message in _messages(scope_spans, 1):
            scope = _scope(message)
        for span in _messages(scope_spans, 2):
            batch.spend()
            try:
                if why:
                    raise SpanError(why)
                row = _row(batch, span, shared, scope)
            except SpanError as error:
                batch.reject(str(error))
                continue
            batch.months.add(row.month)
            batch.accepted += 1
            batch.size += sum(map(len, row.pieces))
            batch.rows.append(row)


def _scope(data: bytes) -> bytes:
    held = {number: value for number, kind, value in fields(data, 0, len(data)) if kind == BYTES}
    return _text(held.get(1, b""), "a scope's name") + _text(held.get(2, b""), "a scope's version")


def _row(batch: Batch, data: bytes, shared: bytes, scope: bytes) -> Row:
    """One row. Raises SpanError."""
    held: dict[int, Value] = {}
    attributes: list[tuple[bytes, bytes]] = []
    events: list[bytes] = []
    links: list[bytes] = []
    for number, kind, value in fields(data, 0, len(data)):
        if number == 9 and kind == BYTES:
            attributes.append(_key_value(batch, value))  # type: ignore[arg-type]
        elif number == 11 and kind == BYTES:
            events.append(value)  # type: ignore[arg-type]
        elif number == 13 and kind == BYTES:
            links.append(value)  # type: ignore[arg-type]
        elif _WIRE.get(number) == kind:
            held[number] = value
    started, ended = _moment(held.get(7)), _moment(held.get(8))
    parent = held.get(4, b"")
    trace_id, span_id = _ident(held.get(1), 16, "trace id"), _ident(held.get(2), 8, "span id")
    pieces = (
        _UINT64(started),
        b"\x20" + trace_id,
        b"\x10" + span_id,
        b"\x10" + _ident(parent, 8, "parent span id") if parent else _EMPTY,
        _text(held.get(3, b""), "a trace state"),
        _text(held.get(5, b""), "a name"),
        _choice(_KINDS, held.get(6, 0)),
        shared,
        scope,
        *_pairs(attributes),
        _UINT64(max(ended - started, 0) if ended else 0),
        *_status(held.get(15, b"")),
        _events(batch, events) if events else _NO_EVENTS,
        _links(batch, links) if links else _NO_LINKS,
    )
    return Row(pieces, started // _MONTH_NS, _claim(dict(attributes), trace_id, span_id))


def _claim(attributes: dict[bytes, bytes], trace_id: bytes, span_id: bytes) -> Claim | None:
    """What a frame of ours is the whole of. Raises SpanError where it is not what it says."""
    kind = attributes.get(_FRAME)
    if kind is None:
        return None
    if kind == b"contents":
        for key, value in attributes.items():
            if key.startswith((_CONTENT, _CONTENT64)) and not _is_piece(key, value):
                raise SpanError("a piece of content that is not what its digest says")
    run_span = attributes.get(_RUN_SPAN, b"")
    if not _RUN.fullmatch(run_span):
        raise SpanError("a run's span id that is none")
    table = _TABLES.get(kind)
    if table is None:
        return None
    digest = attributes.get(_DIGEST, b"").decode()
    return Claim(table, f"{trace_id.decode()}-{run_span.decode()}", span_id.decode(), digest)


def _is_piece(key: bytes, value: bytes) -> bool:
    name = key.rpartition(b".")[2]
    if len(name) != 32:
        return True  # a part of a piece: its digest is that of the whole
    try:
        data = b64decode(value, validate=True) if key.startswith(_CONTENT64) else value
    except ValueError:
        return False
    return blake2b(data, digest_size=16).hexdigest().encode() == name


_FRAME, _RUN_SPAN = names.FRAME.encode(), names.RUN_SPAN.encode()
_CONTENT, _CONTENT64 = names.CONTENT_PREFIX.encode(), names.CONTENT_BINARY_PREFIX.encode()
_DIGEST = names.PAYLOAD_DIGEST.encode()
_RUN = re.compile(rb"[0-9a-f]{16}")
_TABLES = {b"crossing": "crossings", b"run": "runs", b"readings": "readings"}

_WIRE = {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES, 5: BYTES, 6: VARINT, 7: FIXED64, 8: FIXED64, 15: BYTES}
"""Wire types of a span's single fields; another one is ignored, as protobuf does with a field it does not know."""


def _status(data: Value) -> tuple[bytes, bytes]:
    held = {n: value for n, _, value in fields(data, 0, len(data))} if isinstance(data, bytes) else {}
    return _choice(_STATUSES, held.get(3, 0)), _text(held.get(2, b""), "a status message")


def _events(batch: Batch, events: list[bytes]) -> bytes:
    if len(events) > limits.EVENTS:
        raise SpanError(f"more than {limits.EVENTS} events")
    times, texts, maps = [], [], []
    for data in events:
        batch.spend()
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
        batch.spend()
        held = {n: v for n, kind, v in fields(data, 0, len(data)) if kind == BYTES and n != 4}
        traces.append(b"\x20" + _ident(held.get(1), 16, "linked trace id"))
        spans.append(b"\x10" + _ident(held.get(2), 8, "linked span id"))
        states.append(_text(held.get(3, b""), "a link's trace state"))
        maps.append(_map(_attributes(batch, data, 4)))
    count = varint(len(links))
    return b"".join((count, *traces, count, *spans, count, *states, count, *maps))


def _attributes(batch: Batch, data: bytes, number: int) -> list[tuple[bytes, bytes]]:
    return [_key_value(batch, message) for message in _messages(data, number)]


def _pairs(attributes: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """A Map(String, String), in pieces. Raises SpanError."""
    if len(attributes) > limits.ATTRIBUTES:
        raise SpanError(f"more than {limits.ATTRIBUTES} attributes")
    yield varint(len(attributes))
    for key, value in attributes:
        yield _known(key)
        yield varint(len(value))
        yield value


def _map(attributes: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_pairs(attributes))


def _key_value(batch: Batch, data: bytes) -> tuple[bytes, bytes]:
    """An attribute as text. The form that nearly all have is read in one go; whatever else by its fields."""
    batch.spend()
    size = len(data)
    if size > 4 and data[0] == 0x0A and data[1] < 0x80 and (at := data[1] + 2) + 3 < size and data[at] == 0x12:
        length, start = (data[at + 1], at + 2) if data[at + 1] < 0x80 else read_varint(data, at + 1, size)
        if start + length == size and start + 1 < size and data[start] == 0x0A:
            length, begin = (
                (data[start + 1], start + 2) if data[start + 1] < 0x80 else read_varint(data, start + 1, size)
            )
            if begin + length == size:
                return _utf8(data[2:at]), _utf8(data[begin:])
    key, text = b"", b""
    for number, kind, value in fields(data, 0, size):
        if kind != BYTES:
            continue
        if number == 1:
            key = _utf8(value)  # type: ignore[arg-type]
        elif number == 2:
            text = _as_text(batch, value)  # type: ignore[arg-type]
    if len(key) > limits.KEY_BYTES:
        raise SpanError(f"an attribute's name of more than {limits.KEY_BYTES:,} bytes")
    return key, text


def _as_text(batch: Batch, data: bytes) -> bytes:
    """An AnyValue as the exporter writes it: strings bare, lists and maps as JSON."""
    held = _plain(batch, data, 0)
    if isinstance(held, str):
        return held.encode()
    if held is None:
        return b""
    if isinstance(held, (list, dict)):
        return orjson.dumps(held, option=orjson.OPT_SORT_KEYS).decode().translate(_HTML).encode()
    return as_text(held).encode()


def _plain(batch: Batch, data: bytes, depth: int) -> Plain:
    """What an AnyValue holds; bytes as base64."""
    batch.spend()
    if depth > limits.DEPTH:
        raise SpanError(f"an attribute of more than {limits.DEPTH} levels")
    held: Plain = None
    for number, kind, value in fields(data, 0, len(data)):
        if isinstance(value, int):
            if number == 2:
                held = value != 0
            elif number == 3:
                held = value - (1 << 64) if value >> 63 else value
        elif number == 4 and kind == FIXED64:
            held = _DOUBLE.unpack(value)[0]
        elif kind == BYTES:
            held = _held(batch, number, value, depth)
    return held


def _held(batch: Batch, number: int, value: bytes, depth: int) -> Plain:
    if number == 1:
        return _utf8(value).decode()
    if number == 5:
        return [_plain(batch, item, depth + 1) for item in _messages(value, 1)]
    if number == 6:
        found: dict[str, Plain] = {}
        for pair in _messages(value, 1):
            parts = {n: v for n, kind, v in fields(pair, 0, len(pair)) if kind == BYTES}
            found[_utf8(_bytes(parts.get(1))).decode()] = _plain(batch, _bytes(parts.get(2)), depth + 1)
        return found
    return b64encode(value).decode() if number == 7 else None


def _bytes(value: Value | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def _ident(value: Value | None, length: int, what: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != length or not any(value):
        found = f"{len(value)} bytes" if isinstance(value, bytes) else "none"
        raise SpanError(f"a {what} of {found} or of zeros where {length} bytes belong")
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
    return _sized(_utf8(value))


def _utf8(data: bytes) -> bytes:
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


@lru_cache(maxsize=4096)
def _known(key: bytes) -> bytes:
    """A name that comes again and again, with its length."""
    return varint(len(key)) + key
