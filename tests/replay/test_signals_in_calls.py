"""What the handler of a signal raises into a call, or does in it, comes again in a replay: once, and there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.replay.interrupted_calls import HEAD, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def slow_url() -> Iterator[str]:
    """Where a model server listens that is as slow as it is asked to be."""
    script = Path(__file__).parent / "slow_server.py"
    server = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server.stdout:
        yield server.stdout.readline().strip()
        server.kill()
        server.wait()


@pytest.fixture
def slow_bench(bench, slow_url: str):
    bench.base_url = slow_url
    return bench


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_signal_comes_into(slow_bench, name: str) -> None:
    live = slow_bench.record(HEAD + PROGRAMS[name])
    slow_bench.base_url = "http://127.0.0.1:1"
    for _ in range(2):
        replayed = slow_bench.replay()
        assert (replayed.code, replayed.out, replayed.report["divergences"]) == (0, live, []), replayed.err


CALLS = {
    "a model call": 'limited(lambda: text("before=20"))',
    "a stream": 'limited(lambda: pieces("pieces=2 stall=20"))',
    "a pause": 'limited(lambda: text("refuse=2 of a pause", retries=3))',
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("handling", ["handler=count)", "handler=signal.SIG_IGN)"])
def test_a_handler_that_raises_no_more_diverges(slow_bench, name: str, handling: str) -> None:
    """The recording does not know how the call would have gone on."""
    call = CALLS[name].replace("of a pause", handling)  # a prompt is refused for the first times only
    program = HEAD + call + '\nprint(text("after"))\n'
    slow_bench.record(program)
    changed = program.replace("handler=ring", handling.removesuffix(")"))
    assert changed != program
    replayed = slow_bench.replay_changed(changed)
    assert replayed.code == 125, replayed.err
    assert "raises nothing into it now" in replayed.err


def test_an_interrupted_call_that_asks_something_else_diverges(slow_bench) -> None:
    """What is told is that it asks something else, not what its signal does."""
    program = HEAD + 'limited(lambda: text("before=20"))\nprint(text("after"))\n'
    slow_bench.record(program)
    replayed = slow_bench.replay_changed(program.replace("before=20", "before=30"))
    assert replayed.code == 125, replayed.err
    assert replayed.divergences[0] == ("diverged", "main")


def test_a_handler_that_raises_something_else(slow_bench) -> None:
    """It runs in a replay, so what it raises is what the program sees."""
    program = HEAD + 'limited(lambda: text("before=20"))\nprint(text("after"))\n'
    live = slow_bench.record(program)
    replayed = slow_bench.replay_changed(program.replace("raise TooLate(number)", "raise KeyError(number)"))
    assert (replayed.code, replayed.report["divergences"]) == (1, []), replayed.err
    assert replayed.out == live.replace("TooLate", "KeyError")


STORM = """
import signal
from otel_agent_replay import boundary

class Tick(Exception):
    pass

raised = caught = 0
is_open = False

def tick(number, frame):
    global raised, is_open
    if is_open:
        is_open = False
        raised += 1
        raise Tick

@boundary("tool", "add")
def add(number, pile):
    return pile

pile = {"rows": [{"a": number, "b": "x" * 40} for number in range(50)]}
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(1500):
    try:
        is_open = True
        add(number, pile)
        add(number, pile)
        is_open = False
    except Tick:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(raised > 20, raised - caught)
"""


def test_what_a_handler_raises_is_not_taken_for_a_fault_of_the_recorder(bench) -> None:
    """However often a signal comes while something is being recorded, which is most of what this program does."""
    bench.environment["OTEL_AGENT_REPLAY_RAISE"] = ""  # as it is for everybody: a fault is swallowed
    assert bench.record(STORM) == "True 0\n"
    (run,) = bench.runs()
    assert (run["complete"], run["notes"]) == (True, 0)
