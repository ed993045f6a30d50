"""The clock: `time`, `datetime` and waiting.

The functions of `time` are replaced in their module, and those that somebody holds already are redirected. `datetime`
and `date` stay the classes they are, for a replaced class breaks `isinstance`, pydantic and pickles: three entries of
their own dictionaries are replaced, and methods that somebody holds bound are redirected too.
"""

from __future__ import annotations

import operator
import sys
import time
import warnings
from contextlib import suppress
from datetime import UTC, date, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import caller, sleeps_really
from otel_agent_replay.boundary.order import sleep_turn
from otel_agent_replay.boundary.twins import bound_methods, redirect, twin
from otel_agent_replay.boundary.virtual import LOCALTIME_FIELDS
from otel_agent_replay.instrument._ambient import Installation, Patches, clock_reading, like, unbindable
from otel_agent_replay.instrument._kept import first, numbers, times
from otel_agent_replay.recording.series import FOLD, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

_CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
READINGS: Final = tuple(f"{clock}{unit}" for clock in _CLOCKS for unit in ("", "_ns") if hasattr(time, clock + unit))
"""Functions of `time` that take nothing and give a number."""

_real_now = datetime.__dict__["now"]
_real_today = date.__dict__["today"]
_real_utcnow = datetime.__dict__["utcnow"]
_real_localtime = twin(time.localtime)
_real_gmtime = twin(time.gmtime)


def install() -> Callable[[], None]:
    """Patch the clock. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    held: list[tuple[Any, Callable[..., Any]]] = []
    replaced: dict[str, Callable[..., Any]] = {}
    for name in READINGS:
        replaced[name] = numbers(twin(getattr(time, name)), f"clock:time.{name}")
    for name in ("clock_gettime", "clock_gettime_ns"):
        if hasattr(time, name):
            replaced[name] = _clock_gettime(twin(getattr(time, name)), f"clock:time.{name}")
    for replace in (_localtime, _gmtime, _ctime, _asctime, _strftime, _sleep):
        name = replace.__name__.removeprefix("_")
        replaced[name] = replace(twin(getattr(time, name)))
    for name, function in replaced.items():
        original = getattr(time, name)
        patches.put(time, name, unbindable(function, original, "time"))
        held.append((original, function))
    methods = {"now": _now, "utcnow": _utcnow, "today": _today}
    held += [(bound, methods[bound.__name__]) for bound in bound_methods((datetime, date), methods)]
    _put_entry(patches, datetime, "now", _now)
    _put_entry(patches, datetime, "utcnow", _utcnow)
    _put_entry(patches, date, "today", _today)
    patches.on_undo(redirect(held))


_installation = Installation(_put)


# -- datetime ----------------------------------------------------------------------------------------------

_LOCAL: Final = "clock:datetime.now"
_WITH_ZONE: Final = "clock:datetime.now(tz)"


def _any_now(cls: type[datetime], tz: tzinfo | None) -> datetime:
    found = clock_reading(1)
    if found is None or not (tz is None or isinstance(tz, tzinfo)):
        return _real_now(cls, tz)  # type: ignore[no-any-return]
    lane, frame = found
    if tz is None:
        return _local(cls, lane.session.read(lane, _LOCAL, frame, _local_text))
    utc = datetime.fromisoformat(lane.session.read(lane, _WITH_ZONE, frame, _utc_text))
    return tz.fromutc(_made(cls, utc, tz))


def _first_now(value: datetime, tz: tzinfo | None) -> datetime:
    given = first(*((_LOCAL, value, _local_text) if tz is None else (_WITH_ZONE, value, _utc_text)), 3)
    if not isinstance(given, str):
        return value
    return _local(datetime, given) if tz is None else datetime.fromisoformat(given)


_now = times(twin(_real_now.__get__(None, datetime)), (_LOCAL, _WITH_ZONE), _any_now, _first_now)


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
        return _local(cls, lane.session.read(lane, _LOCAL, frame, _local_text))
    day = date.fromisoformat(lane.session.read(lane, "clock:date.today", frame, _today_text))
    return day if cls is date else cls(day.year, day.month, day.day)


def _local_text() -> str:
    return text(_real_now(datetime))


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
    """Replace a class method of a built-in class."""
    like(function, vars(cls)[name], "datetime")
    patches.put_entries(cls, {name: classmethod(function)})


# -- other clocks ------------------------------------------------------------------------------------------

_NAMES: Final = {number: name for name, number in sorted(vars(time).items(), reverse=True) if name.startswith("CLOCK_")}


def _clock_gettime(original: Callable[[Any], Any], source: str) -> Callable[..., Any]:
    def clock_gettime(_: object, clock: Any, /) -> Any:
        found = clock_reading() if type(clock) is int else None
        if found is None:
            return original(clock)
        lane, frame = found
        # The clock of a thread or of another process has another number in each process.
        name = _NAMES.get(clock, "other")
        return lane.session.read(lane, f"{source}:{name}", frame, lambda: original(clock))

    return clock_gettime


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
        pause = lane.beneath.pause() if lane.beneath is not None and lane.session.replaying else None
        if pause is not None:
            pause.wait()
        try:
            if turn is not None:
                turn.begin()
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
