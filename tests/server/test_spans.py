"""Requests as rows: both readers say the same, in the exporter's words, and nothing makes them fail otherwise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_agent_replay.recording.wire import MalformedError
from otel_agent_replay.server import spans
from otel_agent_replay.server.spans_json import to_protobuf
from otel_agent_replay.server.values import Budget, SpanError, text_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAF = st.one_of(
    TEXT.map(lambda text: AnyValue(string_value=text)),
    st.booleans().map(lambda value: AnyValue(bool_value=value)),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: AnyValue(int_value=value)),
    st.floats().map(lambda value: AnyValue(double_value=value)),
    st.binary(max_size=10).map(lambda value: AnyValue(bytes_value=value)),
    st.just(AnyValue()),
)
VALUE = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: AnyValue(array_value={"values": values})),
        st.dictionaries(TEXT, inner, max_size=3).map(
            lambda held: AnyValue(
                kvlist_value={"values": [KeyValue(key=key, value=value) for key, value in held.items()]}
            )
        ),
    ),
    max_leaves=6,
)
PAIRS = st.dictionaries(TEXT, VALUE, max_size=5).map(
    lambda held: [KeyValue(key=key, value=value) for key, value in held.items()]
)
TIME = st.integers(0, (1 << 64) - 1)
IDENT = st.binary(max_size=17)
SPAN = st.builds(
    Span,
    trace_id=IDENT,
    span_id=IDENT,
    parent_span_id=IDENT,
    trace_state=TEXT,
    name=TEXT,
    kind=st.integers(0, 5),
    start_time_unix_nano=TIME,
    end_time_unix_nano=TIME,
    attributes=PAIRS,
    events=st.lists(st.builds(Span.Event, time_unix_nano=TIME, name=TEXT, attributes=PAIRS), max_size=2),
    links=st.lists(st.builds(Span.Link, trace_id=IDENT, span_id=IDENT, trace_state=TEXT, attributes=PAIRS), max_size=2),
)


@given(SPAN)
@settings(max_examples=200, deadline=None)
def test_both_readers_say_the_same(span: Span):
    data = span.SerializeToString()
    assert spans.read_small(Budget(), data) == spans.read_large(Budget(), data)


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused_or_read_and_nothing_else(data: bytes, inner: bytes):
    span = b"\x12" + bytes([len(inner) & 127]) + inner
    scope = b"\x12" + bytes([len(span) & 127]) + span
    for body in (data, scope, b"\x0a" + bytes([len(scope) & 127]) + scope):
        try:
            spans.decode(body)
        except MalformedError:
            pass


@given(st.one_of(st.binary(max_size=100), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(
        ["resourceSpans", "scopeSpans", "spans", "attributes", "key", "value", "traceId", "stringValue", "intValue",
         "arrayValue", "values", "startTimeUnixNano", "kind", "status", "code"]), inner, max_size=4)),
    max_leaves=12,
).map(lambda held: json.dumps({"resourceSpans": held}).encode())))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_garbage_in_json_is_refused_or_read_and_nothing_else(body: bytes):
    try:
        spans.decode(to_protobuf(body))
    except MalformedError:
        pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (AnyValue(string_value="<é>"), "<é>"),
        (AnyValue(bool_value=True), "true"),
        (AnyValue(bool_value=False), "false"),
        (AnyValue(int_value=-(1 << 63)), "-9223372036854775808"),
        (AnyValue(double_value=1.0), "1"),
        (AnyValue(double_value=1e21), "1e+21"),
        (AnyValue(double_value=float("nan")), "NaN"),
        (AnyValue(bytes_value=b"\x01\x02"), "AQI="),
        (AnyValue(), ""),
        (
            AnyValue(array_value={"values": [AnyValue(string_value="a"), AnyValue(int_value=1), AnyValue()]}),
            '["a",1,null]',
        ),
        (
            AnyValue(kvlist_value={"values": [
                KeyValue(key="b", value=AnyValue(bool_value=True)),
                KeyValue(key="a", value=AnyValue(bytes_value=b"\x01"))]}),
            '{"a":"AQ==","b":true}',
        ),
        (AnyValue(array_value={"values": [AnyValue(string_value="<&>")]}), '["\\u003c\\u0026\\u003e"]'),
    ],
)  # fmt: skip
def test_a_value_is_written_as_the_exporter_writes_it(value: AnyValue, text: str):
    assert text_of(Budget(), value.SerializeToString()).decode() == text


def test_the_last_of_two_attributes_of_one_name_counts():
    pair = KeyValue(key="k", value=AnyValue(string_value="first"))
    other = KeyValue(key="k", value=AnyValue(string_value="last"))
    data = Span(attributes=[pair, other]).SerializeToString()
    assert spans.read_small(Budget(), data).attributes == {b"k": b"last"}


def test_a_large_span_is_read_too(otlp):
    body = otlp.export(otlp.span(attributes=[otlp.text("big", "é" * spans.SMALL)]))
    batch = spans.decode(body)
    assert (batch.accepted, batch.rejected) == (1, 0)
    assert any(piece.decode("utf-8", "ignore").startswith("éé") for piece in batch.rows[0].pieces)


@pytest.mark.parametrize("kind", ["run", "crossing", "readings", "contents"])
def test_a_frame_of_no_run_is_left_out(otlp, kind: str):
    for run in ("", "x" * 16, "A" * 16, "0" * 15, "'; DROP TABLE"):
        attributes = [otlp.text("agent_replay.frame", kind), otlp.text("agent_replay.run", run)]
        batch = spans.decode(otlp.export(otlp.span(attributes=attributes)))
        assert (batch.accepted, batch.why) == (0, "a run's span id that is none")


def test_errors_of_spans_are_clauses(otlp):
    batch = spans.decode(otlp.export(otlp.span(trace_id=b"x"), otlp.span(span_id=b"x")))
    assert batch.rejected == 2
    assert batch.why.startswith("a trace id of 1 bytes")
    assert issubclass(SpanError, ValueError)
