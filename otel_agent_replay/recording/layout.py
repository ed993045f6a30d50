"""How a frame is laid out as protobuf.

Our own attributes stand in the span as fields of their own, not as OTLP key-value pairs: a call that adds 1 KB to
a chat would otherwise cost more in names than in content. `unpack` gives them back under their names, so nobody
else knows; `as_otlp` writes the span with plain attributes, as it travels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

from otel_agent_replay.recording import names, wire
from otel_agent_replay.recording.compiled import PART
from otel_agent_replay.recording.frame_schema import KNOWN
from otel_agent_replay.recording.names import FrameKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.recording.values import Attribute

MARK = b"\x85\x9a\xc9\x46"
"""The tag of field 18,500,000, a fixed32."""

PREAMBLE = len(MARK) + 4
"""Bytes of the mark and the checksum; the length prefix counts them."""

JOIN_BELOW = 64 * 1024
"""Bytes: smaller parts of a frame are joined; larger ones are handed on as they are, without a copy."""

_CODES = {
    FrameKind.RUN_START: 1,
    FrameKind.RUN: 2,
    FrameKind.CROSSING_START: 3,
    FrameKind.CROSSING: 4,
    FrameKind.READINGS: 5,
    FrameKind.CONTENTS: 6,
}
_KINDS = {code: kind for kind, code in _CODES.items()}
_FRAME, _PIECE, _KNOWN = 201, 213, 214
_NUMBERS = {names.SCHEMA: 202, names.ORDINAL: 206, names.SEQ: 208, names.PAYLOAD_LENGTH: 211}
_TEXTS = {names.LANE: 204, names.KEY: 205, names.KIND: 207, names.END: 209, names.PAYLOAD: 210}
_HEXES = {names.RUN_SPAN: 203, names.PAYLOAD_DIGEST: 212}
_NAMES = {number: name for table in (_NUMBERS, _TEXTS, _HEXES) for name, number in table.items()}


def _tag(number: int, wire_type: int) -> bytes:
    return wire.varint(number << 3 | wire_type)


NUMBER_TAGS = {name: _tag(number, wire.VARINT) for name, number in _NUMBERS.items()}
TEXT_TAGS = {name: _tag(number, wire.BYTES) for name, number in _TEXTS.items()}
HEX_TAGS = {name: _tag(number, wire.BYTES) + b"\x08" for name, number in _HEXES.items()}
FRAME_FIELDS = {kind.value: _tag(_FRAME, wire.VARINT) + wire.varint(code) for kind, code in _CODES.items()}
_CONTENT_PREFIXES = (names.CONTENT_PREFIX, names.CONTENT_BINARY_PREFIX)
PIECE_TAG = _tag(_PIECE, wire.BYTES)
_KNOWN_TAG = _tag(_KNOWN, wire.BYTES)
_KNOWN_KEYS = {name: b"\x08" + wire.varint(place) + b"\x12" for place, name in enumerate(KNOWN)}
_SHORT, _MOST = 64, 256
_UNIQUE = frozenset({names.PAYLOAD, names.PAYLOAD_DIGEST, "gen_ai.response.id", "gen_ai.tool.call.id", "url.full"})
_LAST = frozenset({names.PAYLOAD, names.PAYLOAD_LENGTH})
_kept: dict[str, dict[str, bytes]] = {name: {} for name in {*_TEXTS, *_HEXES, *KNOWN} - _UNIQUE}
"""The encoding of short values by name and value: models, keys and lanes recur in every frame."""
_checksum = crc32 if PART is None or PART.checksum(b"", 0) is None else PART.checksum
_CONTENTS = FrameKind.CONTENTS  # the members of an enum are slow to reach through their class


class NewerSchemaError(wire.MalformedError):
    """A frame of a later version than this one reads."""

    def __init__(self, schema: int) -> None:
        super().__init__(
            f"it was written by a newer version (schema {schema}; this version reads up to {names.SCHEMA_VERSION})"
        )


def encode(frame: Frame) -> list[bytes]:
    """The bytes of a frame, in order, for `writev`: one part, or a few where some are large. Never raises.

    What the other fields say already is left out, and given back by `unpack`: a parent that is the run's span, a
    name that is the key, the id of a frame of contents, the length of a payload, or of all pieces, that is whole.
    """
    attributes = frame.attributes
    key, run = attributes.get(names.KEY), attributes.get(names.RUN_SPAN)
    parts = [
        wire.head(
            frame.trace_id,
            0 if frame.kind is _CONTENTS and frame.span_id == _contents_id(attributes) else frame.span_id,
            0 if key is not None and run == hex_id(frame.parent_span_id) else frame.parent_span_id,
            "" if frame.name == key else frame.name,
            0 if frame.span_kind == 1 else frame.span_kind,
            frame.started_ns,
            frame.ended_ns,
        ),
        wire.status(failed=frame.failed),
        FRAME_FIELDS[frame.kind.value],
    ]
    for name, value in attributes.items():
        if name not in _LAST:
            append(parts, name, value)
    payload, length = attributes.get(names.PAYLOAD), attributes.get(names.PAYLOAD_LENGTH)
    if payload is not None:
        append(parts, names.PAYLOAD, payload)
    if length is not None and length != (
        len(parts[-1]) if isinstance(payload, str) else pieces_bytes(attributes) if frame.kind is _CONTENTS else None
    ):
        append(parts, names.PAYLOAD_LENGTH, length)
    return delimited([*parts])


def delimited(parts: list[bytes | int]) -> list[bytes]:
    """A span with its preamble and its length before it; numbers are varints, large parts are not copied."""
    made = None if PART is None else PART.delimited(parts, MARK, JOIN_BELOW)
    return interpreted(parts) if made is None else [made]


def interpreted(mixed: list[bytes | int]) -> list[bytes]:
    """The same without the compiled part."""
    parts = [part if isinstance(part, bytes) else wire.varint(part) for part in mixed]
    size = sum(map(len, parts))
    if size >= JOIN_BELOW:
        return _large(parts, size)
    span = b"".join(parts)
    return [b"".join((wire.varint(size + PREAMBLE), MARK, _checksum(span, 0).to_bytes(4, "little"), span))]


def append(parts: list[bytes], name: str, value: Attribute) -> None:
    """Append an attribute; the text of what is large stands last, by itself."""
    if isinstance(value, str):
        kept = _kept.get(name)
        if kept is not None and len(value) < _SHORT:
            parts.append(kept.get(value) or _keep(kept, name, value))
        else:
            parts += _long_text(name, value)
    elif isinstance(value, list):
        parts.append(_texts(name, tuple(value)) if _is_texts(value) else _plain(name, value))
    else:
        tag = NUMBER_TAGS.get(name)
        known = tag is not None and type(value) is int and 0 <= value < 1 << 64
        parts.append(tag + wire.varint(value) if known else _plain(name, value))  # type: ignore[operator, arg-type]


def attribute(name: str, value: Attribute) -> bytes:
    """One attribute, as `append` writes it."""
    parts: list[bytes] = []
    append(parts, name, value)
    return b"".join(parts)


def attributes(found: dict[str, Attribute], but: frozenset[str]) -> bytes:
    """Attributes one behind the other, those whose name is among `but` left out; none that has a field of its own."""
    if PART is None:
        return b"".join(_plain(name, value) for name, value in found.items() if name not in but)
    return PART.attributes(found, but, _KNOWN_KEYS, _KNOWN_TAG, _plain)  # type: ignore[no-any-return]


def as_otlp(frame: Frame) -> bytes:
    """The span as it travels: every attribute an OTLP attribute, no mark and no checksum."""
    parts = [_head(frame), wire.attribute(names.FRAME, str(frame.kind))]
    parts.extend(wire.attribute(key, value) for key, value in frame.attributes.items())
    parts.append(wire.status(failed=frame.failed))
    return b"".join(parts)


def unpack(data: bytes) -> tuple[FrameKind, wire.Span]:
    """What a span holds, whether written by `encode` or by `as_otlp`; its attributes under their names.

    Raises:
        wire.MalformedError: these bytes are no frame of ours.
        NewerSchemaError: they are one of a later version.
    """
    span = wire.decode(data)
    attributes = span.attributes
    named: object = attributes.pop(names.FRAME, None)
    pieced = False
    for number, value in span.others:
        if number == _FRAME:
            named = value
        elif number == _PIECE:
            _unpiece(attributes, value)
            pieced = True
        elif number == _KNOWN:
            _unknown(attributes, value)
        elif (name := _NAMES.get(number)) is not None:
            attributes[name] = _unpacked(name, value)
    schema = attributes.get(names.SCHEMA, names.SCHEMA_VERSION)
    if isinstance(schema, int) and schema > names.SCHEMA_VERSION:
        raise NewerSchemaError(schema)
    kind = _KINDS.get(named) if isinstance(named, int) else next((k for k in FrameKind if k.value == named), None)
    if kind is None:
        raise wire.MalformedError("the span is no frame of ours")
    _given_back(kind, span)
    if pieced and names.PAYLOAD_LENGTH not in attributes:
        _say_length(attributes)
    return kind, span


def _given_back(kind: FrameKind, span: wire.Span) -> None:
    """What `encode` left out."""
    attributes = span.attributes
    key, run, payload = attributes.get(names.KEY), attributes.get(names.RUN_SPAN), attributes.get(names.PAYLOAD)
    span.kind = span.kind or 1
    if isinstance(key, str):
        span.name = span.name or key
        if not span.parent_span_id and isinstance(run, str) and (digits := _unhex(run, 8)) is not None:
            span.parent_span_id = int.from_bytes(digits, "big")
    if isinstance(payload, str) and names.PAYLOAD_LENGTH not in attributes:
        attributes[names.PAYLOAD_LENGTH] = len(payload.encode())
    if kind is _CONTENTS and not span.span_id:
        span.span_id = _contents_id(attributes)


def _say_length(attributes: dict[str, Attribute]) -> None:
    """Say how long all pieces are, before the first of them: what cuts a span may leave out what comes last."""
    pieces = [name for name in attributes if name.startswith(_CONTENT_PREFIXES)]
    attributes[names.PAYLOAD_LENGTH] = pieces_bytes(attributes)
    for name in pieces:
        attributes[name] = attributes.pop(name)


def pieces_bytes(attributes: Mapping[str, Attribute]) -> int:
    """Bytes of the texts of all pieces of a frame of contents: what `agent_replay.payload.length` says of it."""
    return sum(
        len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
        for name, value in attributes.items()
        if isinstance(value, str) and name.startswith(_CONTENT_PREFIXES)
    )


def _head(frame: Frame) -> bytes:
    return wire.head(
        frame.trace_id,
        frame.span_id,
        frame.parent_span_id,
        frame.name,
        frame.span_kind,
        frame.started_ns,
        frame.ended_ns,
    )


def _large(parts: list[bytes], size: int) -> list[bytes]:
    joined: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < JOIN_BELOW:
            small.append(part)
        else:
            joined += (b"".join(small), part)
            small = []
    joined.append(b"".join(small))
    checksum = 0
    for part in joined:
        checksum = _checksum(part, checksum)
    joined[0] = b"".join((wire.varint(size + PREAMBLE), MARK, checksum.to_bytes(4, "little"), joined[0]))
    return joined


def _long_text(name: str, value: str) -> list[bytes]:
    """A text attribute; what is large stands last, by itself."""
    tag = TEXT_TAGS.get(name)
    if tag is not None:
        text = value.encode("utf-8", "replace")
        return [tag, wire.varint(len(text)), text]
    tag = HEX_TAGS.get(name)
    if tag is not None and (digits := _unhex(value, 8)) is not None:
        return [tag, digits]
    return _piece(name, value) or [_plain(name, value)]


def _keep(kept: dict[str, bytes], name: str, value: str) -> bytes:
    """The encoding of a short text attribute, kept for the next time."""
    if len(kept) >= _MOST:
        kept.clear()
    field = kept[value] = b"".join(_long_text(name, value))
    return field


def _is_texts(value: list[str]) -> bool:
    return len(value) < 8 and all(type(item) is str and len(item) < _SHORT for item in value)


@lru_cache(256)
def _texts(name: str, value: tuple[str, ...]) -> bytes:
    """A short list of short texts; it recurs too."""
    return _plain(name, list(value))


def _plain(name: str, value: Attribute) -> bytes:
    """An attribute of others, its name shortened where it is a common one."""
    key = _KNOWN_KEYS.get(name)
    if key is None:
        return wire.attribute(name, value)
    held = wire.any_value(value)
    inner = key + wire.varint(len(held))
    return b"".join((_KNOWN_TAG, wire.varint(len(inner) + len(held)), inner, held))


def _contents_id(attributes: Mapping[str, Attribute]) -> int:
    """Id of a frame of contents: the beginning of its first digest."""
    for name in attributes:
        if name.startswith(_CONTENT_PREFIXES):
            digest = _unhex(name.rpartition(".")[2], 16)
            return contents_id(digest.hex()) if digest is not None else 0
    return 0


@lru_cache(256)
def hex_id(span_id: int) -> str:
    """A span id as it is written: 16 hex digits."""
    return f"{span_id:016x}"


def contents_id(digest: str) -> int:
    """The same for a digest of 32 hex digits: pieces that are sent again are the same span."""
    return int(digest[:16], 16) or 1


def _piece(name: str, value: str) -> list[bytes]:
    """A piece of content; nothing where the attribute is none."""
    if name.startswith(names.CONTENT_PREFIX):
        prefix, form = names.CONTENT_PREFIX, b"\x12"
    elif name.startswith(names.CONTENT_BINARY_PREFIX):
        prefix, form = names.CONTENT_BINARY_PREFIX, b"\x1a"
    else:
        return []
    digest = _unhex(name[len(prefix) :], 16)
    if digest is None:
        return []
    text = value.encode("utf-8", "replace")
    inner = b"".join((b"\x0a\x10", digest, form, wire.varint(len(text))))
    return [PIECE_TAG, wire.varint(len(inner) + len(text)), inner, text]


def _unhex(text: str, size: int) -> bytes | None:
    """So many bytes from their lower-case hex digits; None where the text is anything else."""
    if len(text) != 2 * size:
        return None
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    return data if data.hex() == text else None


def _unpacked(name: str, value: wire.Value) -> Attribute:
    if isinstance(value, int):
        if name not in _NUMBERS:
            raise wire.MalformedError(f"{name} is a number")
        return value
    if name in _HEXES:
        return value.hex()
    if name in _TEXTS:
        return wire.text(value)
    raise wire.MalformedError(f"{name} is no number")


def _unknown(attributes: dict[str, Attribute], data: wire.Value) -> None:
    """An attribute whose name is a place in `KNOWN`. Of a name that this version does not know nothing is kept."""
    if isinstance(data, int):
        raise wire.MalformedError("an attribute is a number")
    place, held = 0, None
    for number, _, value in wire.fields(data, 0, len(data)):
        if number == 1 and isinstance(value, int):
            place = value
        elif number == 2 and isinstance(value, bytes):
            held = wire.read_value(value)
    if held is not None and place < len(KNOWN):
        attributes[KNOWN[place]] = held


def _unpiece(attributes: dict[str, Attribute], data: wire.Value) -> None:
    if isinstance(data, int):
        raise wire.MalformedError("a piece of content is a number")
    digest, prefix, text = "", names.CONTENT_PREFIX, ""
    for number, _, value in wire.fields(data, 0, len(data)):
        if number == 1 and isinstance(value, bytes):
            digest = value.hex()
        elif number in (2, 3):
            prefix = names.CONTENT_PREFIX if number == 2 else names.CONTENT_BINARY_PREFIX
            text = wire.text(value)
    attributes[prefix + digest] = text
