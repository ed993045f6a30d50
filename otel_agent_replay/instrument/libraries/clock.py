"""The clock: `time`, `datetime` and waiting.

The functions of `time` are replaced in their module. `datetime` and `date` stay the classes they are, for a
replaced class breaks `isinstance`, pydantic and pickles: three entries of their own dictionaries are replaced.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import sys
import time
import warnings
from contextlib import suppress
from datetime import UTC, date, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import DISPATCH, KINDS, OUTSIDE, caller, clock_reader, sleeps_really
from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.boundary.order import sleep_turn
from otel_agent_replay.boundary.virtual import FOLD, LOCALTIME_FIELDS
from otel_agent_replay.instrument._ambient import Installation, Patches, clock_reading, like, unbindable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

READINGS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
"""Functions of `time` that take nothing and give a number."""

_real_now = datetime.__dict__["now"]
_real_today = date.__dict__["today"]
_real_utcnow = datetime.__dict__["utcnow"]
_real_localtime = time.localtime
_real_gmtime = time.gmtime
_getframe = sys._getframe  # noqa: SLF001 (there is no other way to a caller)


def install() -> Callable[[], None]:
    """Patch the clock. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in READINGS:
        patches.put(time, name, _reading(getattr(time, name), f"clock:time.{name}"))
    for replace in (_localtime, _gmtime, _ctime, _asctime, _strftime, _sleep):
        name = replace.__name__.removeprefix("_")
        original = getattr(time, name)
        patches.put(time, name, unbindable(replace(original), original, "time"))
    _put_entry(patches, datetime, "now", _now)
    _put_entry(patches, datetime, "utcnow", _utcnow)
    _put_entry(patches, date, "today", _today)


_installation = Installation(_put)


def _reading(original: Callable[[], Any], source: str) -> Any:
    """The replacement of a function that reads a clock. It is called often: everything it needs is at hand."""
    lane_here, kinds, getframe, outside, not_met = LANE.get, KINDS.get, _getframe, lanes.OUTSIDE, OUTSIDE
    ground = lanes.GROUND

    def read(_: object) -> Any:
        lane = lane_here()
        if ground:
            lane = lanes.grounded(lane)
        if lane is None:
            lane = lanes.process_root
        if lane is None or lane.beneath is not None or lane is outside:
            return original()
        try:
            frame: FrameType | None = getframe(1)
        except ValueError:  # called from no frame at all, as the interpreter ends
            return original()
        if kinds(id(frame.f_code), not_met) > DISPATCH:  # type: ignore[union-attr]
            frame = clock_reader(frame)  # type: ignore[arg-type]
            if frame is None:
                return original()
        return lane.session.read(lane, source, frame, original)  # type: ignore[arg-type]

    return unbindable(read, original, "time")


# -- datetime ----------------------------------------------------------------------------------------------


def _now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
    found = clock_reading()
    if found is None or not (tz is None or isinstance(tz, tzinfo)):
        return _real_now(cls, tz)  # type: ignore[no-any-return]
    lane, frame = found
    if tz is None:
        return _local(cls, lane.session.read(lane, "clock:datetime.now", frame, _local_text))
    utc = datetime.fromisoformat(lane.session.read(lane, "clock:datetime.now(tz)", frame, _utc_text))
    if tz is UTC and cls is datetime:
        return utc
    return tz.fromutc(_made(cls, utc, tz))


def _utcnow(cls: type[datetime]) -> datetime:
    found = clock_reading()
    if found is None:
        return _real_utcnow(cls)  # type: ignore[no-any-return]
    if sys.version_info >= (3, 12):
        _real_utcnow_warns()
    lane, frame = found
    text = lane.session.read(lane, "clock:datetime.utcnow", frame, _utcnow_text)
    return _made(cls, datetime.fromisoformat(text), None)


def _today(cls: type[date]) -> date:
    found = clock_reading()
    if found is None:
        return _real_today(cls)  # type: ignore[no-any-return]  # asks our `time.time`, which sees this file
    lane, frame = found
    if issubclass(cls, datetime):
        return _local(cls, lane.session.read(lane, "clock:datetime.now", frame, _local_text))
    day = date.fromisoformat(lane.session.read(lane, "clock:date.today", frame, _today_text))
    return day if cls is date else cls(day.year, day.month, day.day)


def _local_text() -> str:
    now: datetime = _real_now(datetime)
    return now.isoformat() + FOLD if now.fold else now.isoformat()


def _utc_text() -> str:
    now: datetime = _real_now(datetime, UTC)
    return now.isoformat()


def _utcnow_text() -> str:
    now: datetime = _real_now(datetime, UTC)
    return now.replace(tzinfo=None).isoformat()


def _today_text() -> str:
    now: datetime = _real_now(datetime)
    return now.date().isoformat()


