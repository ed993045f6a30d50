"""Spans in: by both protocols, by the SDK's own exporters, and from clients that mean harm."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import zlib

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, SpanContext, StatusCode

from otel_agent_replay.recording.frames import Frame
from otel_agent_replay.recording.parts import split
from otel_agent_replay.store import find
from otel_agent_replay.store.spool import Spool

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def call(served, body: bytes, method: str = TRACES, **options) -> bytes:
    target = served.said["otlp_grpc"].removeprefix("http://")
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        return channel.unary_unary(method)(body, timeout=60, **options)


def send(served, body: bytes, way: str) -> bytes:
    if way == "grpc":
        return call(served, body)
    answer = served.traces(body)
    assert answer.status == 200, answer.text
    return answer.body


def refused(served, body: bytes, way: str) -> tuple[object, str]:
    if way == "grpc":
        with pytest.raises(grpc.RpcError) as caught:
            call(served, body)
        return caught.value.code(), caught.value.details()
    answer = served.traces(body)
    assert answer.status >= 400
    return answer.status, answer.text


BAD = {"grpc": grpc.StatusCode.INVALID_ARGUMENT, "http": 400}


@pytest.mark.parametrize("protocol", ["grpc", "http", "http-gzip"])
def test_the_sdk_exports_here_and_every_field_arrives(shared, protocol: str):
    if protocol == "grpc":
        exporter = GrpcExporter(endpoint=shared.said["otlp_grpc"], insecure=True)
    else:
        packed = Compression.Gzip if protocol == "http-gzip" else Compression.NoCompression
        exporter = HttpExporter(endpoint=f"{shared.said['otlp_http']}/v1/traces", compression=packed)
    service = f"sdk-{protocol}"
    provider = TracerProvider(resource=Resource({"service.name": service, "n": 1}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    link = SpanContext(0xABC, 0xDEF, is_remote=True)
    tracer = provider.get_tracer("scope", "1.0")
    with (
        tracer.start_as_current_span("parent", links=[Link(link)]),
        tracer.start_as_current_span("child é") as child,
    ):
        child.set_attributes({"s": "x\0é", "i": 7, "f": 0.5, "b": True, "l": ["a", "b"], "n": [1, 2]})
        child.add_event("event", {"e": 1})
        child.set_status(StatusCode.ERROR, "it failed")
    provider.shutdown()
    rows = shared.rows(
        "SELECT name, scope, status, status_message, attributes['i'], attributes['f'], attributes['b'], "
        "attributes['l'], attributes['n'], parent_span_id != '' FROM otel.spans "
        f"WHERE service = '{service}' ORDER BY name"
    )
    assert rows == [
        ["child é", "scope", "Error", "it failed", "7", "0.5", "true", '["a","b"]', "[1,2]", "1"],
        ["parent", "scope", "Unset", "", "", "", "", "", "", "0"],
    ]
    linked = shared.rows(f"SELECT linked FROM otel.spans WHERE service = '{service}' AND name = 'parent'")
    assert linked == [[f"['{0xABC:032x}-{0xDEF:016x}']"]]


def test_json_is_stored_as_protobuf_is(shared):
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "json"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "s"},
                        "spans": [
                            {
                                "traceId": "5b8efff798038103d269b633813fc60c",
                                "spanId": "eee19b7ec3c1b174",
                                "name": "named",
                                "kind": 3,
                                "startTimeUnixNano": "1544712660000000000",
                                "endTimeUnixNano": "1544712661000000000",
                                "attributes": [
                                    {"key": "i", "value": {"intValue": "-12"}},
                                    {"key": "d", "value": {"doubleValue": 1.5}},
                                    {"key": "m", "value": {"kvlistValue": {"values": [
                                        {"key": "k", "value": {"arrayValue": {"values": [{"boolValue": True}]}}}]}}},
                                    {"key": "y", "value": {"bytesValue": "AQI="}},
                                ],
                                "status": {"code": "STATUS_CODE_OK"},
                                "unknownField": 1,
                            }
                        ],
                    }
                ],
            }
        ]
    }  # fmt: skip
    answer = shared.traces(json.dumps(body).encode(), "application/json")
    assert (answer.status, answer.text) == (200, "{}")
    rows = shared.rows(
        "SELECT name, span_kind, duration_ns, status, attributes['i'], attributes['d'], attributes['m'], "
        "attributes['y'] FROM otel.spans WHERE service = 'json'"
    )
    assert rows == [["named", "Client", "1000000000", "Ok", "-12", "1.5", '{"k":[true]}', "AQI="]]


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_what_is_no_export_is_refused(shared, otlp, way: str):
    whole = otlp.export(otlp.span())
    for body in (b"garbage", os.urandom(1000), whole[:-1], b"\x0a\xff\xff\xff\xff\x0f", b"\x0b\x0b\x0b"):
        code, said = refused(shared, body, way)
        assert code == BAD[way], body
        assert "no export of spans" in said


@pytest.mark.parametrize("way", ["grpc", "http"])
@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"trace_id": b"short"}, "trace id of 5 bytes"),
        ({"trace_id": b""}, "trace id of 0 bytes"),
        ({"trace_id": bytes(16)}, "of zeros"),
        ({"span_id": b"far too long"}, "span id of 12 bytes"),
        ({"span_id": bytes(8)}, "of zeros"),
        ({"parent_span_id": b"123"}, "parent span id of 3 bytes"),
        ({"name": "n" * 70_000}, "name of more than"),
        ({"start_time_unix_nano": 1 << 63}, "after the year 2262"),
    ],
)
def test_a_span_that_cannot_be_is_left_out_and_the_others_kept(shared, otlp, way: str, over, why: str):
    name = f"kept-{way}-{next(iter(over))}-{why}"
    number = zlib.crc32(name.encode())
    body = send(shared, otlp.export(otlp.span(number, **over), otlp.span(number + 1), service=name), way)
    count, message = otlp.rejected(body)
    assert count == 1
    assert why in message
    assert shared.rows(f"SELECT count() FROM otel.spans WHERE service = '{name}'") == [["1"]]


def test_bounds_of_attributes(shared, otlp):
    deep = otlp.AnyValue(string_value="x")
    for _ in range(40):
        deep = otlp.AnyValue(array_value={"values": [deep]})
    for number, attributes in enumerate(
        (
            [otlp.text(f"key {n}", "v") for n in range(10_000)],
            [otlp.KeyValue(key="deep", value=deep)],
            [otlp.text("k" * 5000, "v")],
        ),
        1,
    ):
        count, message = otlp.rejected(send(shared, otlp.export(otlp.span(number, attributes=attributes)), "http"))
        assert count == 1, message


def test_what_is_no_utf8_is_kept_with_replacement_characters(shared, otlp):
    body = otlp.export(otlp.span(77, attributes=[otlp.text("k", "marker")]), service="invalid")
    assert otlp.rejected(send(shared, body.replace(b"marker", b"mar\xff\xfer"), "grpc"))[0] == 0
    value = shared.sql("SELECT attributes['k'] FROM otel.spans WHERE service = 'invalid'").body
    assert value.decode().startswith("mar�")


def _anyhow_deep(levels: int) -> bytes:
    """A request with an AnyValue so deep that a recursive reader would overflow."""
    value = b"\x0a\x01x"
    for _ in range(levels):
        value = b"\x0a" + _varint(len(value)) + value
        value = b"\x2a" + _varint(len(value)) + value
    pair = b"\x0a\x01k\x12" + _varint(len(value)) + value
    span = b"\x0a\x10" + b"t" * 16 + b"\x12\x08" + b"s" * 8 + b"\x4a" + _varint(len(pair)) + pair
    for tag in (b"\x12", b"\x12", b"\x0a"):
        span = tag + _varint(len(span)) + span
    return span


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_bottomless_nesting_is_left_out(shared, otlp, way: str):
    count, message = otlp.rejected(send(shared, _anyhow_deep(5000), way))
    assert count == 1
    assert "levels" in message
    assert shared.health()["status"] == "ok"


def test_more_messages_than_bytes_are_worth_are_refused(shared):
    empty = b"\x12\x00" * 3_000_000
    scope = b"\x12" + _varint(len(empty)) + empty
    answer = shared.traces(b"\x0a" + _varint(len(scope)) + scope)
    assert (answer.status, b"too many messages" in answer.body) == (400, True)


def test_a_zip_bomb_is_not_unpacked(shared):
    before = shared.resident()
    bomb = gzip.compress(bytes(1 << 28), 9)
    assert shared.traces(bomb, Content_Encoding="gzip").status == 413
    with pytest.raises(grpc.RpcError) as caught:
        call(shared, bytes(1 << 28), compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert shared.resident() < before + (300 << 20)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"x", {"Content_Encoding": "gzip"}, 400),
        (b"x", {"Content_Encoding": "br"}, 415),
        (zlib.compress(b""), {"Content_Encoding": "deflate"}, 200),
        (b"", {}, 200),
        (bytes(40 << 20), {}, 413),
        (b"", {"Host": "attacker.example"}, 403),
        (b"", {"Origin": "https://attacker.example"}, 403),
        (b"", {"Authorization": "Bearer wrong"}, 401),
    ],
)
def test_requests_that_are_refused(shared, body: bytes, headers: dict[str, str], status: int):
    try:
        answer = shared.traces(body, **headers)
    except OSError:  # it stopped reading and had closed before everything was sent
        assert status == 413
    else:
        assert answer.status == status


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_other_forms_are_refused(shared, kind: str):
    assert shared.traces(b"[1, 2]", kind).status in (400, 415)
    assert shared.traces(b'{"resourceSpans": [1]}', kind).status in (400, 415)
    assert shared.traces(b"[" * 100_000, kind).status in (400, 415)


def test_metrics_and_logs_are_not_taken_in_silence(shared):
    with pytest.raises(grpc.RpcError) as caught:
        call(shared, b"", METRICS)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "OTEL_METRICS_EXPORTER=none" in caught.value.details()


def spool_frames(home) -> list[Frame]:
    return [item for file in Spool(home / "spool").files() for item in file.scan() if isinstance(item, Frame)]


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_a_batch_that_is_delivered_twice_changes_no_count(shared, otlp, recorded, tmp_path, way: str):
    run = recorded(tmp_path, f"twice-{way}", crossings=5)
    body = otlp.frames(spool_frames(tmp_path))
    before = {table: shared.count(table) for table in ("spans", "crossings", "contents", "runs", "readings")}
    assert otlp.rejected(send(shared, body, way))[0] == 0
    once = {table: shared.count(table) for table in before}
    for _ in range(2):
        assert otlp.rejected(send(shared, body, way))[0] == 0
    assert {table: shared.count(table) for table in before} == once
    assert once["crossings"] == before["crossings"] + 5
    assert once["runs"] == before["runs"] + 1
    listed = json.loads(shared.command("runs", "--json").stdout)
    assert next(each for each in listed if each["run_id"] == run.run_id)["crossings"] == 5


def test_a_forged_frame_replaces_nothing(shared, otlp, recorded, tmp_path):
    run = recorded(tmp_path, "real", crossings=2)
    frames = spool_frames(tmp_path)
    send(shared, otlp.frames(frames), "http")
    told = f"SELECT span_id, payload FROM otel.crossings WHERE run_id = '{run.run_id}' ORDER BY span_id"
    before = (
        shared.rows(told),
        shared.rows(f"SELECT payload FROM otel.frames FINAL WHERE frame = 'run' AND run_id = '{run.run_id}'"),
    )
    forged = [frame for frame in frames if frame.kind in ("crossing", "run")]
    for frame in forged:
        size = frame.attributes["agent_replay.payload.length"]
        frame.attributes["agent_replay.payload"] = "x" * size
        frame.attributes["agent_replay.payload.digest"] = "0" * 16
    count, message = otlp.rejected(send(shared, otlp.frames(forged), "grpc"))
    assert count == len(forged) == 3
    assert "what was recorded stays" in message
    for frame in forged:
        frame.attributes["agent_replay.payload.digest"] = next(
            each.attributes["agent_replay.payload.digest"]
            for each in spool_frames(tmp_path)
            if (each.kind, each.span_id) == (frame.kind, frame.span_id)
        )
    send(shared, otlp.frames(forged), "grpc")
    assert before == (
        shared.rows(told),
        shared.rows(f"SELECT payload FROM otel.frames FINAL WHERE frame = 'run' AND run_id = '{run.run_id}'"),
    )


def test_spans_of_any_time_are_stored(shared, otlp):
    month = 31 * 86_400 * 1_000_000_000
    spans = [otlp.span(5000 + n, start_time_unix_nano=n * month + 1) for n in range(200)]
    assert otlp.rejected(send(shared, otlp.export(*spans, service="old"), "http"))[0] == 0
    assert shared.rows("SELECT count() FROM otel.spans FINAL WHERE service = 'old'") == [["200"]]


def test_forged_content_stands_beside_the_recorded_one(shared, otlp, recorder, tmp_path):
    writer = recorder(tmp_path / "sent")
    run = writer.start("contents")
    run.tool(0, "small", outcome="long " * 10_000)
    run.end()
    writer.close()
    send(shared, otlp.frames(spool_frames(tmp_path / "sent")), "http")
    frame = next(each for each in spool_frames(tmp_path / "sent") if each.kind == "contents")
    name = next(name for name in frame.attributes if name.startswith("agent_replay.content"))
    frame.attributes[name] = "forged, and longer than what was recorded " * 10_000
    send(shared, otlp.frames([frame]), "http")

    class Place:
        spool = shared.home / "spool"
        dsn = f"chdb://{shared.home / 'store'}"

    loaded = find.load(Place, run.run_id)
    assert (loaded.crossings[0].outcome, loaded.missing) == ("long " * 10_000, [])


def test_a_crossing_in_parts_is_the_same_crossing(shared, otlp, recorder, tmp_path):
    writer = recorder(tmp_path / "sent")
    run = writer.start("parts")
    run.tool(0, os.urandom(60_000).hex(), outcome=os.urandom(60_000).hex())
    run.end()
    writer.close()
    whole = spool_frames(tmp_path / "sent")
    parted = [part for frame in whole for part in split(frame, 16 * 1024)]
    other = [part for frame in whole for part in split(frame, 40 * 1024)]
    assert len(whole) < len(other) < len(parted)
    for frames in (parted, other, whole, parted):
        assert otlp.rejected(send(shared, otlp.frames(frames), "grpc"))[0] == 0
    assert shared.rows(f"SELECT count() FROM otel.crossings WHERE run_id = '{run.run_id}'") == [["1"]]


def test_many_clients_at_once_and_nothing_is_lost(shared, otlp):
    def work(first: int) -> None:
        for number in range(first, first + 5):
            spans = [otlp.span(number * 1000 + n) for n in range(40)]
            assert (
                otlp.rejected(send(shared, otlp.export(*spans, service="many"), "grpc" if first % 2 else "http"))[0]
                == 0
            )

    threads = [threading.Thread(target=work, args=(1000 + 10 * n + n % 2,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert shared.rows("SELECT count() FROM otel.spans FINAL WHERE service = 'many'") == [["1200"]]


def test_an_export_that_is_refused_is_told_so_by_the_sdk(shared):
    exporter = GrpcExporter(endpoint=shared.said["otlp_grpc"], insecure=True, headers=(("authorization", "Bearer no"),))
    provider = TracerProvider(shutdown_on_exit=False)
    span = provider.get_tracer("x").start_span("x")
    span.end()
    assert exporter.export([span]) is SpanExportResult.FAILURE
    exporter.shutdown()
    provider.shutdown()


def test_a_flood_of_large_requests_is_told_to_come_again_and_takes_no_more_memory(shared, otlp):
    body = otlp.export(otlp.span(9000, attributes=[otlp.text("big", "x" * (30 << 20))]), service="flood")
    small = otlp.export(otlp.span(9001, attributes=[otlp.text("big", "x" * (15 << 20))]), service="flood")
    said = []

    def work(number: int) -> None:
        try:
            if number % 3:
                said.append(shared.traces(body).status)
            else:
                call(shared, small)
                said.append(200)
        except grpc.RpcError as error:
            said.append(429 if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else error.code())
        except OSError:  # it said 429 and closed before everything was sent
            said.append(429)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(110)
    assert len(said) == 24
    assert set(said) <= {200, 429}
    assert 200 in said
    assert shared.resident(peak=True) < 1500 << 20
    assert otlp.rejected(send(shared, otlp.export(otlp.span(9002), service="after"), "http"))[0] == 0


def test_chunks_that_are_none_are_refused(shared):
    port = int(shared.said["otlp_http"].rpartition(":")[2])
    head = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Type: application/x-protobuf\r\n\r\n"
    for body in (b"-5\r\n", b"zz\r\n", b"+1\r\nx", b"\r\n", b"f" * 20 + b"\r\n", b"0\r\n" + b"a: b\r\n" * 101):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(head + body)
            assert connection.recv(1024).startswith(b"HTTP/1.1 400")
