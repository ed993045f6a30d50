"""Recording: what is held back, for how long, and what is given up."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import os
import queue
import signal
import sys
import threading
from typing import Any

import pytest

from otel_agent_replay.boundary import gate as limits
from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.loops import watch_of
from otel_agent_replay.boundary.order import Gate
from otel_agent_replay.boundary.session import Call, cross, run_async, settle
from otel_agent_replay.recording.values import Kind
from tests.concurrency.conftest import inside, keys, record
from tests.concurrency.tiny import Recorder, atool, pause, tool


def test_a_completion_waits_until_what_the_previous_one_woke_has_settled() -> None:
    """Both calls come back in one pass of the loop; the reaction to the first takes several."""
    seen: list[str] = []

    async def worker(name: str, both: asyncio.Event) -> None:
        await atool(name, longest=0)
        both.set()
        for step in range(5):
            seen.append(f"{name}{step}")
            await asyncio.sleep(0)

    async def main() -> None:
        both = asyncio.Event()
        await asyncio.gather(worker("a", both), worker("b", both))

    record(lambda: asyncio.run(main()))
    assert seen == [*(f"{seen[0][0]}{step}" for step in range(5)), *(f"{seen[5][0]}{step}" for step in range(5))]


def test_calls_that_come_back_in_one_pass_go_on_in_that_pass() -> None:
    """What waits beneath the other calls does not hold the first one back."""
    passes = 0
    seen: list[int] = []

    async def worker(*events: asyncio.Event) -> None:
        lane = lanes.current()
        assert lane is not None
        for event in events:
            crossing = lane.session.open(lane, Call(Kind.MODEL, "call", wire=True))
            settle(await run_async(cross(crossing), event.wait))
            seen.append(passes)

    async def main() -> None:
        go, end = asyncio.Event(), asyncio.Event()
        workers = [asyncio.create_task(worker(go, end)) for _ in range(200)]
        await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        watch = watch_of(loop)
        assert watch is not None
        once = watch._run_once

        def counted() -> None:
            nonlocal passes
            passes += 1
            once()

        loop._run_once = counted  # type: ignore[attr-defined]
        loop.call_soon(go.set, context=watch.context)
        await asyncio.sleep(0.01)
        assert len(seen) == len(workers)
        end.set()
        await asyncio.gather(*workers)

    record(lambda: asyncio.run(main()))
    assert len(seen) == 400
    assert seen[199] - seen[0] <= 2


@pytest.mark.parametrize("spinning", ["sleep(0)", "call_soon"])
def test_a_loop_that_never_idles_is_given_up_after_a_few_passes(spinning: str) -> None:
    """Counted in passes of the loop, not in seconds: all calls are back, so each pass could deliver one."""
    passes = 0
    waited: list[int] = []

    async def spin() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    def call() -> None:
        nonlocal passes
        passes += 1
        asyncio.get_running_loop().call_soon(call)

    async def worker(back: asyncio.Event) -> None:
        await back.wait()
        before = passes
        await atool("call", longest=0)
        waited.append(passes - before)

    async def main() -> None:
        back = asyncio.Event()
        workers = [asyncio.create_task(worker(back)) for _ in range(40)]
        await asyncio.sleep(0)
        spinner = asyncio.create_task(spin()) if spinning == "sleep(0)" else None
        if spinner is None:
            call()
        back.set()
        await asyncio.gather(*workers)
        if spinner is not None:
            spinner.cancel()

    _, session = record(lambda: asyncio.run(main()))
    assert len(waited) == 40
    # The latency of a call is one timer of 0 s; what is beyond it was added by the gate, once for the loop.
    assert max(waited) < limits.MOST_STRIKES * (limits.MOST_PASSES + 40) + 60
    assert sorted(waited)[20] < limits.MOST_STRIKES * (limits.MOST_PASSES + 40) + 60
    assert len(session.notes) == 1
    late = len(session.events)
    assert late >= 40


def test_a_loop_that_was_given_up_delays_nothing_any_more() -> None:
    passes = 0
    waited: list[int] = []

    async def spin() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async def round_of_calls() -> None:
        async def worker() -> None:
            lane = lanes.current()
            assert lane is not None
            turn = lane.session.order.turn(lane, "instant", lane.ordinal("instant"))
            before = passes
            await turn.wait_async()
            waited.append(passes - before)

        await asyncio.gather(*[worker() for _ in range(40)])

    async def main() -> None:
        spinner = asyncio.create_task(spin())
        await asyncio.sleep(0)
        await round_of_calls()
        waited.clear()
        await round_of_calls()
        spinner.cancel()

    _, session = record(lambda: asyncio.run(main()))
    assert waited == [0] * 40
    assert len(session.notes) == 1


def test_a_thread_that_runs_long_is_given_up() -> None:
    """It spins until the other thread's completions are through, so without giving up this would hang."""
    through = threading.Event()

    def hog() -> None:
        tool("hog", longest=0)
        while not through.is_set():
            sum(range(1000))

    def other() -> None:
        for _ in range(20):
            tool("other", longest=0)
        through.set()

    def main() -> None:
        threads = [threading.Thread(target=hog), threading.Thread(target=other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _, session = record(main)
    assert len([key for _, key in keys(session) if key == "other"]) == 20


def test_a_thread_that_blocks_unseen_is_found_out() -> None:
    """It reads from a pipe: nothing tells the gate."""
    reader, writer = os.pipe()

    def blocked() -> None:
        tool("first", longest=0)
        os.read(reader, 1)

    def other() -> None:
        for _ in range(5):
            tool("other", longest=0)
        os.write(writer, b"x")

    def main() -> None:
        threads = [threading.Thread(target=blocked), threading.Thread(target=other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _, session = record(main)
    os.close(reader)
    os.close(writer)
    assert len(keys(session)) == 8
    assert session.notes == []


def test_observing_adds_no_wait_and_numbers_everything() -> None:
    def work() -> None:
        tool("call", longest=0.001)
        queue.Queue().put(1)

    async def main() -> None:
        await asyncio.gather(*[asyncio.to_thread(work) for _ in range(4)], atool("call"), asyncio.sleep(0.001))

    _, session = record(lambda: asyncio.run(main()), strict=False)
    assert sorted(seq for *_, seq in session.events) == list(range(len(session.events)))
    assert session.order.busy == set()


def test_observe_lets_everything_go() -> None:
    session = Recorder()

    def other() -> None:
        tool("other", longest=0)

    def main() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        session.order.observe()
        thread.join()

    inside(session, main)
    assert session.notes == ["completions were not always held back: other runs share the process"]
    assert [key for _, key in keys(session)] == ["lane:begin", "other"]


def test_a_single_lane_is_granted_at_once() -> None:
    numbers: list[int] = []
    gate = Gate(True, lambda *event: numbers.append(event[3]))
    session = Recorder()
    turn = gate.turn(session.root, "call", 0)
    assert gate.alone
    assert turn.seq == 0
    turn.wait()
    assert numbers == [0]


def test_a_call_that_is_cancelled_while_it_is_held_back_has_no_place() -> None:
    async def winner(losers: list[asyncio.Task[None]], all_back: asyncio.Event) -> None:
        await all_back.wait()
        await atool("winner", longest=0)
        for loser in losers:
            loser.cancel()

    async def main() -> list[str]:
        all_back = asyncio.Event()
        losers: list[asyncio.Task[None]] = []

        async def loser() -> None:
            await all_back.wait()
            await atool("loser", longest=0)
            raise AssertionError("it was cancelled in time")

        first = asyncio.create_task(winner(losers, all_back))
        await asyncio.sleep(0)
        losers.extend(asyncio.create_task(loser()) for _ in range(3))
        await asyncio.sleep(0)
        all_back.set()
        ends = await asyncio.gather(first, *losers, return_exceptions=True)
        return [type(end).__name__ for end in ends]

    value, session = record(lambda: asyncio.run(main()))
    assert value == ["NoneType", *["CancelledError"] * 3]
    assert [key for _, key in keys(session) if key in ("winner", "loser")] == ["winner"]


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_an_interrupt_reaches_a_thread_that_waits_for_its_turn() -> None:
    """Main thread only: that is where Python handles signals."""
    session = Recorder()
    release = threading.Event()
    token = lanes.LANE.set(session.root)

    def other() -> None:
        tool("other", longest=0)
        while not release.is_set():
            sum(range(100))

    previous = signal.getsignal(signal.SIGALRM)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    try:
        limits_before = limits.GRACE
        limits.GRACE = 10**12
        thread = threading.Thread(target=other)
        thread.start()
        while not session.crossings:
            real.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(10**9):
                tool("held", longest=0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        limits.GRACE = limits_before
        signal.signal(signal.SIGALRM, previous)
        release.set()
        thread.join()
        session.order.finish()
        session.order.leave(session.order.here(session.root))
        lanes.LANE.reset(token)


def test_a_timer_that_is_cancelled_or_left_is_logged_as_never_fired() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(60, print).cancel()
        loop.call_later(60, print)
        await asyncio.sleep(0.001)

    _, session = record(lambda: asyncio.run(main()))
    timers = {ordinal: seq for _, key, ordinal, seq in session.events if key == "clock:timer"}
    assert timers == {0: -1, 1: -1, 2: 0}


def test_a_call_that_blocks_its_loop_is_not_held_behind_that_loop() -> None:
    async def blocking() -> str:
        await asyncio.sleep(0)
        return str(tool("blocking", longest=0))

    async def main() -> list[Any]:
        return await asyncio.gather(blocking(), atool("other"), blocking(), asyncio.to_thread(tool, "thread"))

    value, _ = record(lambda: asyncio.run(main()))
    assert len(value) == 4


def test_two_runs_in_one_loop_do_not_hold_each_other() -> None:
    """The reaction of one run never ends; the other one's calls go on."""
    first, second = Recorder(), Recorder()

    async def endless() -> None:
        await atool("endless", longest=0)
        while True:
            await asyncio.sleep(0)

    async def calls() -> None:
        await asyncio.gather(*[atool("call", longest=0) for _ in range(20)])

    async def under(session: Recorder, coroutine: Any) -> asyncio.Task[None]:
        lanes.LANE.set(session.root)
        return asyncio.create_task(coroutine)

    async def main() -> None:
        spinner = await asyncio.create_task(under(first, endless()))
        await pause(0.01)
        await (await asyncio.create_task(under(second, calls())))
        spinner.cancel()

    asyncio.run(main())
    assert second.notes == []
    assert len(second.events) == 20


def test_executors_that_are_shut_down_are_waited_for_precisely() -> None:
    done: list[int] = []

    def item(number: int) -> None:
        tool("item")
        done.append(number)

    def main() -> str:
        pool = cf.ThreadPoolExecutor(2)
        for number in range(6):
            pool.submit(item, number)
        pool.shutdown(wait=True, cancel_futures=False)
        return str(tool("after"))

    _, session = record(main)
    assert len(done) == 6
    assert keys(session)[-1][1] == "after"
    assert session.notes == []
