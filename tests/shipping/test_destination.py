"""The standard variables, and what receivers answer, as they are understood."""

from __future__ import annotations

import datetime

import pytest

from otel_agent_replay.errors import UsageError
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.receivers import http_answer


def test_the_environment_names_the_destination() -> None:
    def read(**environ: str):
        return destination.read({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()})

    assert read() is None
    plain = read(ENDPOINT="http://collector:4317")
    assert (plain.protocol, plain.endpoint, plain.secure) == ("grpc", "collector:4317", False)
    assert read(ENDPOINT="https://collector:4317").secure
    assert not read(ENDPOINT="collector:4317", INSECURE="true").secure
    assert read(ENDPOINT="collector:4317").secure
    http = read(ENDPOINT="http://c:4318/", PROTOCOL="http/protobuf")
    assert http.endpoint == "http://c:4318/v1/traces"
    own = read(ENDPOINT="http://c", TRACES_ENDPOINT="http://d/own", TRACES_PROTOCOL="http/protobuf", PROTOCOL="grpc")
    assert own.endpoint == "http://d/own"
    assert read(ENDPOINT="http://u:secret@c:4317/x", PROTOCOL="http/protobuf").where == "http://c:4317/x/v1/traces"
    assert plain.name != read(ENDPOINT="http://collector:4317", HEADERS="a=b").name
    known = {text: read(ENDPOINT="http://c", COMPRESSION=text).compression for text in ("none", "GZIP", "deflate")}
    assert known == {"none": "", "GZIP": "gzip", "deflate": "deflate"}
    for wrong in (
        {"PROTOCOL": "http/json"},
        {"COMPRESSION": "brotli"},
        {"TIMEOUT": "soon"},
        {"TIMEOUT": "-1"},
        {"ENDPOINT": "collector", "PROTOCOL": "http/protobuf"},
    ):
        with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_"):
            read(**({"ENDPOINT": "http://c"} | wrong))


def test_retry_after_may_be_a_date() -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=30)
    text = later.strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert 25 < http_answer(503, {"Retry-After": text}, b"").after <= 30
    for odd in ("soon", "-3", "nan", ""):
        assert http_answer(503, {"Retry-After": odd}, b"").after == 0
