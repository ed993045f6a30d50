"""Exports of spans by the protobuf library: an encoder that is not ours."""

from __future__ import annotations

import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

__all__ = ["AnyValue", "ExportTraceServiceRequest", "ExportTraceServiceResponse", "KeyValue", "Span", "Status"]


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def span(number: int = 1, **over) -> Span:
    """A span of somebody else's instrumentation."""
    values = {
        "trace_id": (number << 64 | 0xABC).to_bytes(16, "big"),
        "span_id": (number + 1).to_bytes(8, "big"),
        "name": f"span {number}",
        "kind": Span.SPAN_KIND_CLIENT,
        "start_time_unix_nano": time.time_ns(),
        "end_time_unix_nano": time.time_ns() + 1_000,
    }
    return Span(**{**values, **over})


def export(*spans: Span, service: str = "a-service") -> bytes:
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=[text("service.name", service)]),
                scope_spans=[ScopeSpans(scope=InstrumentationScope(name="a-scope", version="1.2"), spans=spans)],
            )
        ]
    ).SerializeToString()


def rejected(body: bytes) -> tuple[int, str]:
    """What a response says was left out."""
    partial = ExportTraceServiceResponse.FromString(body).partial_success
    return partial.rejected_spans, partial.error_message


def frames(run_frames) -> bytes:
    """Frames of ours, as whatever ships them sends them."""
    from otel_agent_replay.recording.frames import as_otlp

    return export(*(Span.FromString(as_otlp(frame)) for frame in run_frames))
