"""Which readings count is the user's to choose; what a replay does with those that were not recorded, too."""

from __future__ import annotations

import json

import pytest

from otel_agent_replay import settings
from otel_agent_replay.boundary import callers
from otel_agent_replay.errors import UsageError
from tests.ambient.another_day import another_day
from tests.conftest import BIN

PROGRAM = """
import http.cookiejar, json, random, time
import ticker.inner

print(json.dumps({
    "own": time.time(),
    "library": [http.cookiejar.time2isoz() for _ in range(2)],
    "ticker": ticker.inner.now(),
    "drawn": ticker.inner.drawn(),
}))
"""

TICKER = """
import os, time
from datetime import datetime

def now():
    return [time.time(), datetime.now().isoformat()]

def drawn():
    return os.urandom(4).hex()
"""


@pytest.fixture
def days(bench):
    return {"PYTHONHASHSEED": "77", **(another_day(bench.folder) or pytest.skip("no other day can be had here"))}


def test_modules_are_included_and_excluded(bench, days):
    (bench.folder / "ticker").mkdir()
    bench.write("", "ticker/__init__.py")
    bench.write(TICKER, "ticker/inner.py")
    bench.environment = {
        "OTEL_AGENT_REPLAY_READINGS_INCLUDE": "http.cookiejar",
        "OTEL_AGENT_REPLAY_READINGS_EXCLUDE": "ticker",
    }
    recorded = json.loads(bench.record(PROGRAM))
    bench.environment = {}  # the recording knows
    replayed = bench.replay(env=bench.env | days, options=("--expect", "stdout=."))
    seen = json.loads(replayed.out)
    assert (seen["own"], seen["library"]) == (recorded["own"], recorded["library"])
    assert seen["ticker"][0] > recorded["ticker"][0] + 86_400 and seen["ticker"][1] > recorded["ticker"][1]
    assert seen["drawn"] != recorded["drawn"]
    assert replayed.report["new_readings"] == []


def test_without_a_choice_the_program_counts_and_the_standard_library_does_not(bench, days):
    (bench.folder / "ticker").mkdir()
    bench.write("", "ticker/__init__.py")
    bench.write(TICKER, "ticker/inner.py")
    recorded = json.loads(bench.record(PROGRAM))
    replayed = bench.replay(env=bench.env | days, options=("--expect", "stdout=."))
    seen = json.loads(replayed.out)
    assert [seen[name] for name in ("own", "ticker", "drawn")] == [
        recorded[name] for name in ("own", "ticker", "drawn")
    ]
    assert seen["library"] != recorded["library"]


@pytest.mark.parametrize("name", ["asyncio", "threading.local", "logging", "my-lib", "a..b", "1x"])
@pytest.mark.parametrize(
    "variable", [settings.OTEL_AGENT_REPLAY_READINGS_INCLUDE, settings.OTEL_AGENT_REPLAY_READINGS_EXCLUDE]
)
def test_what_makes_no_sense_is_refused(variable, name):
    with pytest.raises(UsageError, match=f"^{variable} names '{name}', which "):
        settings.read({variable: f"fine.module, {name}"})


def test_a_program_runs_all_the_same(bench):
    bench.environment = {"OTEL_AGENT_REPLAY_READINGS_EXCLUDE": "asyncio"}
    path = bench.write("print('ran')")
    done = bench.run(BIN / "opentelemetry-instrument", BIN / "python", path.name)
    assert done.stdout == "ran\n" and "OTEL_AGENT_REPLAY_READINGS_EXCLUDE names 'asyncio'" in done.stderr
    bench.environment = {}
    assert bench.runs() == []


def test_the_longest_name_decides(monkeypatch):
    def kind(module, file):
        source = compile("def f(): pass", file, "exec")
        code = next(const for const in source.co_consts if hasattr(const, "co_code"))

        class Frame:
            f_code, f_globals, f_back = code, {"__name__": module}, None

        return callers.kind_of(Frame())

    try:
        callers.choose(["a.b.c", "httpx", "asyncio"], ["a.b", "mine"])
        assert kind("a.b.c.d", "/x/a/b/c/d.py") == callers.AGENT
        assert kind("a.b.d", "/x/a/b/d.py") == callers.EXCLUDED
        assert kind("a.bc", "/x/a/bc.py") == callers.AGENT
        assert kind("mine", "/x/mine.py") == callers.EXCLUDED
        assert kind("httpx._client", "/x/site-packages/httpx/_client.py") == callers.LIBRARY
        assert kind("asyncio.events", callers._STDLIB + "asyncio/events.py") == callers.BASE
    finally:
        callers.choose()
    assert kind("httpx._client", "/x/site-packages/httpx/_client.py") == callers.TRANSPORT


NEW = """
import os, time
print(time.time())
"""


@pytest.mark.parametrize("more", ["time.time()", "__import__('datetime').datetime.now()", "os.urandom(3)"])
def test_strict_refuses_what_was_not_recorded(bench, more):
    live = bench.record(NEW)
    changed = f"{NEW}value = {more}\nprint(type(value).__name__)\n"
    lenient = bench.replay_changed(changed, options=("--expect", "ok"))
    assert lenient.code == 0 and lenient.out.startswith(live) and len(lenient.report["new_readings"]) == 1
    assert "new: main " in lenient.err
    strict = bench.replay_changed(changed, options=("--expect", "ok", "--strict"))
    assert strict.code == 125 and strict.out == live
    assert strict.divergences == [("exhausted", "main")]
    assert "program:<module> reads what was not recorded there" in strict.err


def test_strict_lets_the_program_pass_as_it_was(bench):
    live = bench.record(NEW)
    replayed = bench.replay(options=("--strict",))
    assert (replayed.code, replayed.out) == (0, live)
