"""What an export comes to, over gRPC and over HTTP alike."""

from __future__ import annotations

from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from otel_agent_replay.recording.wire import varint
from otel_agent_replay.server import limits
from otel_agent_replay.server.spans import decode

if TYPE_CHECKING:
    from otel_agent_replay.server.commit import Committer
    from otel_agent_replay.server.spans import Batch

RETRY_SECONDS = 1
"""Seconds after which a client that was refused for now may come again."""

TRACES_ONLY = (
    "agent-replay serve keeps traces only; set OTEL_METRICS_EXPORTER=none and OTEL_LOGS_EXPORTER=none, "
    "or send these elsewhere."
)
"""What a client is told that sends metrics or logs: to take them and drop them would be a silent loss."""

_DECODED = BoundedSemaphore(limits.DECODED)
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def export(committer: Committer, data: bytes) -> Batch:
    """Store the spans of a request; returns when they are stored.

    Raises MalformedError where it is none, OverloadedError and UnavailableError where the client is to come again.
    """
    with _DECODED:
        batch = decode(data)
    committer.submit(batch)
    return batch


def response(batch: Batch) -> bytes:
    """ExportTraceServiceResponse: empty where everything is stored, else what was left out and why."""
    if not batch.rejected:
        return b""
    said = b"\x08" + varint(batch.rejected) + message(2, why(batch))
    return b"\x0a" + varint(len(said)) + said


def why(batch: Batch) -> str:
    """One sentence on the spans that were left out."""
    return f"{batch.rejected:,} spans were left out; the first has {batch.why}."


def message(number: int, text: str) -> bytes:
    """A field that holds text."""
    data = text.encode()
    return varint(number << 3 | 2) + varint(len(data)) + data


def status(code: int, sentence: str, *, retry: bool = False) -> bytes:
    """google.rpc.Status."""
    details = b""
    if retry:
        packed = message(1, _RETRY_INFO) + b"\x12" + varint(len(retry_info())) + retry_info()
        details = b"\x1a" + varint(len(packed)) + packed
    return b"\x08" + varint(code) + message(2, sentence) + details


def retry_info() -> bytes:
    """google.rpc.RetryInfo: when to come again."""
    delay = b"\x08" + varint(RETRY_SECONDS)
    return b"\x0a" + varint(len(delay)) + delay
