"""Replaying: the recorded order by state, whatever the program has become."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import contextvars
import functools
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.order import FREE, NEVER, ReplayGate
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.instrument import concurrency
from otel_agent_replay.recording.divergence import DivergenceClass
from otel_agent_replay.recording.values import Kind
from tests.concurrency.conftest import inside, record, replay
from tests.concurrency.tiny import Recorder, Replayer, atool, pause, sleep, tool

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def test_waiting_takes_no_time() -> None:
    """An hour of sleeps, timeouts and waits; without virtual time this test would not end."""

    def program(scale: float) -> list[Any]:
        seen: list[Any] = []

        async def main() -> None:
            await asyncio.sleep(0.001 * scale)
            try:
                async with asyncio.timeout(0.001 * scale):
                    await asyncio.Event().wait()
            except TimeoutError:
                seen.append("timeout")
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.001 * scale)
            except TimeoutError:
                seen.append("wait_for")
            loop = asyncio.get_running_loop()
            fired = loop.create_future()
            loop.call_later(0.001 * scale, fired.set_result, "fired")
            seen.append(await fired)

        asyncio.run(main())
        sleep(0.001 * scale)
        seen.append(threading.Event().wait(0.001 * scale))
        try:
            queue.Queue().get(timeout=0.001 * scale)
        except queue.Empty:
            seen.append("empty")
        return seen

    recorded, session = record(lambda: program(1))
    replayed, _ = replay(lambda: program(1_000_000), session)
    assert replayed == recorded == ["timeout", "wait_for", "fired", False, "empty"]


class SlowQueue(queue.Queue[Any]):
    """Takes its time to see whether anything is in it, as on a machine that does other things meanwhile."""

    pause = 0.0

    def _qsize(self) -> int:
        real.sleep(self.pause)
        return super()._qsize()


@pytest.mark.parametrize(("recorded_pause", "replayed_pause"), [(0.0, 0.06), (0.06, 0.0), (0.06, 0.06)])
def test_a_timeout_of_a_thread_has_passed_where_it_had(recorded_pause: float, replayed_pause: float) -> None:
    """Whether it has is seen by the clock before anybody waits: a reading like any other."""

    def program(pause: float) -> list[Any]:
        seen: list[Any] = []
        answers = SlowQueue()
        answers.pause = pause
        worker = threading.Thread(target=lambda: answers.put(tool("call", longest=0.001)))
        worker.start()
        try:
            seen.append(answers.get(timeout=0.05))
        except queue.Empty:
            seen.append("empty")
        seen.append(tool("next"))
        worker.join()
        try:
            seen.append(answers.get(timeout=0.05))
        except queue.Empty:
            seen.append("empty")
        return seen

    recorded, session = record(lambda: program(recorded_pause))
    replayed, replayer = replay(lambda: program(replayed_pause), session)
    assert replayed == recorded
    assert (replayer.order.skipped, replayer.new) == ([], [])


@pytest.mark.parametrize("late", [False, True])
def test_work_between_two_results_takes_of_the_timeout_what_it_took(late: bool) -> None:
    """Replayed, it takes no time at all."""

    def program(pause: float) -> list[Any]:
        seen: list[Any] = []
        with cf.ThreadPoolExecutor(2) as pool:
            try:
                for future in cf.as_completed([pool.submit(tool, "call") for _ in range(3)], timeout=0.2):
                    seen.append(future.result())
                    real.sleep(pause)
            except TimeoutError:
                seen.append("late")
        return seen

    recorded, session = record(lambda: program(0.3 if late else 0.0))
    assert not late or "late" in recorded
    replayed, _ = replay(lambda: program(0.0 if late else 0.3), session)
    assert replayed == recorded


def test_an_unknown_timeout_of_a_thread_passes_at_once() -> None:
    def program(rounds: int) -> int:
        empty = 0
        for _ in range(rounds):
            try:
                queue.Queue().get(timeout=3600)
            except queue.Empty:
                empty += 1
        return empty

    _, session = record(lambda: program(0))
    value, _ = replay(lambda: program(20), session)
    assert value == 20


def test_a_loop_that_counts_down_to_a_deadline_comes_to_its_end() -> None:
    """The clock of the loop is ahead by every sleep that took no time."""

    async def main(*, pauses: int) -> int:
        loop = asyncio.get_running_loop()
        rounds, deadline = 0, loop.time() + 1000
        while loop.time() < deadline and rounds < pauses:
            await asyncio.sleep(300)
            rounds += 1
        return rounds

    _, session = record(lambda: asyncio.run(main(pauses=0)))
    value, _ = replay(lambda: asyncio.run(main(pauses=100)), session)
    assert value == 4


def test_a_recorded_call_that_is_gone_does_not_block_the_others() -> None:
    async def main(numbers: range) -> list[Any]:
        seen: list[Any] = []

        async def one(number: int) -> None:
            seen.append((number, await atool("call")))

        await asyncio.gather(*[one(number) for number in numbers])
        return seen

    recorded, session = record(lambda: asyncio.run(main(range(5))))
    value, replayer = replay(lambda: asyncio.run(main(range(4))), session)
    assert value == [answer for answer in recorded if answer[0] != 4]
    assert len(replayer.order.skipped) <= 1


def test_threads_whose_recorded_neighbour_is_gone_go_on() -> None:
    def program(count: int) -> list[Any]:
        answers: queue.Queue[Any] = queue.Queue()
        threads = [threading.Thread(target=lambda n=n: answers.put((n, tool("call")))) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers.get() for _ in range(count)]

    recorded, session = record(lambda: program(5))
    value, replayer = replay(lambda: program(4), session)
    assert value == [answer for answer in recorded if answer[0] != 4]
    assert replayer.order.skipped


def test_an_added_call_and_an_added_sleep_shift_nothing() -> None:
    async def worker(number: int, *, changed: bool) -> Any:
        if changed and number == 1:
            await asyncio.sleep(100)
        first = await atool("call")
        await asyncio.sleep(0)
        return first, await atool("call")

    async def main(*, changed: bool) -> list[Any]:
        seen: list[Any] = []

        async def one(number: int) -> None:
            seen.append((number, await worker(number, changed=changed)))

        await asyncio.gather(*[one(number) for number in range(4)])
        return seen

    recorded, session = record(lambda: asyncio.run(main(changed=False)))
    value, _ = replay(lambda: asyncio.run(main(changed=True)), session)
    assert value == recorded


def test_a_new_timeout_comes_only_when_nothing_else_can() -> None:
    async def main(*, timeout: float | None) -> list[Any]:
        async def one() -> Any:
            async with asyncio.timeout(timeout):
                return await atool("call")

        found: list[Any] = list(await asyncio.gather(one(), one(), one()))
        if timeout is not None:
            try:
                await asyncio.wait_for(asyncio.Event().wait(), timeout)
            except TimeoutError:
                found.append("late")
        return found

    recorded, session = record(lambda: asyncio.run(main(timeout=None)))
    value, _ = replay(lambda: asyncio.run(main(timeout=1000)), session)
    assert value == [*recorded, "late"]


def test_unknown_timers_fire_by_when_they_are_due() -> None:
    async def nothing() -> None:
        """What was recorded."""

    async def main() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        for delay in (300, 100, 200):
            loop.call_later(delay, seen.append, delay)
        loop.call_later(400, done.set_result, None)
        await done
        return seen

    _, session = record(lambda: asyncio.run(nothing()))
    value, _ = replay(lambda: asyncio.run(main()), session)
    assert value == [100, 200, 300]


def test_what_never_completed_is_parked_and_the_end_comes_all_the_same() -> None:
    async def main() -> str:
        async def lost() -> None:
            await atool("lost", longest=1000)

        task = asyncio.create_task(lost())
        answer = str(await atool("main"))
        assert not task.done()
        return answer

    recorded, session = record(lambda: asyncio.run(main()))
    value, _ = replay(lambda: asyncio.run(main()), session)
    assert value == recorded


def test_the_end_releases_threads_that_are_parked() -> None:
    """Recorded, the call is still under way when the program ends; replayed, it never comes back."""
    reader, writer = os.pipe()
    ended: list[str] = []

    def lost() -> None:
        lane = lanes.current()
        assert lane is not None
        try:
            if lane.session.replaying:
                tool("lost")
            else:
                lane.session.open(lane, Call(Kind.TOOL, "lost"))
                os.read(reader, 1)
            ended.append("returned")
        except BaseException as error:
            ended.append(type(error).__name__)

    def main() -> tuple[str, threading.Thread]:
        thread = threading.Thread(target=lost, daemon=False)
        thread.start()
        return str(tool("main")), thread

    (recorded, thread), session = record(main)
    os.write(writer, b"x")
    thread.join()
    (value, thread), _ = replay(main, session)
    thread.join(60)
    assert not thread.is_alive()
    assert value == recorded
    assert ended == ["returned", "SystemExit"]
    os.close(reader)
    os.close(writer)


def test_no_progress_ends_as_incomplete_with_each_lanes_stack() -> None:
    """The recording ends in the middle of a call, which the program waits for."""

    async def main() -> None:
        async def lost_worker() -> None:
            await atool("lost")

        async def other_worker() -> None:
            await asyncio.Event().wait()

        await asyncio.gather(lost_worker(), other_worker())

    session = Recorder()
    session.crossings.append(
        {
            "key": "lost",
            "ordinal": 0,
            "value": None,
            "chunks": [],
            "lane": (
                "main/task:test_no_progress_ends_as_incomplete_with_each_lanes_stack.<locals>.main#0"
                "/task:test_no_progress_ends_as_incomplete_with_each_lanes_stack.<locals>.main.<locals>.lost_worker#0"
            ),
        }
    )
    replayer = Replayer(session.tape())
    with pytest.raises(DivergenceError) as raised:
        inside(replayer, lambda: asyncio.run(main()))
    divergence = raised.value.divergence
    assert divergence.kind is DivergenceClass.INCOMPLETE
    assert divergence.asked is not None
    assert divergence.asked.key == "lost"
    details = "\n".join(divergence.details)
    assert "lost_worker" in details
    assert "other_worker" in details
    assert replayer.stuck.wait(60)
    assert replayer.divergences == [divergence]


def test_threads_that_cannot_progress_end_too() -> None:
    raised: list[BaseException] = []

    def lost() -> None:
        try:
            tool("lost")
        except DivergenceError as error:
            raised.append(error)

    def main() -> None:
        thread = threading.Thread(target=lost)
        thread.start()
        thread.join()

    session = Recorder()
    session.crossings.append(
        {"key": "lost", "ordinal": 0, "value": None, "chunks": [], "lane": f"main/thread:{lost.__qualname__}#0"}
    )
    replayer = Replayer(session.tape())
    inside(replayer, main)
    assert replayer.stuck.wait(60)
    assert [error.divergence for error in raised] == replayer.divergences  # type: ignore[attr-defined]
    assert any("in main" in line or ".main" in line for line in replayer.divergences[0].details)


def test_a_program_that_only_waits_for_the_outside_is_not_stuck() -> None:
    reader, writer = os.pipe()

    def main() -> bytes:
        return os.read(reader, 1)

    replayer = Replayer(Recorder().tape())
    timer = threading.Timer(0.3, os.write, (writer, b"x"))
    timer.start()
    assert inside(replayer, main) == b"x"
    assert not replayer.stuck.is_set()
    timer.join()
    os.close(reader)
    os.close(writer)


def test_the_order_holds_however_late_a_lane_asks() -> None:
    """The first in the recorded order asks last; nobody overtakes it."""

    def program(delays: dict[int, float]) -> list[int]:
        seen: list[int] = []

        def worker(number: int) -> None:
            real.sleep(delays.get(number, 0))  # as slow as a machine may be
            tool("call", wire=True, longest=0.002)
            seen.append(number)

        threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seen

    recorded, session = record(lambda: program({}))
    late = {recorded[0]: 0.02, recorded[1]: 0.01}
    value, replayer = replay(lambda: program(late), session)
    assert value == recorded or replayer.order.skipped
    slow_beneath, _ = replay(lambda: program({}), session)
    assert slow_beneath == recorded


def test_cancelling_gives_up_the_recorded_place() -> None:
    async def main(*, impatient: bool) -> list[Any]:
        seen: list[Any] = []

        async def worker(number: int) -> None:
            seen.append((number, await atool("call")))

        workers = [asyncio.create_task(worker(number)) for number in range(4)]
        await asyncio.sleep(0)
        if impatient:
            workers[2].cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return seen

    recorded, session = record(lambda: asyncio.run(main(impatient=False)))
    value, _ = replay(lambda: asyncio.run(main(impatient=True)), session)
    assert value == [answer for answer in recorded if answer[0] != 2]


def test_many_replays_share_a_loop_and_do_not_block_each_other() -> None:
    async def agent(number: int) -> list[Any]:
        seen: list[Any] = []

        async def worker(part: int) -> None:
            seen.append((part, await atool("call")))
            await asyncio.sleep(0.001)
            seen.append((part, await atool("call")))

        await asyncio.gather(*[worker(part) for part in range(3)])
        return [number, seen]

    pairs = [record(lambda number=number: asyncio.run(agent(number))) for number in range(5)]

    async def under(session: Any, number: int) -> Any:
        lanes.LANE.set(session.root)
        return await asyncio.create_task(agent(number))

    def strip(session: Recorder) -> dict[str, Any]:
        """The recorded agent was the main task of its loop; here it is a task of the session's first lane."""
        return session.tape()

    async def server() -> list[Any]:
        sessions = [Replayer(strip(recorded)) for _, recorded in pairs]
        return list(await asyncio.gather(*[under(session, number) for number, session in enumerate(sessions)]))

    assert asyncio.run(server()) == [value for value, _ in pairs]


