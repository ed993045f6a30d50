"""The clock: every function that tells the time, and what the classes of the libraries make of it."""

from __future__ import annotations

import time
from functools import partial

from tests.ambient import table

Row = partial(table.Row, before=tuple(table.FORMS))
"""Every form holds for a name that was bound before, too."""

_TIME = "import time"
_DATETIME = "import datetime, zoneinfo"

_NUMBERS = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
)
_BROKEN_DOWN = ("localtime", "gmtime", "ctime", "asctime")
_CLOCKS = ("REALTIME", "MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "PROCESS_CPUTIME_ID", "THREAD_CPUTIME_ID")

ROWS = [
    *(Row(f"time.{name}", f"time.{name}", setup=_TIME) for name in (*_NUMBERS, *_BROKEN_DOWN)),
    Row("time.strftime", "time.strftime", "'%Y-%m-%d %H:%M:%S %z %Z'", setup=_TIME),
    *(
        Row(f"time.{function}({clock})", f"time.{function}", f"time.CLOCK_{clock}", setup=_TIME)
        for function in ("clock_gettime", "clock_gettime_ns")
        for clock in _CLOCKS
        if hasattr(time, f"CLOCK_{clock}")
    ),
    Row("time.sleep", "time.sleep", "0.001", setup=_TIME, varies=False),
    Row("datetime.now", "datetime.datetime.now", setup=_DATETIME),
    Row("datetime.now(UTC)", "datetime.datetime.now", "datetime.UTC", setup=_DATETIME),
    Row("datetime.now(zone)", "datetime.datetime.now", "zoneinfo.ZoneInfo('Asia/Kolkata')", setup=_DATETIME),
    Row("datetime.now(tz=zone)", "datetime.datetime.now", "tz=zoneinfo.ZoneInfo('Asia/Kolkata')", setup=_DATETIME),
    Row("datetime.utcnow", "datetime.datetime.utcnow", setup=_DATETIME),
    Row("datetime.today", "datetime.datetime.today", setup=_DATETIME),
    Row("date.today", "datetime.date.today", setup=_DATETIME),
    Row(
        "a subclass of datetime",
        "Moment.now",
        setup=f"{_DATETIME}\nMoment = type('Moment', (datetime.datetime,), {{}})",
    ),
    Row("a subclass of date", "Day.today", setup=f"{_DATETIME}\nDay = type('Day', (datetime.date,), {{}})"),
    Row("email.utils.formatdate", "email.utils.formatdate", setup="import email.utils"),
    Row("email.utils.localtime", "email.utils.localtime", setup="import email.utils"),
    Row("timeit.default_timer", "timeit.default_timer", setup="import timeit"),
]
