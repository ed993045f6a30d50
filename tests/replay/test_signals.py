"""Signals that a program handles come again in a replay, where they came in the recording; none comes by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_agent_replay.boundary.signals import Arrival, arrivals, key_of
from otel_agent_replay.instrument.libraries import signals
from otel_agent_replay.recording.values import OrderEvent

BIN = Path(sys.executable).parent
LIMIT = 120

WAITING = (
    "a sleep is interrupted",
    "one of many sleeps is",
    "an event is waited for",
    "a queue is waited for",
    "a signal is waited for",
    "the process pauses",
    "a thread is joined",
    "a loop runs a task",
)

HEAD = """
import asyncio, os, queue, signal, sys, threading, time
from otel_agent_replay import boundary

signal.signal(signal.SIGINT, signal.default_int_handler)

@boundary("tool", "add")
def add(number):
    return number + 1

@boundary("tool", "later")
async def later(number):
    return number + 1

def up():
    print("up", flush=True)
"""

PROGRAMS = {
    "a signal is waited for": """
wanted = {signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
up()
print(signal.sigwait(wanted) is signal.SIGTERM, add(8))
os.kill(os.getpid(), signal.SIGUSR1)
told = signal.sigwaitinfo(wanted)
print(told.si_signo, told.si_pid == os.getpid(), signal.sigtimedwait(wanted, 0.01))
""",
    "a sleep is interrupted": """
up()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
print(add(1))
""",
    "one of many sleeps is": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(add(6)))
up()
while True:
    time.sleep(0.01)
""",
    "a sleep goes on after its handler": """
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(signal.Signals(number).name))
up()
for _ in range(4):
    time.sleep(0.4)
    print(len(seen) > 0, add(len(seen)))
print(seen)
""",
    "a thread is joined": """
stop, seen = threading.Event(), []
def work():
    while not stop.wait(0.02):
        seen.append(add(len(seen)))
thread = threading.Thread(target=work)
thread.start()
up()
try:
    thread.join()
except KeyboardInterrupt:
    stop.set()
    thread.join()
print(len(seen), add(len(seen)))
""",
    "an event is waited for": """
up()
try:
    threading.Event().wait()
except KeyboardInterrupt:
    print(add(2))
""",
    "a queue is waited for": """
up()
try:
    queue.Queue().get()
except KeyboardInterrupt:
    print(add(3))
""",
    "the process pauses": """
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
up()
signal.pause()
print(seen == [signal.SIGTERM], add(4))
""",
    "a loop runs a task": """
async def main():
    print(await later(1))
    up()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", await later(2))
        raise
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
""",
    "a loop has a handler": """
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(await later(1))
    up()
    await stop.wait()
    print("stopping", await later(100))
asyncio.run(main())
""",
    "a uvloop has a handler": """
import uvloop
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(await later(1))
    up()
    await stop.wait()
    print("stopping", await later(100))
uvloop.run(main())
""",
    "it comes into a call": """
@boundary("tool", "slow")
def slow():
    time.sleep(60)
seen = []
def stop(number, frame):
    seen.append(number)
    raise TimeoutError("stopped")
signal.signal(signal.SIGTERM, stop)
up()
try:
    slow()
except TimeoutError as error:
    print(error, len(seen), add(5))
""",
    "a call goes on after its handler": """
@boundary("tool", "slow")
def slow():
    until = time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(0.05)
    return "slow"
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
up()
while not stopping:
    print(slow())
print(add(7))
""",
}