def test_a_lane_of_another_run_that_spins_does_not_block_a_replay() -> None:
    async def main() -> list[Any]:
        return list(await asyncio.gather(*[atool("call") for _ in range(3)]))

    recorded, session = record(lambda: asyncio.run(main()))

    async def server() -> Any:
        async def spin() -> None:
            while True:
                await asyncio.sleep(0)

        async def under() -> Any:
            lanes.LANE.set(replayer.root)
            return await asyncio.create_task(main())

        replayer = Replayer(session.tape())
        spinner = asyncio.create_task(spin())
        value = await asyncio.create_task(under())
        spinner.cancel()
        return value

    assert asyncio.run(server()) == recorded


def test_a_program_that_spins_for_what_is_to_come_gets_it() -> None:
    async def main() -> Any:
        found: list[Any] = []

        async def worker() -> None:
            found.append(await atool("call"))

        task = asyncio.create_task(worker())
        while not found:
            await asyncio.sleep(0)
        await task
        return found

    recorded, session = record(lambda: asyncio.run(main()))
    value, _ = replay(lambda: asyncio.run(main()), session)
    assert value == recorded


def test_places_that_can_never_be_asked_for_are_skipped_at_once() -> None:
    gate = ReplayGate(lambda lane, key, ordinal: ordinal, absent=lambda place: place % 2 == 0)
    root = Recorder().root
    gate.spawned()  # two lanes, so that nothing is granted unseen
    turn = gate.turn(root, "call", 1)
    turn.wait()
    assert turn.seq == 1
    assert gate.skipped == []
    gate.leave(gate.here(root))


