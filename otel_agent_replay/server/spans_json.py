"""OTLP as JSON, turned into its protobuf: one form is checked and stored, whichever way it came.

By the specification ids are hexadecimal, 64 bit numbers are strings or numbers, names are in lower camel case, and
what is not known is ignored.
"""

from __future__ import annotations

import math
from base64 import b64decode
from binascii import Error as NoBase64
from struct import Struct
from threading import Lock
from typing import Any

import orjson

from otel_agent_replay.recording.wire import MalformedError, varint
from otel_agent_replay.server import limits

BODY_BYTES = 8 << 20
"""Bytes of one request: parsed JSON takes up to twenty times its size."""

_ONE_AT_A_TIME = Lock()
_FIXED64 = Struct("<Q").pack
_DOUBLE = Struct("<d").pack
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)
_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES = ("UNSET", "OK", "ERROR")


def to_protobuf(body: bytes) -> bytes:
    """An ExportTraceServiceRequest in JSON, as protobuf. Raises MalformedError."""
    if len(body) > BODY_BYTES:
        raise MalformedError(f"as JSON it may take {BODY_BYTES >> 20} MiB; send it as protobuf")
    with _ONE_AT_A_TIME:
        try:
            asked = orjson.loads(body)
            return b"".join(_field(1, _resource_spans(each)) for each in _list(_map(asked), "resourceSpans"))
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise MalformedError(f"it is no JSON: {error}") from None


def _resource_spans(data: Any) -> bytes:
    held = _map(data)
    resource = _attributes(1, _map(held.get("resource")))
    scopes = (_field(2, _scope_spans(each)) for each in _list(held, "scopeSpans"))
    return _field(1, resource) + b"".join(scopes)


def _scope_spans(data: Any) -> bytes:
    held = _map(data)
    scope = _map(held.get("scope"))
    named = _text(1, scope.get("name")) + _text(2, scope.get("version"))
    return _field(1, named) + b"".join(_field(2, _span(each)) for each in _list(held, "spans"))


def _span(data: Any) -> bytes:
    held = _map(data)
    status = _map(held.get("status"))
    return b"".join(
        (
            _ident(1, held.get("traceId")),
            _ident(2, held.get("spanId")),
            _text(3, held.get("traceState")),
            _ident(4, held.get("parentSpanId")),
            _text(5, held.get("name")),
            _choice(6, held.get("kind"), _KINDS, "SPAN_KIND_"),
            _moment(7, held.get("startTimeUnixNano")),
            _moment(8, held.get("endTimeUnixNano")),
            _attributes(9, held),
            *(_field(11, _event(each)) for each in _list(held, "events")),
            *(_field(13, _link(each)) for each in _list(held, "links")),
            _field(15, _text(2, status.get("message")) + _choice(3, status.get("code"), _CODES, "STATUS_CODE_")),
        )
    )


def _event(data: Any) -> bytes:
    held = _map(data)
    return _moment(1, held.get("timeUnixNano")) + _text(2, held.get("name")) + _attributes(3, held)


def _link(data: Any) -> bytes:
    held = _map(data)
    state = _text(3, held.get("traceState"))
    return _ident(1, held.get("traceId")) + _ident(2, held.get("spanId")) + state + _attributes(4, held)


def _attributes(number: int, held: dict[str, Any]) -> bytes:
    return b"".join(_field(number, _pair(each, 0)) for each in _list(held, "attributes"))


def _pair(data: Any, depth: int) -> bytes:
    held = _map(data)
    return _text(1, held.get("key")) + _field(2, _value(held.get("value"), depth))


def _value(data: Any, depth: int) -> bytes:
    if depth > limits.DEPTH + 1:
        return b""  # one level more than is allowed is enough to be refused
    for name, held in _map(data).items():
        if name == "stringValue":
            return _field(1, _string(held).encode())
        if name == "boolValue":
            return b"\x10\x01" if held is True else b"\x10\x00"
        if name == "intValue":
            return b"\x18" + varint(_whole(held, _INT64) & 0xFFFF_FFFF_FFFF_FFFF)
        if name == "doubleValue":
            return b"\x21" + _DOUBLE(_number(held))
        if name == "arrayValue":
            return _field(5, b"".join(_field(1, _value(each, depth + 1)) for each in _list(_map(held), "values")))
        if name == "kvlistValue":
            return _field(6, b"".join(_field(1, _pair(each, depth + 1)) for each in _list(_map(held), "values")))
        if name == "bytesValue":
            return _field(7, _base64(held))
    return b""


def _field(number: int, data: bytes) -> bytes:
    return b"".join((varint(number << 3 | 2), varint(len(data)), data))


def _text(number: int, value: Any) -> bytes:
    return b"" if value is None or value == "" else _field(number, _string(value).encode())


def _ident(number: int, value: Any) -> bytes:
    if value is None or value == "":
        return b""
    try:
        return _field(number, bytes.fromhex(_string(value)))
    except ValueError:
        raise MalformedError("an id is not hexadecimal") from None


def _moment(number: int, value: Any) -> bytes:
    return b"" if value is None else varint(number << 3 | 1) + _FIXED64(_whole(value, _UINT64))


def _choice(number: int, value: Any, known: tuple[str, ...], prefix: str) -> bytes:
    if isinstance(value, str):
        name = value.removeprefix(prefix)
        value = known.index(name) if name in known else 0
    return b"" if not value else varint(number << 3) + varint(_whole(value, _UINT64))


def _map(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedError("something else stands where an object belongs")
    return value


def _list(held: dict[str, Any], name: str) -> list[Any]:
    value = held.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedError(f"{name} is no list")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedError("something else stands where a string belongs")
    return value


def _whole(value: Any, allowed: range) -> int:
    if isinstance(value, str) and len(value) < 24 and value.lstrip("-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise MalformedError("something else stands where a whole number belongs")
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        named = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
        if value in named:
            return named[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedError("something else stands where a number belongs")
    return float(value)


def _base64(value: Any) -> bytes:
    try:
        return b64decode(_string(value), validate=True)
    except (NoBase64, ValueError):
        raise MalformedError("bytes are not base64") from None
