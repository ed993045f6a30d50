"""Frames: what a spool file is made of, and how a record becomes one.

Each frame is one OTLP span of ours, delimited as protobuf delimits messages::

    varint length | mark (tag of field 18,500,000, fixed32) | crc32 of the span, little-endian | span

so a spool file is a valid stream of delimited protobuf: to every other reader the mark and the checksum are an
unknown field. A reader of ours finds the next frame by its mark after any damage. The mark cannot occur in UTF-8
text (a continuation byte stands where none may), so recorded content never looks like a frame.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from otel_agent_replay.recording import layout, names, series, wire
from otel_agent_replay.recording.exact import dumps
from otel_agent_replay.recording.layout import MARK, PREAMBLE, as_otlp, encode
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import End, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from mmap import mmap

    from otel_agent_replay.recording.values import (
        Attribute,
        CrossingRecord,
        Json,
        Note,
        OrderEvent,
        ReadingRecord,
        RunRecord,
    )

    Data: TypeAlias = bytes | mmap

__all__ = [
    "Damage",
    "Frame",
    "Harm",
    "as_otlp",
    "contents_frames",
    "crossing_frame",
    "decode",
    "encode",
    "readings_frame",
    "run_frame",
    "scan",
]

CONTENTS_BYTES = 1 << 20
"""A frame of contents holds about so many bytes (one piece may be as long by itself) …"""

CONTENTS_PIECES = 64
"""… and so many pieces: the attributes of a span are bounded to 128 by default wherever OpenTelemetry counts them."""

_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
_CLIENT_KINDS = frozenset(kind.value for kind in (Kind.MODEL, Kind.EMBEDDING, Kind.RETRIEVAL, Kind.HTTP, Kind.DATABASE))
_SERVER_ENTRIES = frozenset({"asgi", "wsgi", "grpc"})


@dataclass(slots=True)
class Frame:
    """One OTLP span of ours, payload included."""

    kind: FrameKind
    trace_id: int
    span_id: int
    parent_span_id: int
    name: str
    started_ns: int
    ended_ns: int
    """0 where it has not ended."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    """All but `agent_replay.frame`, which is `kind`."""
    failed: bool = False
    """Span status ERROR."""
    span_kind: int = 1
    """OTLP: 1 internal, 2 server, 3 client."""
    offset: int = field(default=-1, compare=False)
    """Where in the scanned data it begins; -1 where it was not scanned."""
    size: int = field(default=0, compare=False)
    """Bytes that it takes there, its length prefix included."""


class Harm(StrEnum):
    """What is wrong with a stretch of a spool file."""

    TORN = "torn"
    """The last frame is still being written, or its writer died."""
    DAMAGED = "damaged"
    """Something else than a whole frame stands here."""
    FOREIGN = "not a spool file"
    """Nothing in the file is ours."""
    NEWER = "newer version"
    """A whole frame of a later schema than this version reads."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a spool file that gives no frame."""

    offset: int
    length: int
    why: str
    """One clause, to stand after the name of the file."""
    harm: Harm


def run_frame(run: RunRecord, kind: FrameKind) -> Frame:
    """RUN_START or RUN. Its payload holds `entry` and `world`, and `outcome` once the run has ended.

    `entry` gives the attributes too: `kind`, `within.run` and `origin` (the run that this one replays); `outcome`
    gives `serving`, and `masked` (a count by kind) the sum of that.
    """
    payload: dict[str, Json] = {"entry": run.entry, "world": run.world}
    attributes = _entry_attributes(run)
    failed = False
    if kind is FrameKind.RUN:
        payload["outcome"] = run.outcome
        attributes[names.END] = str(run.end)
        if run.outcome.get("serving"):
            attributes[names.SERVING] = str(run.outcome["serving"])
        if masked := masked_total(run.outcome):
            attributes[names.MASKED] = masked
        failed = run.end is End.RAISED or run.outcome.get("exit_status") not in (None, 0)
    return Frame(
        kind,
        run.trace_id,
        run.span_id,
        run.parent_span_id,
        run.name,
        run.started_ns,
        run.ended_ns if kind is FrameKind.RUN else 0,
        _sealed(run, attributes, dumps(payload)),
        failed=failed,
        span_kind=run_span_kind(run),
    )


def masked_total(outcome: Mapping[str, Json]) -> int:
    """How many different values were masked, by what the end of a run says of it."""
    kinds = outcome.get("masked")
    return sum(count for count in kinds.values() if type(count) is int) if isinstance(kinds, dict) else 0


