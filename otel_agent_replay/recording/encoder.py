"""Writes values as JSON; `codec` is the door, `decoder` the inverse.

Each tag stands here where it is written:

    str int float complex bytes bytearray decimal uuid datetime date time timedelta tz zone range slice path const
    tuple set frozenset map odict defaultdict counter deque namespace        containers
    enum class data object derived opaque                                         objects
    held                                                                     `changed`
    error                                                                    `exceptions`
    ndarray npscalar pydantic pydantic_zone request response                 `foreign`
"""

from __future__ import annotations

import datetime as dt
import marshal
import pathlib
from base64 import b64encode
from collections import OrderedDict, defaultdict, deque
from decimal import Decimal
from enum import Enum
from itertools import repeat
from math import isfinite
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from otel_agent_replay.errors import Unencodable
from otel_agent_replay.recording import exceptions, foreign, opaque
from otel_agent_replay.recording.allowed import ref
from otel_agent_replay.recording.building import (
    FACTORIES,
    PLAIN,
    builtin_base,
    can_be_built,
    get_state,
    holds_no_more,
    is_record,
    is_small,
)
from otel_agent_replay.recording.opaque import Opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from otel_agent_replay.recording.values import Json

DEEPEST = 200
"""Levels of JSON; a deeper value is refused. (The JSON writer allows 254, and the payload needs some itself.)"""

QUICK = 2
"""Down to this level a list or dictionary is looked at as a whole first."""

MOST_VALUES = 2_000_000
"""A value that holds more values is refused."""

_NESTED = (list, dict)
_TUPLES = (b"(", b")", b"\xa8", b"\xa9")
"""One of these begins each tuple that `marshal` writes; they stand in texts too."""

HOLDS_ITSELF = "it holds itself"
"""Why a value is refused that is written already, around the place where it stands."""


def refusal(value: object, why: str) -> str:
    """The sentence of an Unencodable."""
    return (
        f"A value of type {ref(type(value))} cannot be written down exactly: {why}; let the boundary take and give "
        "plain data, a dataclass or a pydantic model."
    )


