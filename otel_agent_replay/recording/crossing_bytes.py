"""The frames of a crossing and of its content, straight to bytes: both are made twice for every call of a program.

They are what `encode(crossing_frame(…))` gives, fields in another order, and what `encode` gives of
`contents_frames(…)`, in a third of the time. Tests hold them to each other.
"""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from otel_agent_replay.recording import layout, names, wire
from otel_agent_replay.recording.frames import CONTENTS_BYTES, CONTENTS_PIECES, crossing_span_kind
from otel_agent_replay.recording.layout import FRAME_FIELDS, HEX_TAGS, NUMBER_TAGS, TEXT_TAGS
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import End

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.values import CrossingRecord, Kind, RunRecord

_START, _WHOLE, _CONTENTS = FrameKind.CROSSING_START.value, FrameKind.CROSSING.value, FrameKind.CONTENTS.value
_SCHEMA = NUMBER_TAGS[names.SCHEMA] + wire.varint(names.SCHEMA_VERSION)
_RAISED = End.RAISED
_ENDS = {end: layout.attribute(names.END, end.value) for end in End}
_FAILED = wire.status(failed=True)
_BEGUN = Struct(">2sQ")
_BEGAN = Struct("<BQ")
_ENDED = Struct("<BQBQ")
_ORDINAL, _SEQ = NUMBER_TAGS[names.ORDINAL], NUMBER_TAGS[names.SEQ]
_PAYLOAD, _DIGEST = TEXT_TAGS[names.PAYLOAD], HEX_TAGS[names.PAYLOAD_DIGEST]
_OURS = frozenset(
    name
    for name in vars(names).values()
    if isinstance(name, str) and name.startswith("agent_replay.") and name not in names.KEPT
)
_PIECE_HEAD = 2 + 16 + 1
"""Bytes of a piece of content that are neither its text nor the length of that: tag and digest, tag of the text."""
_MOST = 1024

_fixed: dict[tuple[int, int, str, str, Kind, bool], bytes] = {}
"""What the frames of one boundary in one lane have in common."""


def crossing_bytes(run: RunRecord, record: CrossingRecord, payload: bytes, *, whole: bool) -> list[bytes]:
    """The bytes of a crossing's frame, CROSSING where `whole`, else CROSSING_START. `payload` is UTF-8."""
    position = record.position
    same = (run.trace_id, run.span_id, position.lane, position.key, record.kind, whole)
    fixed = _fixed.get(same) or _fix(*same)
    parts: list[bytes | int] = [fixed, _BEGUN.pack(b"\x12\x08", record.span_id), _ORDINAL, position.ordinal]
    if record.parent_span_id != run.span_id:
        parts.append(_BEGUN.pack(b"\x22\x08", record.parent_span_id))
    if whole:
        _append_end(parts, record)
        parts += (_DIGEST, blake2b(payload, digest_size=8).digest())
    else:
        parts.append(_BEGAN.pack(0x39, record.started_ns))
    parts += (_PAYLOAD, len(payload), payload)
    return layout.delimited(parts)


def contents_bytes(run: RunRecord, pieces: Mapping[str, bytes], now_ns: int) -> list[bytes]:
    """The bytes of the frames of CONTENTS that hold these pieces, by digest (32 hex digits)."""
    if not pieces:
        return []
    found: list[bytes] = []
    parts: list[bytes | int] = []
    held = count = 0
    for digest, piece in pieces.items():
        form, data = (b"\x12", piece) if _is_utf8(piece) else (b"\x1a", b64encode(piece))
        if not count or held + len(data) > CONTENTS_BYTES or count == CONTENTS_PIECES:
            if count:
                found += layout.delimited(parts)
            before, after = _contents_head(run.trace_id, run.span_id)
            parts = [before, _BEGAN.pack(0x39, now_ns), after]
            held = count = 0
        size = len(data)
        whole = _PIECE_HEAD + wire.varint_size(size) + size
        parts += (layout.PIECE_TAG, whole, b"\x0a\x10", bytes.fromhex(digest), form, size, data)
        held += size
        count += 1
    return found + layout.delimited(parts) if count else found


@lru_cache(_MOST)
def _contents_head(trace_id: int, run_span: int) -> tuple[bytes, bytes]:
    """What stands before the time of a frame of contents, and after it."""
    after = (FRAME_FIELDS[_CONTENTS], _SCHEMA, HEX_TAGS[names.RUN_SPAN], run_span.to_bytes(8, "big"))
    return wire.head(trace_id, 0, 0, "", 0, 0, 0), b"".join(after)


def _is_utf8(piece: bytes) -> bool:
    if piece.isascii():
        return True
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _append_end(parts: list[bytes | int], record: CrossingRecord) -> None:
    parts.append(_ENDED.pack(0x39, record.started_ns, 0x41, record.ended_ns))
    if record.name != record.position.key:
        called = record.name.encode("utf-8", "replace")
        parts += (b"\x2a", len(called), called)
    parts.append(_ENDS[record.end])
    if record.seq is not None:
        parts += (_SEQ, record.seq)
    if record.end is _RAISED:
        parts.append(_FAILED)
    parts.append(layout.attributes(record.attributes, _OURS))


def _fix(trace_id: int, run_span: int, lane: str, key: str, kind: Kind, whole: bool) -> bytes:  # noqa: FBT001 (a key)
    parts = [
        wire.head(trace_id, 0, 0, "", 3 if crossing_span_kind(kind) == 3 else 0, 0, 0),
        FRAME_FIELDS[_WHOLE if whole else _START],
        HEX_TAGS[names.RUN_SPAN],
        run_span.to_bytes(8, "big"),
    ]
    layout.append(parts, names.SCHEMA, names.SCHEMA_VERSION)
    layout.append(parts, names.LANE, lane)
    layout.append(parts, names.KEY, key)
    layout.append(parts, names.KIND, kind.value)
    if len(_fixed) >= _MOST:
        _fixed.clear()
    made = _fixed[trace_id, run_span, lane, key, kind, whole] = b"".join(parts)
    return made