def crossing_frame(run: RunRecord, record: CrossingRecord, payload: str, kind: FrameKind) -> Frame:
    """CROSSING_START or CROSSING. Name, semantic attributes, digest and how it ended stand on CROSSING only."""
    position = record.position
    whole = kind is FrameKind.CROSSING
    attributes: dict[str, Attribute] = dict(record.attributes) if whole else {}
    attributes[names.LANE] = position.lane
    attributes[names.KEY] = position.key
    attributes[names.ORDINAL] = position.ordinal
    attributes[names.KIND] = record.kind.value
    if whole:
        attributes[names.END] = record.end.value
        if record.seq is not None:
            attributes[names.SEQ] = record.seq
    return Frame(
        kind,
        run.trace_id,
        record.span_id,
        record.parent_span_id,
        record.name if whole else position.key,
        record.started_ns,
        record.ended_ns if whole else 0,
        _sealed(run, attributes, payload, digest=whole),
        failed=whole and record.end is End.RAISED,
        span_kind=crossing_span_kind(record.kind),
    )


def readings_frame(
    run: RunRecord,
    readings: Sequence[ReadingRecord],
    order: Sequence[OrderEvent],
    notes: Sequence[Note],
    *,
    span_id: int,
    now_ns: int,
) -> Frame:
    """READINGS. Its payload holds lists, each left out where it is empty.

    `readings` of [lane, source, site, first, values as `series` packs them]; `order` of [lane, key, ordinal, seq];
    `notes` of [kind, what, where, incomplete].
    """
    payload: dict[str, Json] = {}
    if readings:
        payload["readings"] = [[r.lane, r.source, r.site, r.first, series.pack(r.values)] for r in readings]
    if order:
        payload["order"] = [[o.lane, o.key, o.ordinal, o.seq] for o in order]
    if notes:
        payload["notes"] = [[str(n.kind), n.what, n.where, n.incomplete] for n in notes]
    counts: dict[str, Attribute] = {}
    if notes:
        counts[names.NOTES] = len(notes)
        if flaws := sum(note.incomplete for note in notes):
            counts[names.FLAWS] = flaws
    attributes = _sealed(run, counts, dumps(payload))
    return Frame(FrameKind.READINGS, run.trace_id, span_id, run.span_id, "", now_ns, 0, attributes)


def contents_frames(run: RunRecord, pieces: Mapping[str, bytes], now_ns: int) -> list[Frame]:
    """CONTENTS: pieces by digest (32 hex digits), as many frames as the bounds ask for.

    The span id is the beginning of the first digest, so that the same pieces sent again are the same span.
    """
    frames: list[Frame] = []
    held = 0
    attributes: dict[str, Attribute] = {}
    for digest, piece in pieces.items():
        key, text = piece_attribute(digest, piece)
        length = len(piece) if key.startswith(names.CONTENT_PREFIX) else len(text)
        if not frames or held + length > CONTENTS_BYTES or len(attributes) >= CONTENTS_PIECES + 3:
            attributes = {}
            held = 0
            span_id = layout.contents_id(digest)
            frames.append(Frame(FrameKind.CONTENTS, run.trace_id, span_id, 0, "", now_ns, 0, attributes))
            attributes[names.SCHEMA] = names.SCHEMA_VERSION
            attributes[names.RUN_SPAN] = layout.hex_id(run.span_id)
        attributes[key] = text
        held += length
        attributes[names.PAYLOAD_LENGTH] = held
    return frames


def _entry_attributes(run: RunRecord) -> dict[str, Attribute]:
    """What a list of runs says of an entry."""
    attributes: dict[str, Attribute] = {names.ENTRY: str(run.entry.get("kind") or "")}
    within = run.entry.get("within")
    if isinstance(within, dict) and within.get("run"):
        attributes[names.WITHIN] = str(within["run"])
    if run.entry.get("origin"):
        attributes[names.ORIGIN] = str(run.entry["origin"])
    return attributes


def piece_attribute(digest: str, piece: bytes) -> tuple[str, str]:
    """The attribute that holds a piece: its name and its value."""
    try:
        return names.CONTENT_PREFIX + digest, piece.decode()
    except UnicodeDecodeError:
        return names.CONTENT_BINARY_PREFIX + digest, b64encode(piece).decode()


def _sealed(
    run: RunRecord, attributes: dict[str, Attribute], payload: str, *, digest: bool = True
) -> dict[str, Attribute]:
    """Add the payload, with the length and the digest by which a cut or a change on its way is found."""
    data = payload.encode("utf-8", "replace")
    attributes[names.SCHEMA] = names.SCHEMA_VERSION
    attributes[names.RUN_SPAN] = layout.hex_id(run.span_id)
    attributes[names.PAYLOAD_LENGTH] = len(data)
    if digest:
        attributes[names.PAYLOAD_DIGEST] = payload_digest(data)
    attributes[names.PAYLOAD] = payload
    return attributes


