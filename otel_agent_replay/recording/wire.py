"""OTLP spans as protobuf bytes, without the protobuf library: importing that costs every process 100 ms.

Only what our frames need is here: ids, name, kind, times, attributes (string, bool, int, double, list of
strings) and the status code. The encoder writes fields in ascending order, so its bytes are those that the
protobuf library writes for the same span; tests hold both directions to that library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_agent_replay.recording.values import Attribute

Value: TypeAlias = "int | bytes"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; the two others (groups) are long gone from protobuf."""

STATUS_ERROR = 2
"""OTLP status code of a span that failed."""

_FIXED64 = Struct("<Q")
_DOUBLE = Struct("<d")
_TIME = Struct("<BQ")
_ONE = [bytes((n,)) for n in range(128)]
_INT64 = range(-(1 << 63), 1 << 63)
_FAILED = b"\x7a\x02\x18\x02"


class MalformedError(ValueError):
    """The bytes are not the protobuf message that they should be."""


@dataclass(slots=True)
class Span:
    """A span as decoded; ids are big-endian integers, 0 where absent; times are nanoseconds since the epoch."""

    trace_id: int = 0
    span_id: int = 0
    parent_span_id: int = 0
    name: str = ""
    kind: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    attributes: dict[str, Attribute] = field(default_factory=dict)
    status: int = 0
    others: list[tuple[int, Value]] = field(default_factory=list)
    """Fields that this module does not know, by number, in order."""


