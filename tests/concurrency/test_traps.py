"""What is iterated, handed on or cancelled in an order that a plain Python leaves to chance."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_agent_replay.instrument.concurrency.locks import OrderedLock, OrderedRLock
from otel_agent_replay.instrument.concurrency.ordered import OrderedSet
from tests.concurrency.conftest import inside, record
from tests.concurrency.tiny import Recorder, atool, tool

COUNT = 30
"""So many tasks do not lie in a set by chance as they were spawned."""


async def number(value: int) -> int:
    return value


def test_wait_hands_out_sets_in_the_order_of_spawning() -> None:
    async def main() -> list[list[int]]:
        tasks = {asyncio.create_task(number(value)) for value in range(COUNT)}
        done, pending = await asyncio.wait(tasks)
        assert isinstance(done, set)
        assert done == tasks
        assert pending == set()
        futures = [asyncio.get_running_loop().create_future() for _ in range(COUNT)]
        for value, future in enumerate(futures):
            future.set_result(value)
        plain, _ = await asyncio.wait(futures)
        return [[task.result() for task in done], [future.result() for future in plain]]

    value, _ = record(lambda: asyncio.run(main()))
    # `tasks` is a set comprehension: its tasks were spawned in order, whatever the set does with them
    assert value == [list(range(COUNT)), list(range(COUNT))]


def test_as_completed_spawns_in_the_given_order_and_gives_what_is_done_in_order() -> None:
    async def main() -> list[int]:
        found = [await first for first in asyncio.as_completed([number(value) for value in range(COUNT)])]
        tasks = [asyncio.create_task(number(value)) for value in range(COUNT)]
        await asyncio.gather(*tasks)
        found.extend([await first for first in asyncio.as_completed(tasks)])
        return found

    value, _ = record(lambda: asyncio.run(main()))
    assert value == [*range(COUNT), *range(COUNT)]


def test_as_completed_keeps_its_timeout_and_its_errors() -> None:
    async def main() -> list[str]:
        found = []
        for first in asyncio.as_completed([asyncio.sleep(100), number(1)], timeout=0.01):
            try:
                found.append(str(await first))
            except TimeoutError:
                found.append("late")
        for wrong in (number(1), asyncio.ensure_future(number(1))):
            with pytest.raises(TypeError):
                list(asyncio.as_completed(wrong))  # type: ignore[arg-type, type-var]
            await wrong
        return found

    value, _ = record(lambda: asyncio.run(main()))
    assert value == ["1", "late"]


def test_tasks_of_a_group_and_of_a_loop_are_cancelled_in_the_order_of_spawning() -> None:
    seen: list[int] = []

    async def member(value: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(value)

    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for value in range(COUNT):
                    group.create_task(member(value))
                await asyncio.sleep(0)
                raise ValueError
        for value in range(COUNT):
            asyncio.create_task(member(value))  # noqa: RUF006 (left to the end of the loop)
        await asyncio.sleep(0)

    record(lambda: asyncio.run(main()))
    assert seen == [*range(COUNT), *range(COUNT)]


def test_concurrent_futures_come_in_the_order_in_which_they_were_done() -> None:
    def main() -> list[Any]:
        futures = [cf.Future[int]() for _ in range(COUNT)]
        for value in reversed(range(COUNT)):
            futures[value].set_result(value)
        done, not_done = cf.wait(futures)
        assert isinstance(done, set)
        assert not not_done
        return [[f.result() for f in done], [f.result() for f in cf.as_completed(futures)]]

    value, _ = record(main)
    assert value == [list(reversed(range(COUNT)))] * 2


def test_concurrent_as_completed_keeps_its_timeout_and_forgets_what_it_gave() -> None:
    def main() -> str:
        never: cf.Future[int] = cf.Future()
        done: cf.Future[int] = cf.Future()
        done.set_result(1)
        given = cf.as_completed([never, done, done], timeout=0.01)
        assert next(given) is done
        with pytest.raises(TimeoutError) as raised:
            next(given)
        assert never._waiters == []
        return str(raised.value)

    value, _ = record(main)
    assert value == "1 (of 2) futures unfinished"


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "remove", "pop"]), st.integers(0, 9))))
def test_an_ordered_set_is_a_set_in_the_order_of_putting_in(steps: list[tuple[str, int]]) -> None:
    ordered: OrderedSet[int] = OrderedSet()
    model: list[int] = []
    for step, member in steps:
        if step == "add":
            ordered.add(member)
            if member not in model:
                model.append(member)
        elif step == "discard":
            ordered.discard(member)
            if member in model:
                model.remove(member)
        elif step == "remove" and member in model:
            ordered.remove(member)
            model.remove(member)
        elif step == "pop" and model:
            assert ordered.pop() == model.pop(0)
        assert list(ordered) == model
        assert ordered == set(model)
        assert len(ordered) == len(model)


def test_an_empty_ordered_set_gives_nothing() -> None:
    with pytest.raises(KeyError):
        OrderedSet[int]().pop()
    with pytest.raises(KeyError):
        OrderedSet([1]).remove(2)


def test_a_lock_goes_to_who_has_waited_longest() -> None:
    """Each holder makes a call under the lock, so that the next in line is always there."""
    seen: list[int] = []

    def main() -> list[int]:
        lock = threading.Lock()
        assert isinstance(lock, OrderedLock)
        arrived: list[int] = []

        def worker(value: int) -> None:
            tool("before")
            arrived.append(value)
            with lock:
                tool("under", longest=0.002)
                seen.append(value)

        threads = [threading.Thread(target=worker, args=(value,)) for value in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return arrived

    arrived, _ = record(main)
    assert seen == arrived


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_locks_of_the_program_are_as_plain_ones_are(kind: str) -> None:
    def main() -> None:
        lock = getattr(threading, kind)()
        assert isinstance(lock, OrderedRLock if kind == "RLock" else OrderedLock)
        with pytest.raises(RuntimeError):
            lock.release()
        assert lock.acquire()
        with pytest.raises(RuntimeError):
            raise RuntimeError(repr(lock))
        held: list[bool] = []
        other = threading.Thread(
            target=lambda: held.extend(
                [lock.acquire(blocking=False), lock.acquire(timeout=0.001), lock.acquire(True, 0.001)]
            )
        )
        other.start()
        other.join()
        assert held == [False, False, False]
        lock.release()
        with lock:
            assert kind == "RLock" or lock.locked()
        if kind == "RLock":
            with lock, lock:
                assert lock._is_owned()

        class Holder:
            make = getattr(threading, kind)

        assert Holder().make().acquire()

    record(main)


def test_a_condition_over_a_lock_of_the_program_works() -> None:
    def main() -> list[int]:
        ready = threading.Condition(threading.RLock())
        items: list[int] = []

        def producer() -> None:
            with ready, ready:
                items.append(1)
                ready.notify_all()

        with ready:
            thread = threading.Thread(target=producer)
            thread.start()
            assert ready.wait_for(lambda: items, timeout=60)
        thread.join()
        return items

    assert record(main)[0] == [1]


def test_barriers_semaphores_and_events_work_under_a_run() -> None:
    def main() -> list[int]:
        barrier, slots, seen = threading.Barrier(3), threading.BoundedSemaphore(2), []

        def worker(value: int) -> None:
            barrier.wait()
            with slots:
                seen.append(value)

        threads = [threading.Thread(target=worker, args=(value,)) for value in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not slots.acquire(timeout=0.001) or slots.release() is None
        return sorted(seen)

    assert record(main)[0] == [0, 1, 2]


def test_worker_threads_end_with_their_pool_and_leave_nothing_behind() -> None:
    session = Recorder()

    def main() -> None:
        with cf.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: tool("item"), range(8)))
        asyncio.run(asyncio.wait_for(atool("last"), 5))

    inside(session, main)
    deadline = time.monotonic() + 60
    while session.order.parties and time.monotonic() < deadline:
        time.sleep(0.01)
    assert session.order.parties == {}
    assert session.order.busy == set()
    assert session.order.nested == 0