def test_negative_places_are_never() -> None:
    gate = ReplayGate(lambda lane, key, ordinal: -1)
    assert gate.place(Recorder().root, "call", 0) is NEVER
    assert ReplayGate(lambda lane, key, ordinal: FREE).place(Recorder().root, "call", 0) is FREE


def test_a_pool_that_is_smaller_now_still_comes_to_its_end() -> None:
    def program(workers: int) -> list[Any]:
        with cf.ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(tool, f"call {number}"): number for number in range(6)}
            return sorted((futures[future], future.result()) for future in cf.as_completed(futures))

    recorded, session = record(lambda: program(6))
    value, _ = replay(lambda: program(2), session)
    assert value == recorded


BREAKPOINT = """
import asyncio, json, sys, threading, time
from otel_agent_replay.boundary import lanes
from otel_agent_replay.instrument import concurrency
from tests.concurrency.tiny import Recorder, Replayer, atool, tool

async def worker(number, seen):
    answer = await atool("call")
    if number == 1:
        breakpoint()
    seen.append((number, answer))

async def main():
    seen = []
    await asyncio.gather(*[worker(number, seen) for number in range(4)], asyncio.to_thread(tool, "thread"))
    return seen

tape = sys.argv[2]
session = Recorder() if sys.argv[1] == "record" else Replayer(json.load(open(tape)))
if sys.argv[1] == "record":
    sys.breakpointhook = lambda: None
concurrency.install()
lanes.set_process_root(session.root)
print("DECIDED", json.dumps(asyncio.run(main())))
session.order.finish()
if sys.argv[1] == "record":
    json.dump(session.tape(), open(tape, "w"))
else:
    print("SKIPPED", session.order.skipped, session.divergences)
"""


