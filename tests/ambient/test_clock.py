"""The patched clock is the clock: same classes, same behaviour, and gone when it is taken out."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import gc
import inspect
import pickle
import sys
import threading
import time
import types
from datetime import UTC, date, timedelta, timezone
from datetime import datetime as early_class

import orjson
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.boundary import virtual
from otel_agent_replay.boundary.draws import Draws
from otel_agent_replay.boundary.lanes import LANE, OUTSIDE, Lane
from otel_agent_replay.boundary.virtual import VirtualClock
from otel_agent_replay.instrument.libraries import clock

FUNCTIONS = [*clock.READINGS, "localtime", "gmtime", "ctime", "asctime", "strftime", "sleep"]


def tables() -> list[object]:
    names = [getattr(time, name) for name in FUNCTIONS]
    return [*names, datetime.datetime.__dict__["now"], datetime.datetime.__dict__["utcnow"], date.__dict__["today"]]


def test_it_goes_in_and_out(ambient):
    inside = tables()
    undo = clock.install()
    assert all(a is b for a, b in zip(tables(), inside, strict=True))  # in only once
    undo()
    undo()
    assert all(a is b for a, b in zip(tables(), inside, strict=True))  # the other user is still there


def test_nothing_is_left_behind():
    before = tables()
    module = types.ModuleType("took_the_name_before")
    module.time, module.__file__ = time.time, "/somewhere/took_the_name_before.py"
    sys.modules[module.__name__] = module
    try:
        undo = clock.install()
        assert module.time is time.time and time.time is not before[0]
        later = types.ModuleType("took_the_name_meanwhile")
        later.monotonic, later.__file__ = time.monotonic, "/somewhere/took_the_name_meanwhile.py"
        sys.modules[later.__name__] = later
        undo()
        assert module.time is time.time and later.monotonic is time.monotonic
    finally:
        sys.modules.pop("took_the_name_before"), sys.modules.pop("took_the_name_meanwhile", None)
    assert all(a is b for a, b in zip(tables(), before, strict=True))
    for _ in range(3):
        datetime.datetime.now(), early_class.now(UTC), date.today()


def test_warmed_call_sites_see_the_patch_and_its_end():
    def now():
        return datetime.datetime.now()

    for _ in range(5000):  # the interpreter specialises the call
        now()
    undo = clock.install()
    session = VirtualOnly()
    try:
        with session.here():
            assert now().year == 2001
    finally:
        undo()
    assert now().year > 2020


class VirtualOnly:
    """Every reading is a time of 2001."""

    replaying = True
    order = None

    def __init__(self) -> None:
        self.root = Lane(self)
        self.clock = VirtualClock(1_000_000_000_000_000_000)
        self.calls = []

    def read(self, lane, source, frame, real):
        self.calls.append(source)
        return self.clock.derived("", "", source, "", 0, real)

    def seeded(self, lane, frame):
        return Draws(lane)

    def slept(self, lane, seconds):
        self.clock.advance(seconds)

    def here(self):
        import contextlib

        @contextlib.contextmanager
        def inside():
            token = LANE.set(self.root)
            try:
                yield
            finally:
                LANE.reset(token)

        return inside()


class Subclass(datetime.datetime):
    pass


class Demanding(datetime.datetime):
    def __new__(cls, *args, **kwargs):
        made = super().__new__(cls, *args, **kwargs)
        made.tag = "made"
        return made


class Day(date):
    pass


class Before(pydantic.BaseModel):
    at: datetime.datetime


@pytest.fixture
def virtual_clock(ambient):
    session = VirtualOnly()
    with session.here():
        yield session


def test_every_door_shows_the_virtual_time(virtual_clock):
    assert (
        datetime.datetime.now().year == early_class.now().year == date.today().year == early_class.today().year == 2001
    )
    assert datetime.datetime.now(UTC).tzinfo is UTC and datetime.datetime.now(tz=UTC).year == 2001
    assert time.localtime().tm_year == time.gmtime().tm_year == 2001
    assert time.strftime("%Y") == time.ctime()[-4:] == time.asctime()[-4:] == "2001"
    assert time.strftime("%Y", time.gmtime(0)) == "1970" and time.localtime(0).tm_year in (1969, 1970)
    assert time.gmtime(None).tm_year == time.localtime(None).tm_year == 2001 and time.ctime(0)[-4:] in ("1969", "1970")
    assert 1e9 <= time.time() < 1.1e9 and time.time_ns() // 10**9 // 10**8 == 10
    first, second = time.monotonic(), time.monotonic()
    assert first < second
    time.sleep(7)
    assert 7 < time.monotonic() - second < 7.1
    with pytest.deprecated_call() if sys.version_info >= (3, 12) else __import__("contextlib").nullcontext():
        assert datetime.datetime.utcnow().tzinfo is None


def test_classes_stay_what_they_are(virtual_clock):
    for cls in (Subclass, Demanding):
        now = cls.now()
        assert type(now) is cls and now.year == 2001 and type(cls.now(UTC)) is cls and type(cls.today()) is cls
        assert cls.now(timezone(timedelta(hours=5))).utcoffset() == timedelta(hours=5)
        assert type(cls.utcnow()) is cls if sys.version_info < (3, 12) else True
    assert Demanding.now().tag == "made"
    assert type(Day.today()) is Day and Day.today().year == 2001
    assert type(datetime.datetime.now()) is datetime.datetime is early_class
    assert isinstance(datetime.datetime.now(), date)
    assert pickle.loads(pickle.dumps(datetime.datetime.now())).year == 2001
    assert pickle.loads(pickle.dumps(datetime.datetime)) is datetime.datetime
    assert copy.deepcopy(datetime.datetime.now()).year == 2001
    assert orjson.dumps(datetime.datetime.now()).startswith(b'"2001-09-09')


def test_pydantic_before_and_after(virtual_clock):
    class After(pydantic.BaseModel):
        at: datetime.datetime = pydantic.Field(default_factory=datetime.datetime.now)

    for model in (Before(at=datetime.datetime.now()), After(), After(at="2001-01-01T00:00:00")):
        assert type(model.at) is datetime.datetime and model.at.year == 2001


def test_pandas_and_numpy_are_not_broken(virtual_clock):
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    assert pandas.Timestamp.now().year == pandas.Timestamp.now(tz="UTC").year == 2001
    assert str(pandas.Series([datetime.datetime.now()]).dtype).startswith("datetime64")
    assert numpy.random.default_rng(3).random() == numpy.random.default_rng(3).random()
    assert numpy.random.default_rng().random() < 1


def test_a_bad_argument_raises_what_it_raised(virtual_clock):
    for call in (
        lambda: datetime.datetime.now("UTC"),
        lambda: datetime.datetime.now(1, 2),
        lambda: time.time(1),
        lambda: time.localtime("x"),
        lambda: time.strftime(),
        lambda: time.strftime(5),
        lambda: time.sleep(),
        lambda: date.today(1),
        lambda: time.asctime(1),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: time.sleep(-1), lambda: time.sleep(float("nan"))):
        with pytest.raises(ValueError):
            call()


def test_functions_behave_like_built_in_ones(ambient):
    class Timer:
        clock = time.perf_counter
        convert = time.gmtime
        now = datetime.datetime.now

        def read(self):
            return self.clock(), self.convert(0), self.now()

    assert Timer().read()[1].tm_year == 1970
    for name in FUNCTIONS:
        function = getattr(time, name)
        assert function.__name__ == name and function.__module__ == "time" and callable(function)
        assert (
            pickle.loads(pickle.dumps(function)) == function
            and copy.deepcopy(function) == copy.copy(function) == function
        )
    assert inspect.signature(time.time).parameters == {}
    assert "time" in repr(time.time)
    made = dataclasses.make_dataclass("Made", [("at", float, dataclasses.field(default_factory=time.time))])
    assert made().at > 1e9
    assert datetime.datetime.now.__name__ == "now" and datetime.datetime.now.__self__ is datetime.datetime


def test_outside_a_run_and_beneath_a_crossing_the_clock_is_real(ambient):
    session = VirtualOnly()
    now = time.time()
    assert now > 1.7e9 and date.today().year > 2020
    beneath = Lane(session, session.root, "call", "model:x", 0)
    beneath.beneath = object()
    for lane in (None, OUTSIDE, beneath):
        token = LANE.set(lane)
        try:
            assert time.time() > 1.7e9 and datetime.datetime.now().year > 2020 and date.today().year > 2020
            assert time.localtime().tm_year > 2020 and early_class.today().year > 2020
        finally:
            LANE.reset(token)
    assert session.calls == []


def test_a_thread_of_another_context_keeps_the_real_clock(virtual_clock):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(datetime.datetime.now().year))
    thread.start()
    thread.join(5)
    assert seen[0] > 2020 and datetime.datetime.now().year == 2001


def test_a_date_is_one_reading(virtual_clock):
    date.today()
    datetime.datetime.today()
    Day.today()
    assert virtual_clock.calls == ["clock:date.today", "clock:datetime.now", "clock:date.today"]


def test_a_method_bound_before_is_redirected():
    today = date.today  # C, bound to the real one
    undo = clock.install()
    session = VirtualOnly()
    try:
        with session.here():
            assert today().year == 2001 and session.calls == ["clock:date.today"]
    finally:
        undo()


def test_no_frame_at_all(ambient):
    import _thread

    session = VirtualOnly()
    done = _thread.allocate_lock()
    done.acquire()
    seen = []

    def run():  # a thread whose only frame is the call itself would have none to look at
        seen.append(time.time())
        done.release()

    with session.here():
        _thread.start_new_thread(time.time, ())
        _thread.start_new_thread(run, ())
        assert done.acquire(timeout=5)
    assert seen[0] > 1.7e9


def test_local_times_that_come_twice(ambient):
    class Fixed(VirtualOnly):
        def read(self, lane, source, frame, real):
            return "2026-10-25T02:30:00" + virtual.FOLD

    with Fixed().here():
        assert datetime.datetime.now().fold == 1 and Subclass.now().fold == 1 and type(Subclass.now()) is Subclass
        assert datetime.datetime.today() == datetime.datetime(2026, 10, 25, 2, 30, fold=1)


@given(
    st.datetimes(min_value=datetime.datetime(1990, 1, 1), max_value=datetime.datetime(2100, 1, 1)),
    st.sampled_from([*clock.READINGS]),
)
def test_a_virtual_clock_follows_what_it_saw_and_never_goes_back(when, name):
    started = int(when.replace(tzinfo=UTC).timestamp()) * 10**9
    time_ = VirtualClock(started)
    seen = started + 5 * 10**9
    for source, value in (
        ("clock:datetime.now(tz)", datetime.datetime.fromtimestamp(seen / 1e9, UTC).isoformat()),
        ("clock:datetime.utcnow", datetime.datetime.fromtimestamp(seen / 1e9, UTC).replace(tzinfo=None).isoformat()),
        ("clock:time.time_ns", seen),
    ):
        time_.seen(source, value)
        assert abs(time_.now_ns - seen) < 1000
    source = f"clock:time.{name}"
    values = [time_.derived("r", "main", source, "s", n, lambda: None) for n in range(5)]
    assert values == sorted(set(values)) and type(values[0]) is (int if name.endswith("_ns") else float)
    time_.advance(10)
    after = time_.derived("r", "main", source, "s", 9, lambda: None)
    if name.startswith(("process_time", "thread_time")):  # a sleep computes nothing
        assert 0 < after - values[-1] < (10_000 if name.endswith("_ns") else 1e-5)
        return
    assert after - values[-1] == pytest.approx(10 * (10**9 if name.endswith("_ns") else 1), rel=1e-5)


def test_a_virtual_local_time_is_in_the_recorded_zone():
    time_ = VirtualClock(1_700_000_000_000_000_000)
    time_.seen("clock:datetime.now", "2023-11-15T03:43:20")  # 22:13:20 UTC, five and a half hours later
    now = time_.derived("r", "l", "clock:datetime.now", "s", 0, lambda: None)
    assert now.startswith("2023-11-15T03:43:20.00000")
    assert time_.derived("r", "l", "clock:date.today", "s", 0, lambda: None) == "2023-11-15"
    assert "19800" in time_.derived("r", "l", "clock:time.localtime", "s", 0, lambda: None)


@settings(max_examples=200)
@given(
    st.text() | st.integers() | st.floats() | st.none() | st.binary(),
    st.sampled_from(
        [
            "clock:time.time",
            "clock:datetime.now",
            "clock:time.localtime",
            "clock:time.monotonic_ns",
            "clock:x",
            "process:getpid",
            "random:random",
            "",
        ]
    ),
)
def test_a_hostile_value_does_not_stop_a_virtual_clock(value, source):
    time_ = VirtualClock(10**18)
    time_.seen(source, value)
    assert time_.derived("r", "l", "clock:time.time", "s", 0, lambda: 0.0) is not None


def test_derived_draws_have_the_form_of_their_source():
    time_ = VirtualClock(10**18)

    def draw(source, number=0, real=lambda: "real"):
        return time_.derived("run", "main", source, "site", number, real)

    assert 0 <= draw("random:random") < 1 and draw("random:random") == draw("random:random") != draw("random:random", 1)
    assert (
        draw("random:getrandbits:8") < 256
        and draw("random:getrandbits:1") in (0, 1)
        and draw("random:getrandbits:0") == 0
    )
    assert len(draw("random:os.urandom:5")) == 5 and draw("random:os.urandom:0") == b""
    assert len(draw("random:getrandbits:200")) == 25 and len(draw("random:seed")) == virtual.SEED_BYTES
    import uuid

    for version in (1, 4, 6, 7, 8):
        made = uuid.UUID(draw(f"random:uuid{version}"))
        assert made.version == version and made.variant == uuid.RFC_4122
    assert len(draw("random:tempfile")) == 8 and isinstance(draw("random:gauss"), float)
    assert draw("process:getpid") == draw("what:ever") == draw("random:other") == draw("clock:other") == "real"
    time_.seen("process:getpid", 42)
    assert draw("process:getpid") == 42


def test_nothing_of_it_is_kept_alive(ambient):
    gc.collect()
    assert time.time.__self__ is not None
