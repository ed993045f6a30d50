"""Attribute values, as the Collector's ClickHouse exporter writes them: strings bare, lists and maps as JSON."""

from __future__ import annotations

from base64 import b64encode
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import orjson

from otel_agent_replay.recording.wire import BYTES, FIXED64, MalformedError, fields, read_varint
from otel_agent_replay.server import limits
from otel_agent_replay.store.rows import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.wire import Value

    Plain: TypeAlias = "str | bool | int | float | list[Plain] | dict[str, Plain] | None"

WORK = 2_000_000
"""What a request may cost, in values: messages of a few bytes each would otherwise take a minute each MiB."""

A_SPAN = 20
"""What a span costs beside its values, and so does a list of them …"""

AN_EVENT = 5
"""… and what an event costs, or a link."""

_DOUBLE = Struct("<d")
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class SpanError(ValueError):
    """A span cannot be kept; the message is a clause."""


class Budget:
    """What a request may still cost."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = WORK

    def spend(self, values: int = 1) -> None:
        """Raises MalformedError where it costs too much."""
        self.left -= values
        if self.left < 0:
            raise MalformedError("it holds too many messages; send it in several")


Data = TypeVar("Data", bytes, memoryview)


def messages(data: Data, wanted: int) -> Iterator[Data]:
    """The messages that stand in one field of a message; views of it where it is one itself."""
    for number, kind, value in fields(data, 0, len(data)):  # type: ignore[arg-type]  # it reads and slices only
        if number == wanted and kind == BYTES:
            yield value  # type: ignore[misc]  # its wire type says that it is bytes


def key_value(budget: Budget, data: bytes) -> tuple[bytes, bytes]:
    """An attribute as text. The form that nearly all have is read in one go; whatever else by its fields."""
    budget.spend()
    size = len(data)
    if size > 4 and data[0] == 0x0A and data[1] < 0x80 and (at := data[1] + 2) + 3 < size and data[at] == 0x12:
        length, start = (data[at + 1], at + 2) if data[at + 1] < 0x80 else read_varint(data, at + 1, size)
        if start + length == size and start + 1 < size and data[start] == 0x0A:
            length, begin = (
                (data[start + 1], start + 2) if data[start + 1] < 0x80 else read_varint(data, start + 1, size)
            )
            if begin + length == size:
                return data[2:at], utf8(data[begin:])
    key, text = b"", b""
    for number, kind, value in fields(data, 0, size):
        if kind != BYTES:
            continue
        if number == 1:
            key = value  # type: ignore[assignment]
        elif number == 2:
            text = text_of(budget, value)  # type: ignore[arg-type]
    return key, text


def text_of(budget: Budget, data: bytes) -> bytes:
    """An AnyValue as the exporter writes it: strings bare, lists and maps as JSON."""
    held = _plain(budget, data, 0)
    if isinstance(held, str):
        return held.encode()
    if held is None:
        return b""
    if isinstance(held, (list, dict)):
        return orjson.dumps(held, option=orjson.OPT_SORT_KEYS).decode().translate(_HTML).encode()
    return as_text(held).encode()


def _plain(budget: Budget, data: bytes, depth: int) -> Plain:
    """What an AnyValue holds; bytes as base64."""
    budget.spend()
    if depth > limits.DEPTH:
        raise SpanError(f"an attribute of more than {limits.DEPTH} levels")
    held: Plain = None
    for number, kind, value in fields(data, 0, len(data)):
        if isinstance(value, int):
            if number == 2:
                held = value != 0
            elif number == 3:
                held = value - (1 << 64) if value >> 63 else value
        elif number == 4 and kind == FIXED64:
            held = _DOUBLE.unpack(value)[0]
        elif kind == BYTES:
            held = _held(budget, number, value, depth)
    return held


def _held(budget: Budget, number: int, value: bytes, depth: int) -> Plain:
    if number == 1:
        return utf8(value).decode()
    if number == 5:
        return [_plain(budget, item, depth + 1) for item in messages(value, 1)]
    if number == 6:
        found: dict[str, Plain] = {}
        for pair in messages(value, 1):
            parts = {n: v for n, kind, v in fields(pair, 0, len(pair)) if kind == BYTES}
            found[utf8(_bytes(parts.get(1))).decode()] = _plain(budget, _bytes(parts.get(2)), depth + 1)
        return found
    return b64encode(value).decode() if number == 7 else None


def _bytes(value: Value | None) -> bytes:
    return value if isinstance(value, bytes) else b""


def utf8(data: bytes) -> bytes:
    """Text as it is; with replacement characters where it is not UTF-8."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data
