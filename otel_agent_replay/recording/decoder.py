"""Reads what `encoder` writes. A tag that is not among these is refused; `codec` is the door."""

from __future__ import annotations

import datetime as dt
import pathlib
from base64 import b64decode
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from enum import Enum, Flag
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from otel_agent_replay.recording import exceptions, foreign
from otel_agent_replay.recording.allowed import client_error, ref, standard_error
from otel_agent_replay.recording.building import (
    FACTORIES,
    PLAIN,
    build_derived,
    builtin_base,
    can_be_built,
    is_record,
    is_small,
    set_state,
)
from otel_agent_replay.recording.opaque import Opaque

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_agent_replay.recording.values import Json

_ALWAYS: dict[str, type] = {
    ref(cls): cls
    for cls in (
        *PLAIN, object, type, bool, complex, range, slice, memoryview, Counter, defaultdict, deque,
        Decimal, UUID, dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, SimpleNamespace,
    )
}  # fmt: skip
"""Classes that any recording may name."""


class Decoder:
    """Reads one value."""

    __slots__ = ("_allowed",)

    def __init__(self, allowed: Mapping[str, type]) -> None:
        self._allowed = allowed

    def decode(self, found: Json) -> Any:
        """The value of some JSON."""
        if isinstance(found, list):
            return list(map(self.decode, found))
        if not isinstance(found, dict):
            return found
        if "$" not in found:
            return {key: self.decode(value) for key, value in found.items()}
        tag = found["$"]
        read = _TAGS.get(tag) if isinstance(tag, str) else None
        if read is None:
            raise ValueError(f"the tag {tag!r} is unknown")
        return read(self, found)

    def whole(self, found: Json) -> Any:
        """The same, where it is a copy of plain data made by orjson if there is no tag in it."""
        if isinstance(found, list | dict):
            try:
                text = orjson.dumps(found)
            except TypeError:  # orjson's own error; too deep, or written by the standard library
                return self.decode(found)
            if b'"$":' not in text:
                return orjson.loads(text)
        return self.decode(found)

    def cls(self, name: Json) -> type | None:
        """The class of this reference, where it may come back."""
        if not isinstance(name, str):
            raise TypeError("a class is named by a string")
        return _ALWAYS.get(name) or self._allowed.get(name) or standard_error(name) or client_error(name)

    def mapping(self, found: Json) -> dict[Any, Any]:
        """A dictionary."""
        values = self.decode(found)
        if type(values) is not dict:
            raise TypeError("a dictionary is expected")
        return values

    def row(self, found: dict[str, Json]) -> list[Any]:
        """A row of values under a tag."""
        return [self.decode(item) for item in _list(found["v"])]

    def pairs(self, found: dict[str, Json]) -> list[tuple[Any, Any]]:
        """Keys and values in turn."""
        flat = self.row(found)
        return list(zip(flat[::2], flat[1::2], strict=True))


def _list(found: Json) -> list[Json]:
    if not isinstance(found, list):
        raise TypeError("a list is expected")
    return found


def _bytes(_: Decoder, found: dict[str, Any]) -> bytes:
    return found["s"].encode() if "s" in found else b64decode(found["v"], validate=True)


def _timedelta(found: Any) -> dt.timedelta:
    days, seconds, microseconds = found
    return dt.timedelta(days, seconds, microseconds)


def _timezone(_: Decoder, found: dict[str, Any]) -> dt.timezone:
    offset = _timedelta(found["v"])
    return dt.timezone(offset, found["n"]) if "n" in found else dt.timezone(offset)


def _zone(_: Decoder, found: dict[str, Any]) -> object:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 (few values need it)

    try:
        return ZoneInfo(found["v"])
    except ZoneInfoNotFoundError:
        return Opaque("zoneinfo:ZoneInfo", f"zoneinfo.ZoneInfo(key={found['v']!r})")


def _zoned(kind: type[dt.datetime | dt.time]) -> Callable[[Decoder, dict[str, Any]], object]:
    def read(decoder: Decoder, found: dict[str, Any]) -> object:
        value = kind.fromisoformat(found["v"])
        zone = decoder.decode(found["tz"]) if "tz" in found else None
        return value.replace(fold=found.get("fold", 0), tzinfo=zone)

    return read


def _path(decoder: Decoder, found: dict[str, Any]) -> pathlib.PurePath:
    text = decoder.decode(found["v"])
    windows = {"PosixPath": False, "PurePosixPath": False, "WindowsPath": True, "PureWindowsPath": True}[found["c"]]
    if not found["c"].startswith("Pure") and isinstance(pathlib.Path(), pathlib.PureWindowsPath) is windows:
        return pathlib.Path(text)
    return pathlib.PureWindowsPath(text) if windows else pathlib.PurePosixPath(text)


