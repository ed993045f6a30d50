"""A span as the protobuf library is to read it: OTLP's fields, with bytes where OTLP has text and messages.

So nothing is decoded that goes into a row as it came, no text is refused for its encoding, and no message is nested:
lists, maps, events and links are read, bounded, by `server.values`. The library is five times as fast as our own
reader; but what it makes of many empty messages is twenty times their size, so it is given small spans only.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from otel_agent_replay.recording.wire import MalformedError

_PACKAGE = "otel_agent_replay.serve"
_FIELD = descriptor_pb2.FieldDescriptorProto
_BYTES, _UINT64, _FIXED64 = _FIELD.TYPE_BYTES, _FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64
_MESSAGES: dict[str, tuple[tuple[str, int, int, str], ...]] = {
    "Value": (
        ("string_value", 1, _BYTES, "oneof"),
        ("bool_value", 2, _FIELD.TYPE_BOOL, "oneof"),
        ("int_value", 3, _FIELD.TYPE_INT64, "oneof"),
        ("double_value", 4, _FIELD.TYPE_DOUBLE, "oneof"),
        ("array_value", 5, _BYTES, "oneof"),
        ("kvlist_value", 6, _BYTES, "oneof"),
        ("bytes_value", 7, _BYTES, "oneof"),
    ),
    "Pair": (("key", 1, _BYTES, ""), ("value", 2, _FIELD.TYPE_MESSAGE, "Value")),
    "Span": (
        ("trace_id", 1, _BYTES, ""),
        ("span_id", 2, _BYTES, ""),
        ("trace_state", 3, _BYTES, ""),
        ("parent_span_id", 4, _BYTES, ""),
        ("name", 5, _BYTES, ""),
        ("kind", 6, _UINT64, ""),
        ("started", 7, _FIXED64, ""),
        ("ended", 8, _FIXED64, ""),
        ("attributes", 9, _FIELD.TYPE_MESSAGE, "Pair"),
        ("events", 11, _BYTES, "repeated"),
        ("links", 13, _BYTES, "repeated"),
        ("status", 15, _BYTES, ""),
    ),
}


def _span_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "Value":
            message.oneof_decl.add(name="value")
        for field, number, kind, more in fields:
            repeated = more in ("repeated", "Pair")
            made = message.field.add(name=field, number=number, type=kind)
            made.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if more == "oneof":
                made.oneof_index = 0
            elif more in _MESSAGES:
                made.type_name = f".{_PACKAGE}.{more}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Span"))


_parse = _span_class().FromString


def parse(data: bytes) -> Any:
    """A span. Raises MalformedError."""
    try:
        return _parse(data)
    except DecodeError:
        raise MalformedError("a span is no protobuf") from None
