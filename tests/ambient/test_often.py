"""A clock that is read often: every value is kept, in its place, whatever else goes on."""

from __future__ import annotations

import bdb
import shutil
import sys
from pathlib import Path

import pytest

import otel_agent_replay
from otel_agent_replay.boundary.lanes import ONCE, Memo
from otel_agent_replay.instrument import _kept

PACKAGE = Path(otel_agent_replay.__file__).parent

PROGRAM = """
import asyncio, gc, hashlib, json, sys, threading, time
from datetime import UTC, datetime
from otel_agent_replay import boundary, run

def many(count, seen):
    for _ in range(count):
        seen.append(time.perf_counter())
        seen.append(datetime.now().isoformat())
        seen.append(datetime.now(UTC).isoformat())

def either(seen):
    for number in range(3000):
        for clock in (time.time, time.monotonic_ns, time.perf_counter):  # one call reads several clocks
            seen.append(clock())

def small():
    return time.time()

def another(seen):
    for _ in range(500):
        seen.append(small())
        seen.append(small())

def items(count):
    for _ in range(count):
        yield time.monotonic()

async def ticking(seen):
    for number in range(300):
        seen.append(time.time())
        if number % 100 == 0:
            await asyncio.sleep(0)

async def tasks(seen):
    lists = [[] for _ in range(3)]
    await asyncio.gather(*(ticking(one) for one in lists))
    seen += lists

@boundary("tool", "answer")
def answer(number):
    return [number, time.time()]

def across(seen):
    for number in range(60):
        seen.append(time.time())
        if number % 20 == 0:
            seen.append(answer(number))
        with boundary("tool", "block", number) as crossing:
            crossing.value = crossing.recorded if crossing.answered else time.time()
        seen.append(crossing.value)
        seen.append(time.time())

def traced(seen):
    for number in range(50):
        seen.append(time.time())
        if number == 20:
            sys.settrace(lambda frame, event, argument: None)
        if number == 40:
            sys.settrace(None)

def main():
    everything = []
    for part in (lambda seen: many(5000, seen), either, another, across, traced):
        seen = []
        part(seen)
        everything.append(seen)
    everything.append(list(items(5000)))
    seen = []
    asyncio.run(tasks(seen))
    everything.append(seen)
    lists = [[] for _ in range(4)]
    threads = [threading.Thread(target=many, args=(600, one)) for one in lists]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        answer(len(everything))
        break
    for thread in threads:
        thread.join()
    everything.append(lists)
    with run("inner"):
        seen = [time.time() for _ in range(20)]
        for _ in range(20):
            seen.append(time.time())
    everything.append(seen)
    for seen in everything:
        print(len(seen), hashlib.sha256(json.dumps(seen).encode()).hexdigest())

main()
"""


@pytest.fixture(params=["compiled", "in Python"])
def built(request, bench, tmp_path: Path) -> None:
    """The package as it was built here, and as it is where there is no compiler."""
    if request.param == "in Python":
        copied = tmp_path / "uncompiled" / PACKAGE.name
        shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
        if not (copied / "schemas").exists():
            shutil.copytree(PACKAGE.parent / "schemas", copied / "schemas")
        bench.environment["PYTHONPATH"] = str(copied.parent)
    elif _kept._keeping is None:
        pytest.skip("the package was built without a C compiler here")
    line = "from otel_agent_replay.instrument import _kept; print(_kept._keeping is not None)"
    assert bench.run(sys.executable, "-c", line).stdout.strip() == str(request.param == "compiled")


@pytest.mark.usefixtures("built")
def test_every_value_comes_back(bench):
    live = bench.record(PROGRAM)
    assert len(live.splitlines()) == 9
    replayed = bench.replay(run=_process_run(bench))
    assert (replayed.code, replayed.out) == (0, live), replayed.err
    assert replayed.report["new_readings"] == [] and replayed.report["unread"] == []


def _process_run(bench) -> str:
    (run,) = [found["run_id"] for found in bench.runs() if found["name"] != "inner"]
    return run


def test_many_readings_take_little_room(bench):
    bench.record("import time\nfor _ in range(200_000):\n    time.time()\n")
    size = sum(path.stat().st_size for path in (bench.folder / "home").rglob("*.spool"))
    assert size < 200_000 * 16


class Stepper(bdb.Bdb):
    def __init__(self) -> None:
        super().__init__()
        self.stops: list[str] = []

    def user_line(self, frame) -> None:
        self.stops.append(frame.f_code.co_name)
        if len(self.stops) < 20:
            self.set_step()
        else:
            self.set_quit()


@pytest.mark.parametrize("make", [Memo, lambda: ONCE])
def test_a_debugger_steps_into_a_frame_that_has_a_memo(make):
    """It looks whether the frame that it comes back to is traced already."""
    stepper = Stepper()
    before = sys.gettrace()

    def inner() -> None:
        stepper.set_trace(sys._getframe())
        return

    def outer() -> str:
        sys._getframe().f_trace = make()
        inner()
        return "after"

    try:
        assert outer() == "after"
    except bdb.BdbQuit:
        pass
    finally:
        sys.settrace(before)
    assert "outer" in stepper.stops
