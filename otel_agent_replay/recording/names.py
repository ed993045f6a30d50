"""The names that a recording is written under: frames, attributes, and their version.

A dotted attribute name of ours stands here and nowhere else in the package; `schemas/attributes.yaml` is
the registry that a test holds it to.
"""

from __future__ import annotations

from enum import StrEnum

SCHEMA_VERSION = 2
"""The version of everything written below; readers refuse a higher one."""

SCOPE = "otel_agent_replay"
"""Name of our instrumentation scope."""


class FrameKind(StrEnum):
    """What a frame in the spool holds; each frame is one OTLP span."""

    RUN_START = "run.start"
    """A run began: its entry and its world. Same span id as RUN."""
    RUN = "run"
    """A run ended: all of RUN_START, and how it ended."""
    CROSSING_START = "crossing.start"
    """A crossing was asked for: its input. Same span id as CROSSING."""
    CROSSING = "crossing"
    """A crossing ended: all of CROSSING_START, and its outcome."""
    READINGS = "readings"
    """Packed readings, order events and notes since the previous frame."""
    CONTENTS = "contents"
    """Pieces of content by digest, before any frame that refers to them."""


class Answered(StrEnum):
    """How a call of a replay was answered. The classes of a divergence are those of `DivergenceClass`."""

    RECORDED = "recorded"
    """From the recording, at its place."""
    MOVED = "moved"
    """From the recording, by a crossing of another lane of the same name."""
    LIVE = "live"
    """By the world: the boundary was freed."""
    DIVERGED = "diverged"
    EXHAUSTED = "exhausted"
    INCOMPLETE = "incomplete"
    NOT_ASKED = "not-asked"
    """The call ended before it asked for anything."""


FRAME = "agent_replay.frame"
SCHEMA = "agent_replay.schema"
RUN_SPAN = "agent_replay.run"
"""Span id (16 hex digits) of the run's entry; with the trace id it is the run's id."""
LANE = "agent_replay.lane"
KEY = "agent_replay.key"
ORDINAL = "agent_replay.ordinal"
KIND = "agent_replay.kind"
SEQ = "agent_replay.seq"
"""Place of a completion in the order that the program saw; absent where it never completed."""
END = "agent_replay.end"
ENTRY = "agent_replay.entry"
"""On RUN_START and RUN: kind of the entry, so that a list of runs reads no payload."""
WITHIN = "agent_replay.within"
"""On RUN_START and RUN: id of the run that this one began in; absent where it began in none."""
ORIGIN = "agent_replay.origin"
"""On RUN_START and RUN: id of the run that this one replays; absent where it is no replay."""
NOTES = "agent_replay.notes"
"""On READINGS: how many notes it holds; absent where none."""
FLAWS = "agent_replay.flaws"
"""On READINGS: how many of its notes make the run incomplete; absent where none does."""
MASKED = "agent_replay.masked"
"""On RUN: how many different values were masked in what was written of the run; absent where none."""
SERVING = "agent_replay.serving"
"""On CROSSING: who answers a model call and how it samples, as a hash of 16 hex digits; on RUN, a hash of the set."""
ANSWERED = "agent_replay.answered"
"""On CROSSING of a replay: how the call was answered, one of `Answered`; absent in a live run."""
ANSWERED_BY = "agent_replay.answered.by"
"""On CROSSING of a replay: span id (16 hex digits) of the crossing of its origin that answered it, where one did."""
KEPT = frozenset((SERVING, ANSWERED, ANSWERED_BY))
"""Names of ours that a crossing has among its semantic attributes; all others are fields of it."""
PAYLOAD = "agent_replay.payload"
PAYLOAD_LENGTH = "agent_replay.payload.length"
PAYLOAD_DIGEST = "agent_replay.payload.digest"
CONTENT_PREFIX = "agent_replay.content."
"""Followed by a digest of 32 hex digits; the value is the piece."""
CONTENT_BINARY_PREFIX = "agent_replay.content64."
"""The same for a piece that is not UTF-8: the value is its base64."""
