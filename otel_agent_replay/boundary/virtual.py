"""What a replay gives for a reading that the recording does not know: a virtual now, or a derived draw.

The forms in which readings are recorded stand here: whoever patches a clock or a generator records the value
that this module reads and makes.

    clock:time.time  clock:time.monotonic  clock:time.perf_counter      seconds, float; with `_ns` nanoseconds, int
    clock:time.process_time  clock:time.thread_time                     the same
    clock:time.clock_gettime:CLOCK (and _ns before the colon)           the same; CLOCK as in `time.CLOCK_…`
    clock:datetime.now                                                  ISO 8601 of the local time, without offset
    clock:datetime.now(tz)                                              ISO 8601 in UTC, with +00:00
    clock:datetime.utcnow                                               ISO 8601 in UTC, without offset
    clock:date.today                                                    YYYY-MM-DD, local
    clock:time.localtime  clock:time.gmtime                             9 numbers, offset and zone, by spaces
    random:random  random:gauss                                         float
    random:getrandbits:K                                                int of K bits; bytes where K is over 63
    random:os.urandom:N                                                 N bytes
    random:seed                                                         32 bytes
    random:state                                                        625 words and, where it has one, a double
    random:numpy:NAME                                                   a number, bytes, or JSON: a state or an array
    random:torch:NAME                                                   text: nothing, a state; a seed, 16 hex digits
    random:getnode                                                      int of 48 bits
    random:tempfile                                                     8 characters of a file's name
    random:uuid4 (and uuid1, uuid6, uuid7, uuid8)                       the UUID as text
    process:getpid                                                      int
    environment:get:NAME                                                JSON of a string, or null
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import UUID

from otel_agent_replay.recording.series import FOLD
from otel_agent_replay.recording.values import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TICK_NS: Final = 1_000
"""How far apart two virtual readings are at least: the finest step of a `datetime`."""

PATIENT_READINGS: Final = 1_000
"""So many virtual readings in a row are a tick apart. Of more, each hundred are twice as far apart as the hundred
before: a loop that does nothing but wait for a time to come does not take for ever."""

_LONGEST_TICK: Final = 20
"""… up to 2**20 ticks, a second."""

SEED_BYTES: Final = 32
"""Entropy that seeds a generator which was given no seed."""

MOST_BITS: Final = 63
"""Draws of more bits are kept as bytes: not every reader of JSON has longer integers."""

NAME_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789_"
"""What `tempfile` makes names of."""

NAME_LENGTH: Final = 8

LOCALTIME_FIELDS: Final = 11
"""Of a recorded `time.struct_time`: its nine, the offset from UTC in seconds, the name of the zone."""

_STATE: Final = Struct("<625I")
_KEPT: Final = Struct("<d")

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (local times are compared without their zone)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BILLION: Final = 1_000_000_000
_LATEST_NS: Final = 250_000_000_000 * _BILLION
"""No recorded time is later: a `datetime` ends with the year 9999."""
_QUARTER_NS: Final = 900 * _BILLION
"""Offsets from UTC are quarters of an hour."""
_CLOCKS: Final = {
    "CLOCK_REALTIME": "time.time",
    "CLOCK_MONOTONIC": "time.monotonic",
    "CLOCK_PROCESS_CPUTIME_ID": "time.process_time",
    "CLOCK_THREAD_CPUTIME_ID": "time.thread_time",
}
"""What `time.clock_gettime` reads that another function reads too."""
_BUSY: Final = ("time.process_time", "time.thread_time")
"""Clocks that stand still while nothing is computed."""


class VirtualClock:
    """The time of a replay: follows the recorded readings, strictly increases, and passes over sleeps.

    Args:
        started_ns: when the recorded run began, nanoseconds since the epoch.
    """

    def __init__(self, started_ns: int) -> None:
        self._now = started_ns
        self._started = started_ns
        self._bases: dict[str, int] = {}
        """What a monotonic clock shows, less the virtual now; learned from its first recorded reading."""
        self._busy: dict[str, int] = {}
        """What the clocks of `_BUSY` showed last, nanoseconds."""
        self._offset: int | None = None
        """Local time less UTC, nanoseconds; learned from the first recorded local time."""
        self._zone = ""
        self._in_a_row = 0
        """Virtual readings since the clock was last moved by a recorded one, or by a sleep."""
        self._given: dict[str, Any] = {}

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self._now

    def seen(self, source: str, value: object) -> None:
        """A recorded reading was given to the program: the virtual now is no earlier."""
        if source.startswith(("process:", VARIABLE)):
            self._given[source] = value
        if not source.startswith("clock:"):
            return
        self._in_a_row = 0
        try:
            self._follow(source.removeprefix("clock:"), value)
        except (ValueError, TypeError, OverflowError):
            return  # a hostile or foreign recording: the program gets its value, the clock stays where it is

    def advance(self, seconds: float) -> None:
        """Let a sleep pass that took no time."""
        self._in_a_row = 0
        self._now = min(self._now + max(0, int(min(seconds, 1e12) * _BILLION)), _LATEST_NS)

    def derived(self, run_id: str, lane: str, source: str, site: str, number: int, real: Callable[[], T]) -> T:
        """The value of a reading that is not recorded; the same in each replay, in the form of its source.

        Args:
            run_id: the run that is replayed.
            lane: path of the lane that reads.
            source: what is read.
            site: where.
            number: how-manyth reading of this kind there, from 0.
            real: the real reading, for a source that is none of those above.
        """
        kind, _, name = source.partition(":")
        if kind == "clock":
            value = self._clock(name)
        elif kind == "random":
            value = draw(name, derived(run_id, lane, source, site, number))
        else:
            value = self._given.get(source)
        return real() if value is None else cast("T", value)

    def _follow(self, name: str, value: object) -> None:
        clock, unit = _clock_of(name)
        if clock:
            if isinstance(value, int if unit == 1 else int | float):
                self._reached(clock, int(value * unit))
        elif name == "datetime.now(tz)":
            self._reached("time.time", _ns(datetime.fromisoformat(str(value)) - _EPOCH_UTC))
        elif name == "datetime.utcnow":
            self._reached("time.time", _ns(datetime.fromisoformat(str(value)) - _EPOCH))
        elif name == "datetime.now":
            local = _ns(datetime.fromisoformat(str(value).removesuffix(FOLD)) - _EPOCH)
            if self._offset is None:
                self._offset = round((local - self._now) / _QUARTER_NS) * _QUARTER_NS
            self._reached("time.time", local - self._offset)
        elif name == "time.localtime":
            *_, offset, zone = str(value).split(" ", LOCALTIME_FIELDS - 1)
            self._offset, self._zone = int(offset) * _BILLION, zone

    def _reached(self, clock: str, ns: int) -> None:
        if clock in _BUSY:
            self._busy[clock] = max(ns, self._busy.get(clock, 0))
            return
        if clock != "time.time":
            ns -= self._bases.setdefault(clock, ns - self._now)
        if ns < _LATEST_NS:
            self._now = max(self._now, ns)

    def _clock(self, name: str) -> object:
        tick = TICK_NS << min(max(0, self._in_a_row - PATIENT_READINGS) // 100, _LONGEST_TICK)
        self._in_a_row += 1
        self._now = min(self._now + tick, _LATEST_NS + self._in_a_row)
        clock, unit = _clock_of(name)
        if clock:
            ns = self._now
            if clock in _BUSY:
                ns = self._busy[clock] = self._busy.get(clock, 0) + tick
            elif clock != "time.time":
                ns += self._bases.setdefault(clock, _BILLION - self._started)
            return ns if unit == 1 else ns / _BILLION
        instant = _EPOCH_UTC + timedelta(microseconds=self._now // 1_000)
        if name == "datetime.now(tz)":
            return instant.isoformat()
        if name == "datetime.utcnow":
            return instant.replace(tzinfo=None).isoformat()
        if name == "time.gmtime":
            return fields_of(instant, "GMT")
        local = self._local(instant)
        if name == "datetime.now":
            return local.replace(tzinfo=None).isoformat()
        if name == "date.today":
            return local.date().isoformat()
        return fields_of(local, self._zone or local.tzname() or "") if name == "time.localtime" else None

    def _local(self, instant: datetime) -> datetime:
        if self._offset is None:
            return instant.astimezone()
        return instant.astimezone(timezone(timedelta(microseconds=self._offset // 1_000)))


def _clock_of(name: str) -> tuple[str, int]:
    """The clock that a source of numbers reads, and its units in a nanosecond's; empty where it is another source."""
    function, _, which = name.partition(":")
    clock = function.removesuffix("_ns")
    unit = 1 if function.endswith("_ns") else _BILLION
    if clock == "time.clock_gettime" and which:
        return _CLOCKS.get(which, which), unit
    return (clock, unit) if clock in ("time.time", "time.monotonic", "time.perf_counter", *_BUSY) else ("", unit)