def test_a_breakpoint_may_last(tmp_path: Path) -> None:
    """Stopped in pdb for longer than any patience there is; the world stands still, then goes on as recorded."""
    import pexpect

    script = tmp_path / "program.py"
    script.write_text(BREAKPOINT)
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    command = [sys.executable, str(script), "record", str(tmp_path / "tape.json")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True)
    child = pexpect.spawn(
        sys.executable,
        [str(script), "replay", str(tmp_path / "tape.json")],
        cwd=str(ROOT),
        env=env,
        timeout=60,
        encoding="utf-8",
        use_poll=True,
    )
    child.expect_exact("(Pdb)")
    real.sleep(3)
    child.sendline("p number")
    child.expect_exact("1")
    child.sendline("c")
    child.expect(r"DECIDED ([^\r]*)\r\n")
    assert child.match.group(1) in done.stdout
    child.expect_exact("SKIPPED [] []")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_patches_go_in_with_the_first_and_out_with_the_last(unpatch: Callable[[], None]) -> None:
    def patched() -> list[Any]:
        owners = (asyncio.BaseEventLoop, threading.Condition, cf.Future, asyncio, threading)
        names = ("create_task", "wait", "set_result", "wait", "Lock")
        return [vars(owner)[name] for owner, name in zip(owners, names, strict=True)]

    unpatch()
    originals = patched()
    uninstall = concurrency.install()
    first = patched()
    assert all(new is not old for new, old in zip(first, originals, strict=True))
    uninstall_too = concurrency.install()
    assert patched() == first
    uninstall()
    uninstall()
    assert patched() == first
    threading.Lock = others = object()  # type: ignore[misc,assignment]
    uninstall_too()
    assert patched() == [*originals[:4], others]
    threading.Lock = originals[4]  # type: ignore[misc]