def _enum(decoder: Decoder, found: dict[str, Any]) -> object:
    cls, value = decoder.cls(found["c"]), decoder.decode(found["v"])
    if cls is None or not issubclass(cls, Enum):
        return value
    member = cls._member_map_.get(found["n"])
    if member is not None:
        return member
    if issubclass(cls, Flag) and cls._missing_.__func__ is Flag._missing_.__func__:  # type: ignore[attr-defined]
        return cls(value)  # several flags at once; no code but the standard library's is run
    return value


def _class(decoder: Decoder, found: dict[str, Any]) -> object:
    return decoder.cls(found["c"]) or Opaque("builtins:type", f"<class {found['c']}>")


def _data(decoder: Decoder, found: dict[str, Any]) -> object:
    cls, state = decoder.cls(found["c"]), decoder.mapping(found["v"])
    if cls is None or not is_record(cls) or not _is_ordinary(cls):
        return state
    made: Any = object.__new__(cls)
    set_state(made, state)
    return made


def _object(decoder: Decoder, found: dict[str, Any]) -> object:
    cls, state = decoder.cls(found["c"]), decoder.mapping(found["v"])
    if cls is None or not is_small(state) or not _is_ordinary(cls):
        return Opaque(str(found["c"]), f"<{found['c']}: {state}>")
    made: Any = object.__new__(cls)
    set_state(made, state)
    return made


def _is_ordinary(cls: type) -> bool:
    return builtin_base(cls) is object and can_be_built(cls) and not issubclass(cls, Enum)


def _derived(decoder: Decoder, found: dict[str, Any]) -> object:
    cls, plain = decoder.cls(found["c"]), decoder.decode(found["v"])
    if cls is None or builtin_base(cls) is not type(plain) or type(plain) not in PLAIN or not can_be_built(cls):
        return plain
    made = build_derived(cls, plain)
    if "d" in found:
        set_state(made, decoder.mapping(found["d"]))
    return made


def _defaultdict(decoder: Decoder, found: dict[str, Any]) -> object:
    factory = decoder.decode(found["f"])
    return defaultdict(factory if factory in FACTORIES else None, decoder.mapping(found["v"]))


_CONSTANTS = {"Ellipsis": ..., "NotImplemented": NotImplemented}

_TAGS: dict[str, Callable[[Decoder, dict[str, Any]], Any]] = {
    "str": lambda _, f: b64decode(f["v"], validate=True).decode("utf-8", "surrogatepass"),
    "int": lambda _, f: int(f["v"], 16),
    "float": lambda _, f: float(f["v"]),
    "complex": lambda _, f: complex(*map(float, f["v"])),
    "bytes": _bytes,
    "bytearray": lambda d, f: bytearray(_bytes(d, f)),
    "decimal": lambda _, f: Decimal(f["v"]),
    "uuid": lambda _, f: UUID(f["v"]),
    "date": lambda _, f: dt.date.fromisoformat(f["v"]),
    "datetime": _zoned(dt.datetime),
    "time": _zoned(dt.time),
    "timedelta": lambda _, f: _timedelta(f["v"]),
    "tz": _timezone,
    "zone": _zone,
    "range": lambda _, f: range(*(int(part, 16) for part in f["v"])),
    "slice": lambda d, f: slice(*d.row(f)),
    "const": lambda _, f: _CONSTANTS[f["v"]],
    "path": _path,
    "tuple": lambda d, f: tuple(d.row(f)),
    "set": lambda d, f: set(d.row(f)),
    "frozenset": lambda d, f: frozenset(d.row(f)),
    "map": lambda d, f: dict(d.pairs(f)),
    "odict": lambda d, f: OrderedDict(d.pairs(f)),
    "deque": lambda d, f: deque(d.row(f), f["n"]),
    "defaultdict": _defaultdict,
    "namespace": lambda d, f: SimpleNamespace(**d.mapping(f["v"])),
    "enum": _enum,
    "class": _class,
    "data": _data,
    "object": _object,
    "derived": _derived,
    "opaque": lambda _, f: Opaque(str(f["type"]), str(f["repr"])),
    "held": lambda _, f: Opaque(str(f["c"]), f"<{f['c']}, which is no plain data>"),
    "error": lambda d, f: exceptions.decode(f, d),
    **foreign.TAGS,
}
