"""Frames as rows of the landing table, and rows as frames again.

Rows travel as ClickHouse's RowBinary, where a String is its bytes: a NUL, a control character or anything that
is not UTF-8 comes back as it went in, over HTTP and embedded alike.
"""

from __future__ import annotations

import base64
import math
from decimal import Decimal
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

import orjson

from otel_agent_replay.recording import names
from otel_agent_replay.recording.frames import Frame
from otel_agent_replay.store.attributes import typed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.names import FrameKind
    from otel_agent_replay.recording.values import Attribute

LANDING = "otel_traces"
"""The landing table."""

LANDING_COLUMNS = (
    "Timestamp",
    "TraceId",
    "SpanId",
    "ParentSpanId",
    "TraceState",
    "SpanName",
    "SpanKind",
    "ServiceName",
    "ResourceAttributes",
    "ScopeName",
    "ScopeVersion",
    "SpanAttributes",
    "Duration",
    "StatusCode",
    "StatusMessage",
    "Events.Timestamp",
    "Events.Name",
    "Events.Attributes",
    "Links.TraceId",
    "Links.SpanId",
    "Links.TraceState",
    "Links.Attributes",
)
"""What the Collector's exporter inserts, in its order."""

_SPAN_KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
_INT64 = Struct("<q").pack
_UINT64 = Struct("<Q").pack
_NO_EVENTS_NO_LINKS = b"\0" * 7
_EMPTY = b"\0"
_FAILED, _UNSET = b"\x05Error", b"\x05Unset"
_CONTENT = names.CONTENT_PREFIX.rstrip(".")
_SCOPE = bytes((len(names.SCOPE),)) + names.SCOPE.encode()
_FRAME = bytes((len(names.FRAME),)) + names.FRAME.encode()


def landing_row(frame: Frame) -> list[bytes]:
    """One row of `LANDING_COLUMNS` as RowBinary, in pieces; a payload is not copied into a larger one."""
    parent = b"\x10" + f"{frame.parent_span_id:016x}".encode() if frame.parent_span_id else _EMPTY
    kind = _SPAN_KINDS[frame.span_kind] if 0 <= frame.span_kind < len(_SPAN_KINDS) else _SPAN_KINDS[0]
    out = [
        _INT64(frame.started_ns),
        b"\x20%032x\x10%016x" % (frame.trace_id, frame.span_id),
        parent,
        _EMPTY,  # trace state
        _sized(frame.name),
        _known(kind),
        _EMPTY,  # service
        _EMPTY,  # resource attributes
        _SCOPE,
        _EMPTY,  # scope version
        _varint(len(frame.attributes) + 1),
        _FRAME,
        _known(frame.kind.value),
    ]
    for name, value in frame.attributes.items():
        out.append(_sized(name) if name.startswith(_CONTENT) else _known(name))
        data = (value if isinstance(value, str) else as_text(value)).encode("utf-8", "replace")
        out.append(_varint(len(data)))
        out.append(data)
    out += (
        _UINT64(max(frame.ended_ns - frame.started_ns, 0) if frame.ended_ns else 0),
        _FAILED if frame.failed else _UNSET,
        _EMPTY,  # status message
        _NO_EVENTS_NO_LINKS,
    )
    return out


def as_text(value: Attribute) -> str:
    """An attribute as the Collector writes it into a map of strings."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    return orjson.dumps(value).decode()


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa}e{exponent[0] if exponent[0] in '+-' else '+'}{exponent.lstrip('+-').lstrip('0')}"


def frame_of(
    kind: FrameKind,
    run_id: str,
    span_id: str,
    *,
    parent_span_id: str = "",
    name: str = "",
    started_ns: int = 0,
    duration_ns: int = 0,
    finished: bool = True,
    failed: bool = False,
    span_kind: int = 1,
    attributes: Mapping[str, str],
    payload: bytes | None = None,
) -> Frame:
    """The frame that a row was made of. Attributes get their types back by name.

    A payload that is not UTF-8 cannot have been written by us; it is kept with replacement characters, and its
    digest then says that it is not what was recorded.
    """
    values: dict[str, Attribute] = {key: typed(key, value) for key, value in attributes.items()}
    values[names.RUN_SPAN] = run_id[33:]
    if payload is not None:
        values[names.PAYLOAD] = payload.decode("utf-8", "replace")
    return Frame(
        kind=kind,
        trace_id=int(run_id[:32], 16),
        span_id=int(span_id, 16),
        parent_span_id=int(parent_span_id or "0", 16),
        name=name,
        started_ns=started_ns,
        ended_ns=started_ns + duration_ns if finished else 0,
        attributes=values,
        failed=failed,
        span_kind=span_kind,
    )


def content_attribute(digest: str, content: bytes) -> tuple[str, str]:
    """The attribute that holds a piece of content."""
    try:
        return names.CONTENT_PREFIX + digest, content.decode()
    except UnicodeDecodeError:
        return names.CONTENT_BINARY_PREFIX + digest, base64.b64encode(content).decode()


def _sized(text: str) -> bytes:
    """A String: its length and its bytes."""
    data = text.encode("utf-8", "replace")
    return _varint(len(data)) + data


@lru_cache(maxsize=4096)
def _known(text: str) -> bytes:
    """The same for a text that comes again and again."""
    return _sized(text)


def _varint(value: int) -> bytes:
    if value < 128:
        return value.to_bytes(1, "little")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def binary_row(*values: str | bool | int) -> bytes:
    """A row of String, Bool and UInt64 (or DateTime64(9), in nanoseconds) columns, as RowBinary."""
    out: list[bytes] = []
    for value in values:
        if isinstance(value, str):
            out.append(_sized(value))
        elif isinstance(value, bool):
            out.append(b"\1" if value else b"\0")
        else:
            out.append(_UINT64(value))
    return b"".join(out)
