"""What lanes are called, and that nothing leaks from one to another."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import contextvars
import functools
import multiprocessing
import queue
import sys
import threading
from multiprocessing.pool import ThreadPool
from typing import Any

import anyio
import anyio.to_thread
import pytest

from otel_agent_replay.boundary import lanes
from tests.concurrency.conftest import inside, record
from tests.concurrency.tiny import Recorder, atool, tool


def here() -> str:
    lane = lanes.current()
    return "none" if lane is None else lane.path.replace(".<locals>", "").rpartition("test_")[2]


def path() -> str:
    lane = lanes.current()
    return "none" if lane is None else lane.path


async def apath() -> str:
    return path()


def tail(name: str) -> str:
    return name.rpartition("/")[2].replace("test_", "").rpartition(".<locals>.")[2]


def spawned(program: Any) -> list[str]:
    value, _ = record(program)
    return [name.partition("/")[2] for name in value]


def test_tasks_are_named_after_their_coroutine_whoever_wraps_it() -> None:
    async def main() -> list[str]:
        found = list(await asyncio.gather(apath(), apath()))
        found.append(await asyncio.ensure_future(apath()))
        found.append(await asyncio.wait_for(apath(), 5))
        found.append(await asyncio.shield(apath()))
        found.extend([await done for done in asyncio.as_completed([apath(), apath()])])
        async with asyncio.TaskGroup() as group:
            task = group.create_task(apath())
        found.append(task.result())
        done, _ = await asyncio.wait([asyncio.create_task(apath())])
        found.extend(task.result() for task in done)
        return found

    names = spawned(lambda: asyncio.run(main()))
    assert [name.rpartition("/")[2] for name in names] == [f"task:apath#{number}" for number in range(9)]


def test_an_awaitable_is_named_after_its_class() -> None:
    class Answer:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return path()

    async def main() -> list[str]:
        return [await asyncio.ensure_future(Answer())]

    assert tail(spawned(lambda: asyncio.run(main()))[0]).endswith("Answer#0")


def test_pool_items_belong_to_who_submits_and_workers_count_for_nothing() -> None:
    def item() -> str:
        return path()

    def main() -> list[str]:
        with cf.ThreadPoolExecutor(2) as pool:
            found = [pool.submit(item).result(), pool.submit(functools.partial(item)).result()]
            found.extend(pool.map(lambda _: path(), range(2)))
        thread: list[str] = []
        started = threading.Thread(target=lambda: thread.append(path()))
        started.start()
        started.join()
        return [*found, *thread]

    names = [name.rpartition(".")[2] for name in spawned(main)]
    assert names == ["item#0", "item#1", "<lambda>#0", "<lambda>#1", "<lambda>#0"]


def test_to_thread_and_executors_under_a_loop() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        return [
            await asyncio.to_thread(path),
            await loop.run_in_executor(None, path),
            await anyio.to_thread.run_sync(path),
        ]

    names = spawned(lambda: asyncio.run(main()))
    assert [name.rpartition("/")[2] for name in names] == ["pool:path#0", "pool:path#1", "pool:path#2"]


def test_threads_are_named_after_their_target_or_class() -> None:
    found: list[str] = []

    def work() -> None:
        found.append(path())

    class Own(threading.Thread):
        def run(self) -> None:
            found.append(path())

    def main() -> list[str]:
        for thread in (threading.Thread(target=work), Own(), Own(), threading.Timer(0, work)):
            thread.start()
            thread.join()
        return found

    names = [name.rpartition("test_")[2].rpartition("<locals>.")[2] for name in spawned(main)]
    assert names == ["work#0", "Own.run#0", "Own.run#1", "work#1"]


def test_items_of_a_pool_of_threads_are_lanes() -> None:
    def main() -> list[str]:
        with ThreadPool(2) as pool:
            return [*pool.map(lambda _: path(), range(3)), *pool.imap(lambda _: path(), range(2)), pool.apply(path)]

    names = spawned(main)
    assert len(set(names)) == 6
    assert [name.partition(":")[0] for name in names] == ["pool"] * 6


def test_a_task_group_of_anyio_names_what_it_starts() -> None:
    async def main() -> list[str]:
        found: list[str] = []

        async def member() -> None:
            found.append(path())

        async with anyio.create_task_group() as group:
            group.start_soon(member)
            group.start_soon(member)
        return found

    names = spawned(lambda: anyio.run(main))
    assert [name.rpartition(".")[2] for name in names] == ["member#0", "member#1"]


def test_spawning_in_between_shifts_only_lanes_of_the_same_name() -> None:
    async def worker() -> str:
        return path()

    async def log() -> None:
        """What somebody added."""

    async def main(*, logging: bool) -> list[str]:
        if logging:
            asyncio.create_task(log())  # noqa: RUF006 (as programs do)
        return list(await asyncio.gather(worker(), worker()))

    plain = spawned(lambda: asyncio.run(main(logging=False)))
    assert spawned(lambda: asyncio.run(main(logging=True))) == plain


def test_a_context_given_explicitly_leaks_no_lane() -> None:
    shared = contextvars.copy_context()

    async def worker(number: int) -> list[str]:
        found = [path()]
        for _ in range(3):
            await asyncio.sleep(0)
            found.append(path())
        return found

    async def main() -> list[list[str]]:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(worker(number), context=shared) for number in range(3)]
        found = list(await asyncio.gather(*tasks))
        return [*found, [path()]]

    def program() -> list[list[str]]:
        with asyncio.Runner() as runner:
            return [*runner.run(main()), *runner.run(main()), [path()]]

    value, _ = record(program)
    assert all(len(set(names)) == 1 for names in value)
    assert len({names[0] for names in value}) == 9
    assert value[-1] == ["main"]


def test_changes_of_a_shared_context_stay_visible_to_all() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    shared = contextvars.copy_context()

    async def add() -> int:
        variable.set(variable.get() + 1)
        await asyncio.sleep(0)
        return variable.get()

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        return [await loop.create_task(add(), context=shared) for _ in range(3)]

    value, _ = record(lambda: asyncio.run(main()))
    assert value == [1, 2, 3]


def test_callbacks_of_concurrent_futures_are_lanes_of_who_added_them() -> None:
    def main() -> list[str]:
        found: list[str] = []
        done = threading.Event()
        with cf.ThreadPoolExecutor(1) as pool:
            future = pool.submit(done.wait)
            future.add_done_callback(lambda _: found.append(path()))
            done.set()
        future.add_done_callback(lambda _: found.append(path()))
        return found

    names = spawned(main)
    assert [name.rpartition(".")[2] for name in names] == ["<lambda>#0", "<lambda>#1"]
    assert all(name.startswith("callback:") for name in names)


def test_code_beneath_a_wire_crossing_spawns_beneath_and_is_not_ordered() -> None:
    seen: list[Any] = []

    async def inner() -> None:
        lane = lanes.current()
        assert lane is not None
        seen.append(lane.beneath)
        await asyncio.sleep(0.001)
        seen.append(await asyncio.to_thread(lambda: getattr(lanes.current(), "beneath", "none")))
        thread = threading.Thread(target=lambda: seen.append(getattr(lanes.current(), "beneath", "none")))
        thread.start()
        thread.join()
        queue.Queue().put(1)

    async def main() -> None:
        from otel_agent_replay.boundary.session import Call, cross, run_async
        from otel_agent_replay.recording.values import Kind

        lane = lanes.current()
        assert lane is not None
        crossing = lane.session.open(lane, Call(Kind.MODEL, "wire", wire=True))
        await run_async(cross(crossing), lambda: asyncio.gather(inner(), inner()))
        assert seen == [crossing] * 6

    _, session = record(lambda: asyncio.run(main()))
    assert [event[1] for event in session.events] == ["wire"]


def _child(answer: Any) -> None:
    answer.put(path())


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_child_process_has_a_lane_and_orders_nothing() -> None:
    def main() -> str:
        fork = multiprocessing.get_context("fork")
        answer = fork.SimpleQueue()
        process = fork.Process(target=_child, args=(answer,))
        process.start()
        found = answer.get()
        process.join()
        return str(found)

    value, _ = record(main)
    assert value == "main/process:_child#0"


def test_process_pools_work_and_count_a_name() -> None:
    def main() -> list[int]:
        with cf.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return [pool.submit(abs, -2).result(), *pool.map(abs, [-1, 3])]

    value, session = record(main)
    assert value == [2, 1, 3]
    assert session.root.spawn("process", "abs").number == 1


def test_threads_without_a_lane_take_no_part() -> None:
    import _thread

    session = Recorder()
    found: list[Any] = []
    done = threading.Event()

    def raw() -> None:
        found.extend([lanes.current(), lanes.strand()])
        done.set()

    def main() -> None:
        _thread.start_new_thread(raw, ())
        done.wait()

    lanes.set_process_root(session.root)
    try:
        inside(session, main)
    finally:
        lanes.set_process_root(None)
    assert found == [session.root, None]


def test_without_a_run_nothing_changes() -> None:
    async def main() -> Any:
        tasks = {asyncio.create_task(asyncio.sleep(0)) for _ in range(3)}
        done, _ = await asyncio.wait(tasks)
        timer = asyncio.get_running_loop().call_later(1, print)
        timer.cancel()
        return type(done), type(timer), type(threading.Lock()).__name__

    assert asyncio.run(main()) == (set, asyncio.TimerHandle, "lock")


def test_tools_of_many_lanes_count_by_lane() -> None:
    async def worker() -> None:
        await atool("a")
        await asyncio.to_thread(tool, "a")
        await atool("b")

    async def main() -> None:
        await asyncio.gather(worker(), worker())

    _, session = record(lambda: asyncio.run(main()))
    places = {(c["lane"].rpartition(".")[2], c["key"], c["ordinal"]) for c in session.crossings}
    assert places == {
        (f"worker#{number}{where}", key, 0) for number in (0, 1) for where, key in (("", "a"), ("", "b"))
    } | {("worker#0/pool:tool#0", "a", 0), ("worker#1/pool:tool#0", "a", 0)}