class Encoder:
    """Writes one value."""

    __slots__ = ("_around", "_left", "errors", "refused", "strict", "traces")

    def __init__(self, *, strict: bool, traces: bool = False) -> None:
        self.strict = strict
        self.traces = traces
        """Whether exceptions are written with where they were raised."""
        self.errors = 0
        """Exceptions written so far."""
        self.refused = 0
        """Values so far that are written by type and repr."""
        self._left = MOST_VALUES
        self._around: set[int] = set()
        """Ids of the containers around the value that is being written."""

    def encode(self, value: Any, depth: int) -> Json:
        """The JSON of a value that stands `depth` levels below the top.

        Plain data is written here and not further down: it is most of all values, and each level of it then
        takes one frame of the program's stack.
        """
        kind = type(value)
        if kind is str:
            return _text(value)
        if value is None or value is True or value is False:
            return value
        if kind is int:
            return int(value) if -(1 << 63) <= value < 1 << 64 else {"$": "int", "v": hex(value)}
        if kind is float:
            return float(value) if isfinite(value) else {"$": "float", "v": repr(value)}
        if kind is not dict and kind is not list:
            scalar = _SCALARS.get(kind)
            return scalar(value) if scalar is not None else self._structure(value, kind, depth)
        if depth >= DEEPEST or id(value) in self._around:
            return self._structure(value, kind, depth)
        if depth <= QUICK:
            copy = plain_copy(value)
            if copy is not None:
                return copy
        self._around.add(id(value))
        written = self.mapping(value, depth) if kind is dict else self.items(value, depth + 1)
        self._around.discard(id(value))
        return written

    def _structure(self, value: object, kind: type, depth: int) -> Json:
        if depth >= DEEPEST:
            return self.refuse(value, f"it is more than {DEEPEST} levels deep", look=False)
        if id(value) in self._around:
            return self.refuse(value, HOLDS_ITSELF, look=False)
        self._around.add(id(value))
        writer = _CONTAINERS.get(kind)
        written = writer(self, value, depth) if writer is not None else self._object(value, kind, depth)
        self._around.discard(id(value))
        return written

    def refuse(self, value: object, why: str, *, look: bool = True) -> Json:
        """The value cannot be written; its repr is asked for only if one may `look`."""
        if self.strict:
            raise Unencodable(refusal(value, why))
        self.refused += 1
        kind = ref(type(value))
        return opaque.describe(value, kind) if look else opaque.name_only(kind, why)

    def leniently(self, value: object, depth: int) -> Json:
        """The JSON of a value that stands beside what matters; never refused."""
        strict, self.strict = self.strict, False
        try:
            return self.encode(value, depth)
        finally:
            self.strict = strict

    def items(self, values: Collection[object], depth: int) -> list[Json]:
        """The JSON of each."""
        self._left -= len(values)
        if self._left < 0:
            raise Unencodable(refusal(values, f"it holds more than {MOST_VALUES:,} values"))
        return list(map(self.encode, values, repeat(depth)))

    def mapping(self, values: Mapping[Any, object], depth: int) -> Json:
        """A dictionary, order kept."""
        for key in values:
            if type(key) is not str or key == "$" or not (key.isascii() or is_text(key)):
                return {"$": "map", "v": self.items([part for item in values.items() for part in item], depth + 2)}
        return dict(zip(values, self.items(values.values(), depth + 1), strict=True))

    def tagged(self, tag: str, values: Collection[object], depth: int) -> Json:
        """A row of values under a tag."""
        return {"$": tag, "v": self.items(values, depth + 2)}

    def unordered(self, tag: str, values: Collection[object], depth: int) -> Json:
        """A set, in an order that is the same from run to run."""
        found = self.items(values, depth + 2)
        return {"$": tag, "v": sorted(found, key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))}

    def zoned(self, tag: str, value: dt.datetime | dt.time, depth: int) -> Json:
        """A datetime or time, its zone apart."""
        found: dict[str, Json] = {"$": tag, "v": value.replace(tzinfo=None, fold=0).isoformat()}
        if value.fold:
            found["fold"] = 1
        if value.tzinfo is not None:
            found["tz"] = self.encode(value.tzinfo, depth + 1)
        return found

    def _object(self, value: object, kind: type, depth: int) -> Json:
        """What is no builtin type itself."""
        for known, write in _OBJECTS:
            if isinstance(value, known):
                return write(self, value, depth)
        written = foreign.encode(value, self, depth)
        if written is not None:
            return written
        base = builtin_base(kind)
        if not can_be_built(kind):
            return self.refuse(value, "its class does something when an object of it goes away")
        if base is object:
            state = get_state(value)
            if is_record(kind) or (is_small(state) and holds_no_more(value)):
                tag = "data" if is_record(kind) else "object"
                return {"$": tag, "c": ref(kind), "v": self.mapping(state, depth + 1)}
        if base in PLAIN:
            found: dict[str, Json] = {"$": "derived", "c": ref(kind), "v": self.encode(PLAIN[base](value), depth + 1)}
            state = get_state(value)
            if state:
                found["d"] = self.mapping(state, depth + 1)
            return found
        return self.refuse(value, "it is no plain data")


def plain_copy(value: Any) -> Json:
    """A copy of a list or dictionary that JSON has a form for as it is, made by orjson; else None.

    `marshal` tells builtin classes from those built on them, and orjson what it changes silently: NaN. This takes a
    tenth of the time of looking at each value here. Tuples do not come to orjson, whose version 3.13.0 ends the process
    where data holds itself through one.
    """
    try:
        if holds_tuple(value):
            return None
        text = orjson.dumps(value)
    except (ValueError, TypeError):  # orjson's own error is a TypeError
        return None
    if b'"$":' in text:
        return None
    copy = orjson.loads(text)
    return copy if copy == value else None


def holds_tuple(value: Any) -> bool:
    """Whether a list or dictionary holds a tuple, however deep. Raises ValueError where `marshal` cannot write it."""
    marshalled = marshal.dumps(value)
    if not any(code in marshalled for code in _TUPLES):
        return False
    todo = [value]
    seen = {id(value)}
    for part in todo:
        values = part.values() if type(part) is dict else part
        kinds = set(map(type, values))
        if tuple in kinds:
            return True
        if list in kinds or dict in kinds:
            for held in values:
                if type(held) in _NESTED and id(held) not in seen:
                    seen.add(id(held))
                    todo.append(held)
    return False


