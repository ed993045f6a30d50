"""Frames that are too large for a receiver travel in parts: pieces of content, and what says how they join.

A payload that is too long becomes pieces of its own run, and stands as ``{"$parts": [digests], "n": bytes}``, which
has a length and a digest as any payload. A piece of content that is too long becomes smaller pieces, and stands
under its digest as ``agent-replay parts DIGEST DIGEST …``; that this is no content shows in its digest, which is the
whole piece's. Where even such a list is too long it is parted again. So a store needs to know nothing of parts.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import orjson

from otel_agent_replay.recording import layout, names
from otel_agent_replay.recording.exact import loads
from otel_agent_replay.recording.frames import CONTENTS_PIECES, Frame, payload_digest, piece_attribute
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.resolving import MissingContent
from otel_agent_replay.recording.rope import digest_of, is_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_agent_replay.recording.values import Attribute, Json

SMALLEST = 16 * 1024
"""Bytes: nothing is parted further than for a receiver that takes so many."""

_MARK = b"agent-replay parts "
_STUB = '{"$parts":'
_ASIDE = 2048
"""Bytes of a frame that are not the text of its content: ids, names, lengths."""

_DEEPEST = 8
"""Parts of parts are followed so deep; each step makes a text a hundred times as short."""


def split(frame: Frame, most: int) -> list[Frame]:
    """Frames that say the same, each at most `most` bytes as OTLP where parts can help; content comes first.

    Other attributes than payload and content are left whole: where those alone are longer, so is the frame.
    """
    room = max(most, SMALLEST) - _ASIDE
    if frame.kind is FrameKind.CONTENTS:
        return [*_packed(frame, _pieces(frame.attributes, room), room)]
    payload = frame.attributes.get(names.PAYLOAD)
    length = frame.attributes.get(names.PAYLOAD_LENGTH)
    data = payload.encode("utf-8", "replace") if isinstance(payload, str) else b""
    beside = sum(len(name) + len(str(value)) + 16 for name, value in frame.attributes.items() if name != names.PAYLOAD)
    left = max(room - beside, SMALLEST // 4)
    if len(data) <= left or length != len(data):  # what was cut before is no longer of use to anybody
        return [frame]
    pieces: dict[str, tuple[str, str]] = {}
    while len(data) > left:
        listed = [_piece(pieces, part) for part in _slices(data, room)]
        data = orjson.dumps({"$parts": listed, "n": len(data)})
    attributes: dict[str, Attribute] = {**frame.attributes, names.PAYLOAD_LENGTH: len(data)}
    if names.PAYLOAD_DIGEST in attributes:
        attributes[names.PAYLOAD_DIGEST] = payload_digest(data)
    del attributes[names.PAYLOAD]
    attributes[names.PAYLOAD] = data.decode()
    last = Frame(
        frame.kind,
        frame.trace_id,
        frame.span_id,
        frame.parent_span_id,
        frame.name,
        frame.started_ns,
        frame.ended_ns,
        attributes,
        failed=frame.failed,
        span_kind=frame.span_kind,
    )
    return [*_packed(frame, pieces.values(), room), last]


def payload_size(text: str) -> int:
    """How long a payload is, as far as that is to be compared with others; a parted one counts as it was."""
    if text.startswith(_STUB):
        try:
            return int(orjson.loads(text)["n"])
        except (ValueError, KeyError, TypeError):
            pass
    return len(text)


def whole_payload(payload: dict[str, Json], pieces: Mapping[str, bytes]) -> Json:
    """The payload itself, where it came in parts. Raises MissingContent."""
    found: Json = payload
    for _ in range(_DEEPEST):
        parts = found.get("$parts") if isinstance(found, dict) else None
        if not isinstance(parts, list):
            return found
        text = _joined((str(part) for part in parts), pieces)
        try:
            found = loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise MissingContent(f"its parts make no JSON ({error})") from error
    raise MissingContent("its parts have parts without end")


def join_pieces(pieces: dict[str, bytes]) -> None:
    """Put together, in place, the pieces that came in parts. One whose parts are not all there stays a list."""
    for digest, piece in list(pieces.items()):
        if not piece.startswith(_MARK) or is_named(piece, digest):
            continue
        text = piece
        for _ in range(_DEEPEST):
            try:
                text = _joined(text[len(_MARK) :].decode("ascii", "replace").split(), pieces)
            except MissingContent:
                break
            if is_named(text, digest):
                pieces[digest] = text
            if not text.startswith(_MARK):
                break


def _joined(digests: Iterable[str], pieces: Mapping[str, bytes]) -> bytes:
    found = []
    for digest in digests:
        piece = pieces.get(digest)
        if piece is None:
            raise MissingContent(f"piece {digest} is not there")
        if not is_named(piece, digest):
            raise MissingContent(f"piece {digest} is damaged")
        found.append(piece)
    return b"".join(found)


def _pieces(attributes: Mapping[str, Attribute], room: int) -> Iterator[tuple[str, str]]:
    """The pieces of a frame as attributes, none longer than `room`."""
    for name, value in attributes.items():
        if not isinstance(value, str) or not name.startswith((names.CONTENT_PREFIX, names.CONTENT_BINARY_PREFIX)):
            continue
        if len(value) <= room // 4 or len(value.encode("utf-8", "replace")) <= room:
            yield name, value
            continue
        data = value.encode("utf-8", "replace")
        if name.startswith(names.CONTENT_BINARY_PREFIX):
            try:
                data = b64decode(value, validate=True)
            except ValueError:  # whoever refers to it says that it is damaged
                yield name, value
                continue
        parts: dict[str, tuple[str, str]] = {}
        while len(data) > room or not data.startswith(_MARK):
            data = _MARK + " ".join([_piece(parts, part) for part in _slices(data, room)]).encode()
        yield from parts.values()
        yield names.CONTENT_PREFIX + name.rpartition(".")[2], data.decode()


def _piece(pieces: dict[str, tuple[str, str]], part: bytes) -> str:
    """Add a part; gives its digest."""
    digest = digest_of(part)
    pieces[digest] = piece_attribute(digest, part)
    return digest


def _slices(data: bytes, room: int) -> Iterator[bytes]:
    """Stretches of the data that take at most `room` bytes each, as text or as base64; characters stay whole."""
    try:
        data.decode()
        step, text = room, True
    except UnicodeDecodeError:
        step, text = room // 4 * 3, False
    at = 0
    while at < len(data):
        end = min(at + step, len(data))
        while text and end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[at:end]
        at = end


def _packed(frame: Frame, pieces: Iterable[tuple[str, str]], room: int) -> Iterator[Frame]:
    """Frames of contents that hold these pieces, for the run that `frame` belongs to."""
    kept: dict[str, Attribute] = {
        name: frame.attributes[name] for name in (names.SCHEMA, names.RUN_SPAN) if name in frame.attributes
    }
    attributes: dict[str, Attribute] = {}
    held = 0
    for name, text in pieces:
        size = len(text.encode("utf-8", "replace")) + len(name) + 16
        if attributes and (held + size > room or len(attributes) >= CONTENTS_PIECES):
            yield _contents(frame, kept, attributes)
            attributes, held = {}, 0
        attributes[name] = text
        held += size
    if attributes:
        yield _contents(frame, kept, attributes)


def _contents(frame: Frame, kept: dict[str, Attribute], attributes: dict[str, Attribute]) -> Frame:
    span_id = layout.contents_id(next(iter(attributes)).rpartition(".")[2])
    kept = {**kept, names.PAYLOAD_LENGTH: layout.pieces_bytes(attributes)}
    return Frame(FrameKind.CONTENTS, frame.trace_id, span_id, 0, "", frame.started_ns, 0, {**kept, **attributes})