def fields_of(when: datetime, zone: str) -> str:
    """The recorded form of a `time.struct_time`."""
    offset = when.utcoffset() or timedelta()
    fields = (*when.timetuple()[:8], int(bool(when.dst())), int(offset.total_seconds()), zone)
    return " ".join(map(str, fields))


def derived(run_id: str, lane: str, source: str, site: str, number: int) -> random.Random:
    """A generator that belongs to one reading of one replayed run, and to nothing else."""
    name = "\0".join((run_id, lane, source, site, str(number)))
    seed = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=SEED_BYTES).digest()
    return random.Random(int.from_bytes(seed))  # noqa: S311 (it must be the same each time)


def draw(name: str, generator: random.Random) -> object:
    """A draw in the form of a source, without its ``random:``; None for an unknown one."""
    kind, _, size = name.partition(":")
    if kind == "random":
        return generator.random()
    if kind == "gauss":
        return generator.gauss(0.0, 1.0)
    if kind == "getrandbits" and size.isdecimal():
        bits = generator.getrandbits(int(size))
        return bits if int(size) <= MOST_BITS else bits.to_bytes((int(size) + 7) // 8)
    if kind == "os.urandom" and size.isdecimal():
        return generator.randbytes(int(size))
    if kind == "seed":
        return generator.randbytes(SEED_BYTES)
    if kind == "state":
        return state_bytes(generator.getstate())
    if kind == "torch":
        return f"{generator.getrandbits(64):016x}"
    if kind == "numpy":
        return f'{{"seed":"{generator.getrandbits(128):032x}"}}'
    if kind == "getnode":
        return generator.getrandbits(48) | 1 << 40
    if kind == "tempfile":
        return "".join(generator.choices(NAME_CHARACTERS, k=NAME_LENGTH))
    if kind.startswith("uuid") and kind[4:].isdecimal():
        version = int(kind[4:])
        number = generator.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | version << 76 | 0x2 << 62
        return str(UUID(int=number))
    return None


def state_bytes(state: Any) -> bytes:
    """The recorded form of what `random.Random.getstate` gives."""
    _, words, kept = state
    return _STATE.pack(*words) + (b"" if kept is None else _KEPT.pack(kept))


def state_of(data: bytes) -> tuple[int, tuple[int, ...], float | None]:
    """The state of this recorded form. Raises struct.error where it is none."""
    kept = data[_STATE.size :]
    return random.Random.VERSION, _STATE.unpack_from(data), _KEPT.unpack(kept)[0] if kept else None


def _ns(span: timedelta) -> int:
    return span // timedelta(microseconds=1) * 1_000
