"""Our protobuf against the protobuf library, both ways."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as PbSpan

from otel_agent_replay.recording import wire

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUE = st.one_of(TEXT, st.booleans(), INT64, st.floats(allow_nan=False), st.lists(TEXT, max_size=4))
UINT64 = st.integers(0, 2**64 - 1)

SPANS = st.builds(
    wire.Span,
    trace_id=st.integers(0, 2**128 - 1),
    span_id=UINT64,
    parent_span_id=UINT64,
    name=TEXT,
    kind=st.integers(0, 5),
    started_ns=UINT64,
    ended_ns=UINT64,
    attributes=st.dictionaries(TEXT.filter(bool), VALUE, max_size=6),
    status=st.sampled_from([0, 2]),
)


def any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))


def oracle(span: wire.Span) -> PbSpan:
    """The same span, built with the library."""
    built = PbSpan(
        trace_id=span.trace_id.to_bytes(16, "big") if span.trace_id else b"",
        span_id=span.span_id.to_bytes(8, "big") if span.span_id else b"",
        parent_span_id=span.parent_span_id.to_bytes(8, "big") if span.parent_span_id else b"",
        name=span.name,
        kind=span.kind,  # type: ignore[arg-type]
        start_time_unix_nano=span.started_ns,
        end_time_unix_nano=span.ended_ns,
        attributes=[KeyValue(key=key, value=any_value(value)) for key, value in span.attributes.items()],
    )
    if span.status:
        built.status.code = span.status  # type: ignore[assignment]
    return built


@settings(deadline=None)
@given(SPANS)
def test_writes_the_bytes_that_the_library_writes(span: wire.Span) -> None:
    assert wire.encode(span) == oracle(span).SerializeToString()


@settings(deadline=None)
@given(SPANS)
def test_reads_what_the_library_writes(span: wire.Span) -> None:
    assert wire.decode(oracle(span).SerializeToString()) == span


@settings(deadline=None)
@given(SPANS)
def test_the_library_reads_what_is_written(span: wire.Span) -> None:
    assert PbSpan.FromString(wire.encode(span)) == oracle(span)


def test_passes_over_what_it_does_not_know() -> None:
    full = oracle(wire.Span(trace_id=1, span_id=2, name="n", attributes={"a": "b"}))
    full.trace_state = "x=y"
    full.flags = 257
    full.dropped_attributes_count = 3
    full.events.add(name="event", time_unix_nano=5)
    full.links.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    full.status.message = "broken"
    full.status.code = 2  # type: ignore[assignment]
    full.attributes.add(key="bytes", value=AnyValue(bytes_value=b"\0\xff"))
    full.attributes.add(key="nothing")
    span = wire.decode(full.SerializeToString())
    assert (span.trace_id, span.span_id, span.name, span.status) == (1, 2, "n", 2)
    assert span.attributes == {"a": "b"}
    assert [number for number, _ in span.others] == [3, 10, 11, 13, 16]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a\ud800b", "a?b"),
        (2**63, str(2**63)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (["ok", "\udfff"], ["ok", "?"]),
    ],
)
def test_nothing_raises_for_what_cannot_be_written(value: Any, written: Any) -> None:
    read = wire.decode(wire.attribute("k\udc80", value))
    assert read.attributes == {"k?": written}


def test_floats_keep_their_bits() -> None:
    for value in (math.nan, math.inf, -math.inf, -0.0, 5e-324):
        read = wire.decode(wire.attribute("f", value)).attributes["f"]
        assert isinstance(read, float)
        assert math.copysign(1, read) == math.copysign(1, value)
        assert read == value or (math.isnan(read) and math.isnan(value))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_span_or_a_malformed_error(data: bytes) -> None:
    try:
        wire.decode(data)
    except wire.MalformedError:
        return


@settings(deadline=None)
@given(SPANS, st.data())
def test_cut_spans_never_raise_anything_else(span: wire.Span, data: st.DataObject) -> None:
    whole = wire.encode(span)
    cut = data.draw(st.integers(0, len(whole)))
    try:
        wire.decode(whole[:cut])
    except wire.MalformedError:
        return


@settings(deadline=None)
@given(UINT64)
def test_varint(value: int) -> None:
    encoded = wire.varint(value)
    assert wire.read_varint(encoded, 0, len(encoded)) == (value, len(encoded))
