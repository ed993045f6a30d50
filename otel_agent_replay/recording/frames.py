"""Frames: what a spool file is made of, and how a record becomes one. (Encoding to follow.)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_agent_replay.recording.names import FrameKind
    from otel_agent_replay.recording.values import Attribute


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
