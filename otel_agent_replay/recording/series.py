"""Readings of one call site as little text: differences of numbers, and how often the same came again.

    {"float": "4743532…,4,5,4"}    doubles, as the integers that their bits are: the first, then differences
    {"int": "1700000000,120,98"}   integers: the same
    {"doubles": "RX3Pr…"}          doubles that have nothing to do with each other, as draws have: their bytes in base64
    {"float8": [900, "Gkx…", "9f", …]}     many doubles that are near each other: how many, then of the lowest byte of
    {"int8": […]}                          each to the highest: two digits where it is the same in all, else base64
    {"local": "…"}  {"utc": "…"}   times without an offset, and in UTC: microseconds since 1970, the same
    {"runs": ["GMT", 40, "CET", 2]}    each value, and how often it came
    [1, "a"]                       anything else

A clock that is read in a loop so takes some two to seven characters a reading, and where it is read very often little
time: bytes are not looked at one by one. Every value comes back exactly.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_agent_replay.recording.values import Json

FEWEST: Final = 4
"""So many values are worth it."""
MOST: Final = 1 << 20
"""Values that one record gives back, at most: of a hostile recording a few bytes could ask for any number."""

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (compared with times that have no zone)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MANY: Final = 256
"""From so many numbers on it counts what writing them takes …"""
_PLANES: Final = 4
"""… if they differ in so many bytes at most."""
_SAMPLE: Final = 16
"""The first so many values tell whether differences say it shorter."""
_IN_BASE64: Final = 11
"""Characters that the bytes of a double take."""


def pack(values: Sequence[Any]) -> Json:
    """The form in which values are written. They are plain data, or all `datetime`, without a zone or in UTC."""
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is datetime:
        return _times(values)
    if len(values) < FEWEST:
        return list(values)
    packed: Json = None
    if kind is float and sys.byteorder == "little":
        data = array("d", values).tobytes()
        packed = _planes("float8", data) or _doubles(data)
    elif kind is int:
        packed = _integers(values)
    elif kind is str:
        packed = _runs(values)
    return list(values) if packed is None else packed


def unpack(packed: Any) -> list[Json]:
    """The values. Raises ValueError where it is nothing that `pack` writes."""
    if isinstance(packed, list):
        return packed
    if not isinstance(packed, dict) or len(packed) != 1:
        raise ValueError("readings in no known form")
    ((form, data),) = packed.items()
    if form == "runs" and isinstance(data, list):
        return _repeated(data)
    if form in _TYPES and isinstance(data, list):
        return _of_planes(form, data)
    if not isinstance(data, str) or len(data) > MOST * 20:
        raise ValueError("readings in no known form")
    try:
        if form == "doubles":
            return _of_bytes(data)
        numbers = list(accumulate(orjson.loads(f"[{data}]")))
        return _formed(form, numbers)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"readings that are no numbers ({error})") from None


def text(when: datetime) -> str:
    """A time as text; the second one of its name, when clocks are set back, is marked as such."""
    return when.isoformat() + FOLD if when.fold else when.isoformat()


def _formed(form: str, numbers: list[Any]) -> list[Json]:
    if not all(type(number) is int for number in numbers):
        raise ValueError("readings that are no numbers")
    if form == "int":
        return list(numbers)
    if form == "float":
        return list(array("d", array("q", numbers).tobytes()))
    if form in ("local", "utc"):
        epoch = _EPOCH if form == "local" else _EPOCH_UTC
        return [(epoch + timedelta(microseconds=number)).isoformat() for number in numbers]
    raise ValueError(f"readings in the unknown form {form[:40]!r}")


def _integers(values: Sequence[int]) -> Json:
    if len(values) >= _MANY and sys.byteorder == "little":
        try:
            packed = _planes("int8", array("q", values).tobytes())
        except OverflowError:
            packed = None
        if packed is not None:
            return packed
    return _packed("int", list(values))


_TYPES: Final = {"float8": "d", "int8": "q"}


def _planes(form: str, data: bytes) -> Json:
    """None where there are few numbers, or they differ in many bytes."""
    count = len(data) // 8
    if count < _MANY:
        return None
    planes: list[Json] = []
    varying = 0
    for place in range(8):
        plane = data[place::8]
        if plane.count(plane[0]) == count:
            planes.append(plane[:1].hex())
        else:
            planes.append(b64encode(plane).decode("ascii"))
            varying += 1
    return {form: [count, *planes]} if varying <= _PLANES else None


def _of_planes(form: str, data: list[Any]) -> list[Json]:
    if len(data) != 9 or type(data[0]) is not int or not 0 < data[0] <= MOST:
        raise ValueError("readings that are no numbers")
    count, *planes = data
    joined = bytearray(8 * count)
    for place, plane in enumerate(planes):
        try:
            found = bytes.fromhex(plane) * count if len(plane) == 2 else b64decode(plane, validate=True)
        except (TypeError, ValueError) as error:
            raise ValueError(f"readings that are no numbers ({error})") from None
        if len(found) != count:
            raise ValueError("readings that are no numbers")
        joined[place::8] = found
    numbers = array(_TYPES[form], bytes(joined))
    if sys.byteorder != "little":
        numbers.byteswap()
    return list(numbers)


def _doubles(data: bytes) -> Json:
    bits = memoryview(data).cast("q").tolist()
    some = bits[:_SAMPLE]
    differences = _packed("float", some)
    if differences is None or len(str(differences)) > len(some) * _IN_BASE64:
        return {"doubles": b64encode(data).decode("ascii")}
    return _packed("float", bits) or {"doubles": b64encode(data).decode("ascii")}


def _of_bytes(data: str) -> list[Json]:
    try:
        return list(array("d", b64decode(data, validate=True)))
    except ValueError as error:
        raise ValueError(f"readings that are no numbers ({error})") from None


def _packed(form: str, numbers: list[int]) -> Json:
    """None where a difference is too wide for a reader of JSON."""
    try:
        return {form: orjson.dumps([numbers[0], *map(sub, numbers[1:], numbers)]).decode()[1:-1]}
    except TypeError:
        return None


def _times(values: Sequence[datetime]) -> Json:
    """Times are written as texts where that says more: two of one name, when clocks are set back."""
    if len(values) < FEWEST or any(map(attrgetter("fold"), values)):
        return [text(when) for when in values]
    local = values[0].tzinfo is None
    epoch = _EPOCH if local else _EPOCH_UTC
    return _packed("local" if local else "utc", [(when - epoch) // _MICROSECOND for when in values])


FOLD: Final = "~"
"""Ends a local time that is the second one of its name, when clocks are set back."""


def _runs(values: Sequence[str]) -> Json:
    runs: list[Json] = []
    for value, same in groupby(values):
        runs += [value, sum(1 for _ in same)]
    return {"runs": runs} if len(runs) < len(values) else None


def _repeated(data: list[Any]) -> list[Json]:
    values: list[Json] = []
    for value, times in zip(data[::2], data[1::2], strict=True):
        if type(times) is not int or not 0 < times <= MOST - len(values):
            raise ValueError("readings that come no number of times")
        values += [value] * times
    return values
