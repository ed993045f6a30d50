"""What other ways to virtualise a clock break, and this one does not: one check each, in the year 2001.

What no way in a process can do is marked, with the reason: it is what a reading of the kernel's clock by C or Rust
gives, which no name of Python stands before.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import email.utils
import logging
import pickle
import queue
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from datetime import date as early_date
from datetime import datetime as early_datetime
from pathlib import Path
from time import monotonic as early_monotonic
from time import time as early_time
from typing import TYPE_CHECKING

import msgspec
import numpy
import orjson
import pandas
import pydantic
import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.boundary.virtual import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

YEAR = 2001
THIS_YEAR = time.gmtime().tm_year
ORIGINAL = datetime.datetime
CHECKS: dict[str, Callable[[], object]] = {}
IMPOSSIBLE = {
    "numpy: datetime64('now')": "numpy reads the clock in C",
    "pydantic: a past of the virtual time": "pydantic's own checks read the clock in Rust",
}


class Before(pydantic.BaseModel):
    at: early_datetime


def check(name: str) -> Callable[[Callable[[], object]], None]:
    def keep(holds: Callable[[], object]) -> None:
        CHECKS[name] = holds

    return keep


def now() -> datetime.datetime:
    return datetime.datetime.now()


check("time.time")(lambda: time.gmtime(time.time()).tm_year == YEAR)
check("time.time, bound before")(lambda: time.gmtime(early_time()).tm_year == YEAR)
check("time.monotonic, bound before")(lambda: early_monotonic() < 10 < real.monotonic())
check("datetime.now")(lambda: now().year == YEAR)
check("datetime.now of a class bound before")(lambda: early_datetime.now().year == YEAR)
check("datetime.utcnow of a class bound before")(lambda: early_datetime.utcnow().year == YEAR)
check("date.today of a class bound before")(lambda: early_date.today().year == YEAR)
check("time.localtime and its like")(
    lambda: (
        {time.localtime().tm_year, time.gmtime().tm_year, int(time.strftime("%Y")), int(time.ctime()[-4:])} == {YEAR}
    )
)
check("time.clock_gettime")(lambda: time.gmtime(time.clock_gettime(time.CLOCK_REALTIME)).tm_year == YEAR)
check("the type of now")(lambda: type(now()) is ORIGINAL)
check("the class itself")(lambda: datetime.datetime is ORIGINAL is early_datetime)
check("isinstance of another time")(lambda: isinstance(ORIGINAL(2020, 1, 1), datetime.datetime))
check("isinstance of now as a date")(lambda: isinstance(now(), datetime.date))
check("issubclass")(lambda: issubclass(datetime.datetime, datetime.date))
check("pickle of now")(lambda: type(pickle.loads(pickle.dumps(now()))) is ORIGINAL)
check("pickle of the class")(lambda: pickle.loads(pickle.dumps(datetime.datetime)) is ORIGINAL)
check("deepcopy of now")(lambda: type(copy.deepcopy(now())) is ORIGINAL)
check("pydantic: a model defined before")(lambda: type(Before(at=now()).at) is ORIGINAL)
check("pydantic: a past")(
    lambda: pydantic.TypeAdapter(pydantic.PastDatetime).validate_python("1978-01-01T00:00:00").year == 1978
)
check("pandas: Timestamp.now")(
    lambda: (
        {
            pandas.Timestamp.now().year,
            pandas.Timestamp.now(tz="UTC").year,
            pandas.Timestamp.today().year,
        }
        == {YEAR}
    )
)
check("pandas: to_datetime('now')")(lambda: pandas.to_datetime("now").year == YEAR)
check("pandas: a series of now")(lambda: str(pandas.Series([now()]).dtype).startswith("datetime64"))
check("numpy: an array of now")(lambda: str(numpy.array([now()], dtype="datetime64[us]").dtype) == "datetime64[us]")
check("numpy: datetime64('now')")(lambda: str(numpy.datetime64("now"))[:4] == str(YEAR))
check("msgspec: encode")(lambda: msgspec.json.encode(now()).startswith(b'"2001'))
check("orjson: encode")(lambda: orjson.dumps(now()).startswith(b'"2001'))
check("msgspec: decode")(
    lambda: type(msgspec.json.decode(b'"2020-01-01T00:00:00"', type=datetime.datetime)) is ORIGINAL
)
check("arithmetic")(
    lambda: type(now() + datetime.timedelta(1)) is ORIGINAL and type(now() - now()) is datetime.timedelta
)
check("uuid1")(lambda: uuid.uuid1().version == 1)
check("the date of an e-mail")(lambda: email.utils.formatdate()[12:16] == str(YEAR))
check("the record of a log")(
    lambda: time.gmtime(logging.LogRecord("a", 1, "", 1, "", (), None).created).tm_year >= THIS_YEAR
)


@check("pydantic: a model defined after")
def _() -> bool:
    class After(pydantic.BaseModel):
        at: datetime.datetime

    return type(After(at=now()).at) is ORIGINAL and type(After(at="2020-01-01T00:00:00").at) is ORIGINAL


@check("pydantic: a past of the virtual time")
def _() -> bool:
    try:
        pydantic.TypeAdapter(pydantic.PastDatetime).validate_python("2020-01-01T00:00:00")
    except pydantic.ValidationError:
        return True
    return False


@check("sqlite3: a parameter")
def _() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the adapter is deprecated
        connection = sqlite3.connect(":memory:")
        ((found,),) = connection.execute("select ?", (now(),))
        connection.close()
    return found.startswith(str(YEAR))


@check("a subclass of the program")
def _() -> bool:
    class Moment(ORIGINAL):
        pass

    return type(Moment.now()) is Moment and Moment.now().year == YEAR


@check("asyncio.sleep")
def _() -> bool:
    return asyncio.run(asyncio.wait_for(asyncio.sleep(0.01, "slept"), 5)) == "slept"


@check("Event.wait with a timeout")
def _() -> bool:
    return threading.Event().wait(0.01) is False


@check("Queue.get with a timeout")
def _() -> bool:
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=0.01)
    return True


@check("subprocess with a timeout")
def _() -> bool:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(20)"], timeout=0.05)
    return True


@check("the time of a span")
def _() -> bool:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("x").start_span("a")
    span.end()
    return time.gmtime(span.start_time / 1e9).tm_year >= THIS_YEAR


@check("the time of a file")
def _() -> bool:
    with tempfile.NamedTemporaryFile() as file:
        return time.gmtime(Path(file.name).stat().st_mtime).tm_year >= THIS_YEAR > YEAR


class Virtual:
    """A replay that knows nothing: every reading is a time of 2001."""

    replaying = True
    order = None

    def __init__(self) -> None:
        self.root = Lane(self)
        self.clock = VirtualClock(1_000_000_000_000_000_000)

    def read(self, lane, source, frame, real):
        return self.clock.derived("", "", source, "", 0, real)

    def slept(self, lane, seconds):
        self.clock.advance(seconds)

    def note(self, note):
        pass


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=IMPOSSIBLE[name]) if name in IMPOSSIBLE else ())
        for name in CHECKS
    ],
)
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_it_stays_compatible(ambient, name):
    token = LANE.set(Virtual().root)
    try:
        assert CHECKS[name]()
    finally:
        LANE.reset(token)