def _local(cls: type[datetime], text: str) -> datetime:
    if text.endswith(FOLD):
        return _made(cls, datetime.fromisoformat(text.removesuffix(FOLD)), None).replace(fold=1)
    return _made(cls, datetime.fromisoformat(text), None)


def _made(cls: type[datetime], when: datetime, tz: tzinfo | None) -> datetime:
    """The same time as an instance of `cls`, made as `datetime` itself makes one of a subclass."""
    if cls is datetime:
        return when if when.tzinfo is tz else when.replace(tzinfo=tz)
    return cls(when.year, when.month, when.day, when.hour, when.minute, when.second, when.microsecond, tz)


def _real_utcnow_warns() -> None:
    warnings.warn(
        "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. Use timezone-aware "
        "objects to represent datetimes in UTC: datetime.datetime.now(datetime.UTC).",
        DeprecationWarning,
        stacklevel=3,
    )


def _put_entry(patches: Patches, cls: type, name: str, function: Callable[..., Any]) -> None:
    """Replace a class method of a built-in class in its dictionary, which no attribute access can write to."""
    (entries,) = gc.get_referents(cls.__dict__)
    original = entries[name]
    like(function, original, "datetime")
    replacement = classmethod(function)

    def put(value: object) -> None:
        entries[name] = value
        _modified(cls)  # else call sites that ran before keep the entry that was there

    def undo() -> None:
        if entries[name] is replacement:
            put(original)

    put(replacement)
    patches.on_undo(undo)


def _modified(cls: type) -> None:
    modified = ctypes.pythonapi.PyType_Modified
    modified.argtypes, modified.restype = [ctypes.py_object], None
    modified(cls)


# -- the broken-down time ----------------------------------------------------------------------------------


def _fields(when: time.struct_time) -> str:
    return " ".join(map(str, (*when, when.tm_gmtoff, when.tm_zone)))


def _structure(text: str) -> time.struct_time:
    *numbers, offset, zone = text.split(" ", LOCALTIME_FIELDS - 1)
    return time.struct_time((*map(int, numbers), zone, int(offset)))


def _localtime_text() -> str:
    return _fields(_real_localtime())


def _gmtime_text() -> str:
    return _fields(_real_gmtime())


def _here(found: tuple[Lane, FrameType] | None) -> time.struct_time | None:
    """The local time as the program reads it; None where it is not the program that reads."""
    if found is None:
        return None
    lane, frame = found
    return _structure(lane.session.read(lane, "clock:time.localtime", frame, _localtime_text))


def _localtime(original: Callable[..., time.struct_time]) -> Callable[..., time.struct_time]:
    def localtime(_: object, seconds: float | None = None, /) -> time.struct_time:
        here = _here(clock_reading()) if seconds is None else None
        return original(seconds) if here is None else here

    return localtime


def _gmtime(original: Callable[..., time.struct_time]) -> Callable[..., time.struct_time]:
    def gmtime(_: object, seconds: float | None = None, /) -> time.struct_time:
        found = clock_reading() if seconds is None else None
        if found is None:
            return original(seconds)
        lane, frame = found
        return _structure(lane.session.read(lane, "clock:time.gmtime", frame, _gmtime_text))

    return gmtime


def _ctime(original: Callable[..., str]) -> Callable[..., str]:
    asctime = time.asctime

    def ctime(_: object, seconds: float | None = None, /) -> str:
        here = _here(clock_reading()) if seconds is None else None
        return original(seconds) if here is None else asctime(here)

    return ctime


def _asctime(original: Callable[..., str]) -> Callable[..., str]:
    def asctime(_: object, *when: Any) -> str:
        here = _here(clock_reading()) if not when else None
        return original(*when) if here is None else original(here)

    return asctime


def _strftime(original: Callable[..., str]) -> Callable[..., str]:
    def strftime(_: object, *given: Any) -> str:
        here = _here(clock_reading()) if len(given) == 1 else None
        return original(*given) if here is None else original(given[0], here)

    return strftime


# -- waiting -----------------------------------------------------------------------------------------------


def _sleep(original: Callable[[Any], None]) -> Callable[..., None]:
    def sleep(_: object, seconds: Any, /) -> None:
        lane, frame = lanes.current(), caller()
        length = None if lane is None or frame is None or sleeps_really(frame) else _length(seconds)
        if lane is None or length is None:
            original(seconds)
            return
        turn = sleep_turn(lane) if lanes.strand() is lane else None
        try:
            if lane.session.replaying:
                lane.session.slept(lane, length)
                original(0)  # lets another thread run, as any sleep does
            else:
                original(seconds)
        finally:
            if turn is not None:
                turn.wait()

    return sleep


def _length(seconds: Any) -> float | None:
    """How long a sleep is, in seconds; None for what `time.sleep` refuses."""
    length: float | None = seconds if isinstance(seconds, float) else None
    with suppress(TypeError):
        length = operator.index(seconds) if length is None else length
    return length if length is not None and length >= 0 else None
