"""Waiting takes no time in a replay: sleeps, timeouts, backoffs and loops that poll, on asyncio's loop and uvloop."""

from __future__ import annotations

import json
import time

import pytest

SYNC = """
import json, random, time
import backoff, tenacity

attempts = []

@tenacity.retry(wait=tenacity.wait_exponential(min=0.2, max=0.4), stop=tenacity.stop_after_attempt(4))
def flaky():
    attempts.append(time.monotonic())
    if len(attempts) < 4:
        raise OSError("not yet")
    return len(attempts)

@backoff.on_exception(backoff.expo, OSError, max_tries=3, factor=0.2)
def later(seen=[]):
    seen.append(time.time())
    if len(seen) < 3:
        raise OSError("not yet")
    return seen

def poll(seconds):
    deadline, turns = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        time.sleep(0.05)
        turns += 1
    return turns

print(json.dumps([flaky(), attempts, later(), poll(0.5)]))
"""

ASYNC = """
import asyncio, json, sys, time
import tenacity
if sys.argv[1] == "uvloop":
    import uvloop
    run = uvloop.run
else:
    run = asyncio.run

attempts = []

@tenacity.retry(wait=tenacity.wait_fixed(0.3), stop=tenacity.stop_after_attempt(3))
async def flaky():
    attempts.append(time.monotonic())
    if len(attempts) < 3:
        raise OSError("not yet")
    return len(attempts)

async def poll(loop, seconds):
    deadline, turns = loop.time() + seconds, 0
    while loop.time() < deadline:
        await asyncio.sleep(0.05)
        turns += 1
    return turns

async def worker(name, pause, done):
    await asyncio.sleep(pause)
    done.append(name)
    return name

async def main():
    seen = [type(asyncio.get_running_loop()).__module__]
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.4)
    except TimeoutError:
        seen.append("timeout")
    try:
        async with asyncio.timeout(0.2):
            await asyncio.sleep(30)
    except TimeoutError:
        seen.append("timeout")
    async with asyncio.timeout(30):
        await asyncio.sleep(0.1)
    seen += [await flaky(), attempts, await poll(asyncio.get_running_loop(), 0.4)]
    done = []
    seen.append(sorted(await asyncio.gather(*(worker(n, p, done) for n, p in (("a", 0.3), ("b", 0.1), ("c", 0.2))))))
    late = asyncio.get_running_loop().call_later(30, seen.append, "never")
    asyncio.get_running_loop().call_later(0.05, seen.append, "called")
    await asyncio.sleep(0.3)
    late.cancel()
    return [*seen, done, late.cancelled()]

print(json.dumps(run(main())))
"""

LONGER = 3600


def longer(program: str) -> str:
    """The program with waits that nobody would sit through, in code that the recording does not know."""
    return program + f"\nbefore = time.monotonic()\n{AGAIN}\nprint(time.monotonic() - before >= {LONGER})\n"


AGAIN = f"""
deadline = time.monotonic() + {LONGER}
while time.monotonic() < deadline:
    time.sleep(7)
deadline = time.time() + {LONGER}
while time.time() < deadline:
    pass
"""


def test_threads_wait_for_nothing(bench):
    live = bench.record(SYNC)
    began = time.monotonic()
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, live), replayed.err
    assert replayed.report["new_readings"] == []
    assert time.monotonic() - began < 60


def test_a_loop_in_new_code_ends_whatever_it_waits_for(bench):
    """Also one that does nothing but look at the clock."""
    bench.record(SYNC)
    replayed = bench.replay_changed(longer(SYNC), options=("--expect", "ok"))
    assert replayed.code == 0, replayed.err
    assert replayed.out.splitlines()[-1] == "True"
    assert len(replayed.report["new_readings"]) >= 4


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_loops_wait_for_nothing(bench, loop):
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    live = bench.record(ASYNC, loop)
    seen = json.loads(live)
    assert seen[0].partition(".")[0] == loop and seen[1:3] == ["timeout", "timeout"] and seen[-2] == ["b", "c", "a"]
    for _ in range(3):
        replayed = bench.replay()
        assert (replayed.code, replayed.out) == (0, live), replayed.err
        assert replayed.report["new_readings"] == []


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_loop_that_waits_longer_than_it_did_waits_for_nothing(bench, loop):
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    bench.record(ASYNC, loop)
    changed = ASYNC.replace(
        "return [*seen",
        f"await asyncio.sleep({LONGER})\n    await poll(asyncio.get_running_loop(), 100)\n    return [*seen",
    )
    assert changed != ASYNC
    bench.write(changed)
    replayed = bench.replay(options=("--expect", "ok"))
    assert replayed.code == 0, replayed.err