def varint(value: int) -> bytes:
    """A whole number from 0 to 2**64 - 1."""
    if value < 0x80:
        return _ONE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_size(value: int) -> int:
    """How many bytes that takes."""
    return max(1, (value.bit_length() + 6) // 7)


def head(
    trace_id: int, span_id: int, parent_span_id: int, name: str, kind: int, started_ns: int, ended_ns: int
) -> bytes:
    """The fields of a span up to its attributes. Empty ones are left out, as protobuf does."""
    data = b""
    if trace_id:
        data += b"\x0a\x10" + trace_id.to_bytes(16, "big")
    if span_id:
        data += b"\x12\x08" + span_id.to_bytes(8, "big")
    if parent_span_id:
        data += b"\x22\x08" + parent_span_id.to_bytes(8, "big")
    if name:
        encoded = name.encode("utf-8", "replace")
        data += b"\x2a" + varint(len(encoded)) + encoded
    if kind:
        data += b"\x30" + varint(kind)
    if started_ns:
        data += _TIME.pack(0x39, started_ns)
    if ended_ns:
        data += _TIME.pack(0x41, ended_ns)
    return data


def attribute(key: str, value: Attribute) -> bytes:
    """One attribute, as a field of a span.

    Nothing raises: what is not UTF-8 becomes ``?``, and an integer beyond 64 bits its decimal digits.
    """
    name = key.encode("utf-8", "replace")
    encoded = any_value(value)
    before = b"".join((b"\x0a", varint(len(name)), name, b"\x12", varint(len(encoded))))
    return b"".join((b"\x4a", varint(len(before) + len(encoded)), before, encoded))


def status(*, failed: bool) -> bytes:
    """The status field; empty where the span did not fail."""
    return _FAILED if failed else b""


def encode(span: Span) -> bytes:
    """A whole span; `others` is not written."""
    parts = [
        head(span.trace_id, span.span_id, span.parent_span_id, span.name, span.kind, span.started_ns, span.ended_ns)
    ]
    parts.extend(attribute(key, value) for key, value in span.attributes.items())
    parts.append(status(failed=span.status == STATUS_ERROR))
    return b"".join(parts)


def any_value(value: Attribute) -> bytes:
    """The AnyValue message that holds a value; nothing raises, as for `attribute`."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        return b"\x0a" + varint(len(text)) + text
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        if value in _INT64:
            return b"\x18" + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
        return any_value(str(value))
    if isinstance(value, float):
        return b"\x21" + _DOUBLE.pack(value)
    items = b"".join(b"\x0a" + varint(len(item)) + item for item in map(any_value, value))
    return b"\x2a" + varint(len(items)) + items


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, Value]]:
    """The fields of the message between two offsets: number, wire type, value.

    Varints are integers; every other value is its bytes. Raises MalformedError.
    """
    try:
        while position < end:
            tag = data[position]
            position += 1
            if tag > 0x7F:
                tag, position = read_varint(data, position - 1, end)
            kind = tag & 7
            if kind in (BYTES, VARINT):
                size = data[position]
                position += 1
                if size > 0x7F:
                    size, position = read_varint(data, position - 1, end)
                if kind == VARINT:
                    yield tag >> 3, kind, size
                    continue
            elif kind == FIXED64:
                size = 8
            elif kind == FIXED32:
                size = 4
            else:
                raise MalformedError(f"wire type {kind}")
            after = position + size
            if after > end:
                raise MalformedError("a field is longer than its message")
            yield tag >> 3, kind, data[position:after]
            position = after
    except IndexError:
        raise MalformedError("a message ends in a field") from None


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A varint and the offset after it. Raises MalformedError where it does not end, or exceeds 64 bits."""
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
        shift += 7
        if shift > 63:
            break
    raise MalformedError("a number does not end")


def decode(data: bytes, position: int = 0, end: int | None = None) -> Span:
    """The span between two offsets. Raises MalformedError."""
    span = Span()
    attributes, others = span.attributes, span.others
    for number, kind, value in fields(data, position, len(data) if end is None else end):
        if number > 15:
            others.append((number, value))
        elif number == 9 and kind == BYTES:
            key, held = _key_value(value)  # type: ignore[arg-type]  # its wire type says that it is bytes
            if held is not None:
                attributes[key] = held
        elif (read := _FIELDS.get((number, kind))) is not None:
            setattr(span, read[0], read[1](value))
        else:
            others.append((number, value))
    return span


def _status_code(data: bytes) -> int:
    return next((value for number, _, value in fields(data, 0, len(data)) if number == 3 and isinstance(value, int)), 0)


def _big_endian(value: bytes) -> int:
    return int.from_bytes(value, "big")


def text(value: Value) -> str:
    """A string field. Raises MalformedError where it is no UTF-8."""
    if isinstance(value, int):
        raise MalformedError("a number stands where text belongs")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedError("text is not UTF-8") from None


def _moment(value: bytes) -> int:
    moment: int = _FIXED64.unpack(value)[0]
    return moment


_FIELDS: dict[tuple[int, int], tuple[str, Callable[[Any], Any]]] = {
    (1, BYTES): ("trace_id", _big_endian),
    (2, BYTES): ("span_id", _big_endian),
    (4, BYTES): ("parent_span_id", _big_endian),
    (5, BYTES): ("name", text),
    (6, VARINT): ("kind", int),
    (7, FIXED64): ("started_ns", _moment),
    (8, FIXED64): ("ended_ns", _moment),
    (15, BYTES): ("status", _status_code),
}
"""Field and wire type to the attribute of `Span` that it sets, and how."""


def _key_value(data: bytes) -> tuple[str, Attribute | None]:
    key, held = "", None
    for number, kind, value in fields(data, 0, len(data)):
        if number == 1:
            key = text(value)
        elif number == 2 and kind == BYTES and isinstance(value, bytes):
            held = read_value(value)
    return key, held


def read_value(data: bytes) -> Attribute | None:
    """What an AnyValue holds; None for nothing, or for a form that we do not write. Raises MalformedError."""
    held: Attribute | None = None
    for number, kind, value in fields(data, 0, len(data)):
        if isinstance(value, int):
            if number == 2:
                held = value != 0
            elif number == 3:
                held = value - (1 << 64) if value >> 63 else value
        elif number == 1 and kind == BYTES:
            held = text(value)
        elif number == 4 and kind == FIXED64:
            held = _DOUBLE.unpack(value)[0]
        elif number == 5 and kind == BYTES:
            items = [
                read_value(item) for n, _, item in fields(value, 0, len(value)) if n == 1 and isinstance(item, bytes)
            ]
            held = [item for item in items if isinstance(item, str)]
        else:
            held = None
    return held