def payload_digest(payload: bytes) -> str:
    """What `agent_replay.payload.digest` says of a payload: 16 hex digits."""
    return blake2b(payload, digest_size=8).hexdigest()


def run_span_kind(run: RunRecord) -> int:
    """OTLP kind of a run's span: a request that is served is a server's, all else internal."""
    return _SERVER if run.entry.get("kind") in _SERVER_ENTRIES else _INTERNAL


def crossing_span_kind(kind: Kind) -> int:
    """OTLP kind of a crossing's span."""
    return _CLIENT if kind.value in _CLIENT_KINDS else _INTERNAL


def decode(data: bytes) -> Frame:
    """The frame that a span holds, whether written by `encode` (less its preamble) or by `as_otlp`.

    Raises:
        wire.MalformedError: these bytes are no frame of ours.
        layout.NewerSchemaError: they are one of a later version.
    """
    kind, span = layout.unpack(data)
    return Frame(
        kind,
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        span.started_ns,
        span.ended_ns,
        span.attributes,
        failed=span.status == wire.STATUS_ERROR,
        span_kind=span.kind,
    )


def scan(data: Data, offset: int = 0) -> Iterator[Frame | Damage]:
    """Every frame from `offset` on, and what stands between them, in the order of the file.

    After damage the next frame is found by its mark, so a tear loses only the frame that it is in. The sizes of
    what is given add up to all of the data.
    """
    size = len(data)
    position, found = offset, offset > 0
    while position < size:
        end, why = _whole(data, position, size)
        if end is not None:
            found = True
            yield _decoded(data, position, end)
        else:
            following = _resync(data, position + 1, size)
            end = size if following is None else following
            yield _damage(position, end, why, last=following is None, found=found)
        position = end


def _decoded(data: Data, position: int, end: int) -> Frame | Damage:
    _, start = _length(data, position, end)
    try:
        frame = decode(data[start + PREAMBLE : end])
    except layout.NewerSchemaError as newer:
        return Damage(position, end - position, str(newer), Harm.NEWER)
    except wire.MalformedError as error:
        return Damage(position, end - position, f"a frame cannot be read: {error}", Harm.DAMAGED)
    frame.offset, frame.size = position, end - position
    return frame


def _length(data: Data, position: int, size: int) -> tuple[int | None, int]:
    """The length prefix at an offset, None where there is none, and the offset after it."""
    length = shift = 0
    for at in range(position, min(position + 5, size)):
        byte = data[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at + 1
        shift += 7
    return None, position


_TORN = "a frame was not written whole"


def _whole(data: Data, position: int, size: int) -> tuple[int | None, str]:
    """Where the frame that begins here ends; None and why where no whole frame does."""
    length, start = _length(data, position, size)
    if length is None:
        return None, _TORN if size - position < 5 else "no frame begins there"
    if length < PREAMBLE or data[start : start + 4] != MARK[: size - start]:
        return None, "no frame begins there"
    end = start + length
    if end > size:
        return None, _TORN
    if crc32(data[start + PREAMBLE : end]) != int.from_bytes(data[start + 4 : start + PREAMBLE], "little"):
        return None, "a checksum is wrong"
    return end, ""


def _resync(data: Data, position: int, size: int) -> int | None:
    """The offset of the next whole frame; its length stands before its mark, in one to five bytes.

    A file that is made to look like the beginnings of many large frames is given up, not searched for ever.
    """
    budget = 8 * (size - position) + (1 << 20)
    mark = data.find(MARK, position)
    while mark >= 0 and budget > 0:
        for start in range(mark - 1, max(mark - 6, position - 1), -1):
            if start < mark - 1 and data[start] < 0x80:
                break
            length, after = _length(data, start, size)
            if length is None or after != mark or after + length > size:
                continue
            budget -= length
            if _whole(data, start, size)[0] is not None:
                return start
        mark = data.find(MARK, mark + 1)
    return None


def _damage(start: int, end: int, why: str, *, last: bool, found: bool) -> Damage:
    length = end - start
    if not last:
        return Damage(start, length, f"{length} bytes at {start} are damaged ({why})", Harm.DAMAGED)
    if why == _TORN:
        return Damage(start, length, f"its last {length} bytes are a frame that was not written whole", Harm.TORN)
    if not found:
        return Damage(start, length, "it is not a spool file", Harm.FOREIGN)
    return Damage(start, length, f"its last {length} bytes are damaged ({why})", Harm.DAMAGED)