def is_text(value: str) -> bool:
    """Whether a string has a form in UTF-8: no lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(tag: str, value: bytes) -> Json:
    try:
        return {"$": tag, "s": value.decode()}  # readable, and shorter
    except UnicodeDecodeError:
        return {"$": tag, "v": _base64(value)}


def _text(value: str) -> Json:
    return (
        value
        if value.isascii() or is_text(value)
        else {"$": "str", "v": _base64(value.encode("utf-8", "surrogatepass"))}
    )


def _timedelta(value: dt.timedelta) -> Json:
    return [value.days, value.seconds, value.microseconds]


def _timezone(zone: dt.timezone) -> Json:
    offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
    return {"$": "tz", "v": _timedelta(offset), **({"n": name[0]} if name else {})}


def _zone(encoder: Encoder, zone: dt.tzinfo, _: int) -> Json:
    key = getattr(zone, "key", None)
    if type(zone).__module__ in ("zoneinfo", "_zoneinfo") and isinstance(key, str):
        return {"$": "zone", "v": key}
    written = foreign.encode_zone(zone)
    return encoder.refuse(zone, "it is a time zone of an unknown class") if written is None else written


def _enum(encoder: Encoder, value: Enum, depth: int) -> Json:
    # the underscored names are Enum's own; the others may be members
    return {"$": "enum", "c": ref(type(value)), "n": value._name_, "v": encoder.encode(value._value_, depth + 1)}


def _opaque(_: Encoder, value: Opaque, __: int) -> Json:
    kind, shown = opaque.parts(value)
    return {"$": "opaque", "type": kind, "repr": shown}


def _defaultdict(encoder: Encoder, value: defaultdict[object, object], depth: int) -> Json:
    factory = value.default_factory
    if factory is not None and factory not in FACTORIES:
        return encoder.refuse(value, "its default factory is no builtin class")
    return {"$": "defaultdict", "f": encoder.encode(factory, depth + 1), "v": encoder.mapping(dict(value), depth + 1)}


_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)

_SCALARS: dict[type, Callable[[Any], Json]] = {
    complex: lambda v: {"$": "complex", "v": [repr(v.real), repr(v.imag)]},
    bytes: lambda v: _bytes("bytes", v),
    bytearray: lambda v: _bytes("bytearray", v),
    Decimal: lambda v: {"$": "decimal", "v": str(v)},
    UUID: lambda v: {"$": "uuid", "v": v.hex},
    dt.date: lambda v: {"$": "date", "v": v.isoformat()},
    dt.timedelta: lambda v: {"$": "timedelta", "v": _timedelta(v)},
    dt.timezone: _timezone,
    range: lambda v: {"$": "range", "v": [hex(part) for part in (v.start, v.stop, v.step)]},
    type(...): lambda _: {"$": "const", "v": "Ellipsis"},
    type(NotImplemented): lambda _: {"$": "const", "v": "NotImplemented"},
    **{path: lambda v: {"$": "path", "c": type(v).__name__, "v": _text(str(v))} for path in _PATHS},
}

_CONTAINERS: dict[type, Callable[[Encoder, Any, int], Json]] = {
    tuple: lambda e, v, depth: e.tagged("tuple", v, depth),
    set: lambda e, v, depth: e.unordered("set", v, depth),
    frozenset: lambda e, v, depth: e.unordered("frozenset", v, depth),
    slice: lambda e, v, depth: e.tagged("slice", (v.start, v.stop, v.step), depth),
    dt.datetime: lambda e, v, depth: e.zoned("datetime", v, depth),
    dt.time: lambda e, v, depth: e.zoned("time", v, depth),
    deque: lambda e, v, depth: {"$": "deque", "v": e.items(v, depth + 2), "n": v.maxlen},
    OrderedDict: lambda e, v, depth: e.tagged("odict", [part for item in v.items() for part in item], depth),
    defaultdict: _defaultdict,
    SimpleNamespace: lambda e, v, depth: {"$": "namespace", "v": e.mapping(vars(v), depth + 1)},
}

_OBJECTS: tuple[tuple[type, Callable[[Encoder, Any, int], Json]], ...] = (
    (Opaque, _opaque),
    (Enum, _enum),
    (type, lambda _, v, __: {"$": "class", "c": ref(v)}),
    (BaseException, lambda e, v, depth: exceptions.encode(v, e, depth)),
    (dt.tzinfo, _zone),
)