async def test_pytest_asyncio_and_its_contexts_are_left_alone() -> None:
    assert lanes.current() is None
    await pause(0)
    assert await asyncio.wait_for(asyncio.sleep(0, "value"), 1) == "value"


def test_timeouts_for_one_moment_fire_together() -> None:
    async def main() -> list[Any]:
        deadline = asyncio.get_running_loop().time() + 0.01
        outer = inner = None
        try:
            async with asyncio.timeout_at(deadline) as outer:
                async with asyncio.timeout_at(deadline) as inner:
                    await asyncio.gather(asyncio.sleep(10), atool("call", longest=0))
        except TimeoutError:
            assert outer is not None
            assert inner is not None
            return [outer.expired(), inner.expired()]
        return []

    recorded, session = record(lambda: asyncio.run(main()))
    assert recorded == [True, True]
    assert replay(lambda: asyncio.run(main()), session)[0] == recorded


def test_a_deadline_that_had_passed_has_passed_in_a_replay() -> None:
    """Whoever compares a deadline with the loop's clock gets the recorded clock, however fast a replay is."""

    async def main() -> list[Any]:
        loop, session = asyncio.get_running_loop(), lanes.LANE.get().session  # type: ignore[union-attr]
        began = loop.time()
        seen: list[Any] = [await atool("plan")]
        if not session.replaying:
            real.sleep(0.05)
        for deadline in (began + 0.04, began + 60):
            try:
                async with asyncio.timeout_at(deadline):
                    seen.append(await atool("act"))
            except TimeoutError:
                seen.append("out of time")
        with anyio.move_on_after(began + 0.04 - anyio.current_time()) as scope:
            seen.append(await atool("look"))
        return [*seen, scope.cancelled_caught, loop.time() - began]

    recorded, session = record(lambda: asyncio.run(main()))
    assert recorded[1] == "out of time"
    assert recorded[2] != "out of time"
    assert recorded[-2]
    assert replay(lambda: asyncio.run(main()), session)[0] == recorded


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks are eager from 3.12 on")
def test_eager_tasks_are_lanes_from_their_first_step() -> None:
    async def worker(number: int, seen: list[Any]) -> None:
        seen.append((number, await atool("first")))
        seen.append((number, await atool("second")))

    async def main() -> list[Any]:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        seen: list[Any] = []
        await asyncio.gather(*[worker(number, seen) for number in range(6)])
        return seen

    recorded, session = record(lambda: asyncio.run(main()))
    assert replay(lambda: asyncio.run(main()), session)[0] == recorded