def _killed(bench, program: str, number: int) -> str:
    """Record a program that gets a signal once it is up; gives its standard output."""
    path = bench.write(HEAD + program)
    command = [BIN / "opentelemetry-instrument", sys.executable, path.name]
    running = subprocess.Popen(
        command, cwd=bench.folder, env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        first = ""
        while not first.endswith("up\n"):
            line = running.stdout.readline()
            assert line, running.stderr.read()
            first += line
        time.sleep(0.3)
        running.send_signal(number)
        out, err = running.communicate(timeout=LIMIT)
    finally:
        running.kill()
    assert running.returncode in (0, 7, -signal.SIGKILL), err
    return first + out


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_handler_is_called_in_its_place(bench, name):
    program = PROGRAMS[name]
    live = _killed(bench, program, signal.SIGTERM if "SIGTERM" in program else signal.SIGINT)
    for _ in range(3):
        replayed = bench.replay()
        assert (replayed.code, replayed.out) == (0, live), replayed.err


@pytest.mark.parametrize("name", WAITING)
def test_a_replay_of_a_killed_program_ends(bench, name):
    live = _killed(bench, PROGRAMS[name], signal.SIGKILL)
    replayed = bench.replay()
    assert replayed.code == 125 and live.startswith(replayed.out[: len("up\n")]), replayed.err


TIMED = """
def limited(work, seconds):
    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return work()
    except TimeoutError as error:
        return str(error)
    finally:
        print(signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0, end=" ")

def expired(number, frame):
    raise TimeoutError("too long")

@boundary("tool", "slow")
def slow(seconds):
    time.sleep(seconds)
    return "done"

print(limited(lambda: time.sleep(30), 0.1))
print(limited(lambda: time.sleep(0.001), 30))
print(limited(lambda: slow(30), 0.1))
print(limited(lambda: slow(0.001), 30))
print(signal.alarm(50), signal.alarm(0) in (49, 50), add(1))
"""


def test_many_signals(bench):
    program = """
seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
signal.signal(signal.SIGALRM, lambda number, frame: seen.append("tick"))
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
main = threading.get_ident()
senders = [signal.raise_signal]
senders += [lambda number: os.kill(os.getpid(), number), lambda number: signal.pthread_kill(main, number)]
sender = threading.Thread(target=lambda: [
    (time.sleep(0.011), send(signal.SIGUSR1)) for send in 10 * senders
])
sender.start()
for number in range(40):
    time.sleep(0.02)
    print(add(number))
signal.setitimer(signal.ITIMER_REAL, 0)
sender.join()
print(len(seen), seen.count("tick"))
"""
    live = bench.record(HEAD + program)
    assert min(map(int, live.splitlines()[-1].split())) > 10
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, live), replayed.err


def test_timers_of_new_code(bench):
    bench.record(HEAD + "\nprint(add(1))\n")
    lines = ["signal.alarm(100)", "signal.setitimer(signal.ITIMER_REAL, 50)[0] > 0", "signal.getitimer(0)[0] > 0"]
    replayed = bench.replay_changed(HEAD + "\nprint(add(1))\n" + "".join(f"print({line})\n" for line in lines))
    assert replayed.code == 1 and replayed.out.splitlines()[0] == "2", replayed.err
    assert [line for line in replayed.out.splitlines()[1:] if line in ("0", "True", "False")] != [], replayed.err


def test_timeouts_by_a_timer(bench):
    live = bench.record(HEAD + TIMED)
    assert live.splitlines()[0] == "False too long"
    replayed = bench.replay()
    assert (replayed.code, replayed.out, replayed.report["new_readings"]) == (0, live, []), replayed.err


def test_a_program_that_handles_it_no_more_is_left_alone(bench):
    _killed(bench, PROGRAMS["the process pauses"], signal.SIGTERM)
    changed = HEAD + "\nup()\nprint(True, add(4))\n"
    replayed = bench.replay_changed(changed)
    assert (replayed.code, replayed.out) == (0, "up\nTrue 5\n"), replayed.err


def test_a_program_that_signals_itself(bench):
    program = """
seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(add(len(seen))))
for _ in range(3):
    signal.raise_signal(signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    time.sleep(0.001)
    print(seen, add(50))
"""
    live = bench.record(HEAD + program)
    assert live.splitlines()[-1] == "[1, 2, 3, 4, 5, 6, 7, 8, 9] 51"
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, live), replayed.err


def test_a_loop_that_polls_for_ever_is_stopped(bench):
    bench.record(HEAD + "\nprint(add(1))\nready = True\nwhile not ready:\n    time.sleep(1)\n")
    replayed = bench.replay_changed(HEAD + "\nprint(add(1))\nready = False\nwhile not ready:\n    time.sleep(1)\n")
    assert replayed.code == 125 and "waits for something" in replayed.err


def test_the_module_is_what_it_was():
    def mine(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    undo = signals.install()
    try:
        assert signal.signal(signal.SIGUSR1, mine) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR1) is mine
        assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is mine
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        with pytest.raises(TypeError):
            signal.signal(signal.SIGUSR1, "no handler")
        with pytest.raises(ValueError, match="out of range"):
            signal.getsignal(10_000)
        signal.signal(signal.SIGUSR1, mine)
        undo()
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        undo()
        signal.signal(signal.SIGUSR1, before)


def test_what_a_recording_says_of_signals():
    events = [
        OrderEvent("main", key_of(signal.SIGTERM, None), 0, 3),
        OrderEvent("main", key_of(signal.SIGINT, 2), 0, 5),
        OrderEvent("main", "signal:SIGNONE", 0, 6),
        OrderEvent("main", "signal:SIGTERM:x", 0, 7),
        OrderEvent("main/thread:work#0", "future:done", 0, 4),
    ]
    assert arrivals(events, [0, 1]) == [
        Arrival(3, signal.SIGTERM, None, 1),
        Arrival(5, signal.SIGINT, 2, 3),
    ]