def test_a_context_that_was_copied_takes_no_work_out_of_its_lane() -> None:
    def work(number: int) -> tuple[int, Any, float]:
        inner = threading.Thread(target=lambda: seen.append((number, tool("inner"))))
        inner.start()
        inner.join()
        return number, tool("same"), asyncio.run(atool_later())

    async def atool_later() -> Any:
        await asyncio.sleep(0.001)
        return await atool("later")

    seen: list[Any] = []

    def main() -> list[Any]:
        seen.clear()
        copied = contextvars.copy_context
        found: list[Any] = []

        def through(run: Any, number: int) -> None:
            found.append(run(work, number))

        with cf.ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(copied().run, work, number) for number in range(4)]
            futures += [pool.submit(functools.partial(copied().run, copied().run, work, n)) for n in range(4, 8)]
            futures += [pool.submit(lambda run, number: run(work, number), copied().run, n) for n in range(8, 12)]
            futures += [pool.submit(lambda n: contextvars.Context().run(work, n), n) for n in range(12, 16)]
            answers = [future.result() for future in futures]
        threads = [threading.Thread(target=copied().run, args=(work, number)) for number in range(3)]
        threads += [threading.Thread(target=through, args=(copied().run, number)) for number in range(3, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers, found, seen]

    recorded, session = record(main)
    lanes_of_same = [crossing["lane"] for crossing in session.crossings if crossing["key"] == "same"]
    assert len(set(lanes_of_same)) == len(lanes_of_same) == 22
    assert sum("work#" in lane for lane in lanes_of_same) == 11
    for _ in range(3):
        assert replay(main, session)[0] == recorded
