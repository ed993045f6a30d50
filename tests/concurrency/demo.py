"""An agent whose every decision depends on what came back first, or on what it was. Each part is hard to
replay for another reason."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import contextvars
import functools
import queue
import threading
from multiprocessing.pool import ThreadPool
from typing import Any

from tests.concurrency.tiny import atool, sleep, stream, tool


def identical() -> Any:
    """The same request many times at once, and what follows from each answer."""
    seen: list[Any] = []

    async def worker(number: int) -> str:
        found = await atool("search", wire=number % 2 == 0)
        seen.append(("found", number, found))
        page = await atool("fetch")
        seen.append(("fetched", number, page))
        return page

    async def go() -> list[str]:
        return await asyncio.gather(*[worker(number) for number in range(6)])

    return [asyncio.run(go()), seen]


def as_completed() -> Any:
    """What is asked next depends on which came first; some are done before anybody asks."""

    async def go() -> list[Any]:
        seen: list[Any] = []
        for first in asyncio.as_completed([atool("rank") for _ in range(5)]):
            rank = await first
            seen.append([rank, await atool("follow", value="")])
        tasks = [asyncio.create_task(atool("early")) for _ in range(4)]
        await asyncio.gather(*tasks)
        seen.extend([await done for done in asyncio.as_completed(tasks)])
        return seen

    return asyncio.run(go())


def waves() -> Any:
    """FIRST_COMPLETED, losers cancelled; the sets are walked."""

    async def go() -> list[Any]:
        seen: list[Any] = []
        pending = {asyncio.create_task(atool("race"), name=f"racer {number}") for number in range(6)}
        for _ in range(3):
            if not pending:  # where nothing is held back, all may come at once
                break
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            seen.append([(task.get_name(), task.result()) for task in done])
            seen.append([task.get_name() for task in pending])
        for task in pending:
            task.cancel()
        ends = await asyncio.gather(*pending, return_exceptions=True)
        return [*seen, [type(end).__name__ for end in ends]]

    return asyncio.run(go())


def groups() -> Any:
    """A task group in which one fails while the others wait: they are cancelled, one after the other."""

    async def go() -> list[Any]:
        seen: list[Any] = []

        async def member(number: int) -> None:
            try:
                answer = await atool("member")
                seen.append((number, answer))
                if len(seen) == 3:
                    raise ValueError(answer)
                await atool("second")
            except asyncio.CancelledError:
                seen.append(("cancelled", number))
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(7):
                    group.create_task(member(number))
        except* ValueError as errors:
            seen.append([str(error) for error in errors.exceptions])
        return seen

    return asyncio.run(go())


def timeouts() -> Any:
    """Calls that take about as long as they are given; sleeps, shields, timers that are cancelled."""

    async def go() -> list[Any]:
        seen: list[Any] = []

        async def slow(number: int) -> None:
            for _ in range(3):
                try:
                    seen.append((number, await asyncio.wait_for(atool("slow"), 0.005)))
                except TimeoutError:
                    seen.append((number, "late"))

        await asyncio.gather(slow(0), slow(1), slow(2))
        try:
            async with asyncio.timeout(0.005):
                seen.append(await atool("block"))
        except TimeoutError:
            seen.append("late block")

        async def sleeper(number: int) -> None:
            await asyncio.sleep(0.002)
            seen.append(("slept", number))

        await asyncio.gather(sleeper(0), atool("meanwhile"), sleeper(1))
        asyncio.get_running_loop().call_later(0.001, seen.append, "called later")
        asyncio.get_running_loop().call_later(60, seen.append, "never")
        await asyncio.sleep(0.003)
        kept = asyncio.ensure_future(atool("kept"))
        try:
            seen.append(await asyncio.wait_for(asyncio.shield(kept), 0.004))
        except TimeoutError:
            seen.append(("shielded", await kept))
        return seen

    return asyncio.run(go())


def executors() -> Any:
    """Threads under a loop: to_thread, run_in_executor, run_coroutine_threadsafe, call_soon_threadsafe."""

    async def go() -> list[Any]:
        seen: list[Any] = []
        loop = asyncio.get_running_loop()

        def back(number: int) -> str:
            answer = str(tool("threaded"))
            loop.call_soon_threadsafe(seen.append, ("called back", number, answer))
            return str(asyncio.run_coroutine_threadsafe(atool("from thread"), loop).result())

        async def one(number: int) -> None:
            if number % 3 == 0:
                answer = await asyncio.to_thread(tool, "io")
            elif number % 3 == 1:
                answer = await loop.run_in_executor(None, functools.partial(tool, "db"))
            else:
                answer = await asyncio.to_thread(back, number)
            seen.append((number, answer))

        await asyncio.gather(*[one(number) for number in range(9)])
        return seen

    return asyncio.run(go())


def background_loop() -> Any:
    """A loop that runs in a thread for good: the main thread, and others, hand it identical work."""
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    seen: list[Any] = []

    async def work(number: int) -> Any:
        first = await atool("handed over")
        seen.append((number, first))
        return number, first, await atool("follow", value=str(first))

    def hand_over(number: int) -> Any:
        return asyncio.run_coroutine_threadsafe(work(number), loop).result()

    handed = [asyncio.run_coroutine_threadsafe(work(number), loop) for number in range(5)]
    found = [done.result() for done in cf.as_completed(handed)]
    with cf.ThreadPoolExecutor(3) as pool:
        found.append(list(pool.map(hand_over, range(3))))
    loop.call_soon_threadsafe(loop.stop)
    serving.join()
    loop.close()
    return [found, seen]


def pools() -> Any:
    """A pool whose results are taken as they come; `wait`; callbacks; more items than workers."""
    seen: list[Any] = []

    def item(number: int) -> tuple[Any, Any]:
        return number, tool("sql"), tool("sql", wire=True)

    with cf.ThreadPoolExecutor(4) as pool:
        futures = {pool.submit(item, number): number for number in range(8)}
        for future in cf.as_completed(futures):
            seen.append((futures[future], future.result(), tool("pick")))
        futures = {pool.submit(item, number): number for number in range(5)}
        done, pending = cf.wait(futures, return_when=cf.FIRST_COMPLETED)
        seen.append([[futures[f] for f in done], len(pending)])
        done, pending = cf.wait(futures)
        seen.append([futures[f] for f in done])
        seen.append([futures[f] for f in cf.as_completed(list(futures))])
        seen.append(list(pool.map(item, range(5))))
        for number in range(3):
            pool.submit(tool, "late").add_done_callback(lambda f, number=number: seen.append((number, f.result())))
    return seen


def threads() -> Any:
    """Threads and a queue; a lock held over a call; a list that all append to; an event with a timeout."""
    seen: list[Any] = []
    answers: queue.Queue[Any] = queue.Queue()
    lock, ready = threading.Lock(), threading.Event()

    def worker(number: int) -> None:
        answers.put((number, tool("thread")))
        with lock:
            seen.append(("locked", number, tool("guarded", longest=0.003)))
        if number == 2:
            ready.set()
        sleep(0.001)
        answers.put(("slept", number))

    workers = [threading.Thread(target=worker, args=(number,)) for number in range(5)]
    for thread in workers:
        thread.start()
    for _ in range(4):
        seen.append(answers.get())
        seen.append(("event", ready.wait(0.002)))
        try:
            seen.append(answers.get(timeout=0.002))
        except queue.Empty:
            seen.append("empty")
    for thread in workers:
        thread.join(0.001)
        seen.append(("alive", thread.is_alive()))
    for thread in workers:
        thread.join()
    while not answers.empty():
        seen.append(answers.get())
    timer = threading.Timer(0.002, lambda: seen.append(("timer", tool("timed"))))
    timer.start()
    seen.append(tool("main"))
    timer.join()
    return seen


def streams() -> Any:
    """Chunks of several streams, interleaved."""
    seen: list[Any] = []

    async def read(number: int) -> None:
        async for chunk in stream("stream"):
            seen.append((number, chunk))
            if len(seen) % 4 == 0:
                seen.append(await atool("between"))

    async def go() -> None:
        await asyncio.gather(*[read(number) for number in range(5)])

    asyncio.run(go())
    return seen


def thread_pool() -> Any:
    """multiprocessing's pool of threads."""
    seen: list[Any] = []
    with ThreadPool(3) as pool:
        seen.extend(pool.imap_unordered(lambda number: (number, tool("element")), range(7)))
        seen.extend(pool.map(lambda number: (number, tool("mapped")), range(7)))
        results = [pool.apply_async(tool, ("applied",)) for _ in range(4)]
        seen.extend(result.get() for result in results)
    return seen


def contexts() -> Any:
    """Tasks that share a context, one that is given a copy, and a runner that is used again."""
    shared = contextvars.copy_context()

    async def worker(number: int) -> tuple[int, Any]:
        first = await atool("shared")
        return number, first, await atool("shared")

    async def go() -> list[Any]:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(worker(number), context=shared) for number in range(4)]
        tasks.append(loop.create_task(worker(4), context=contextvars.copy_context()))
        order: list[int] = []
        for task in tasks:
            task.add_done_callback(lambda done: order.append(done.result()[0]))
        return [await asyncio.gather(*tasks), order]

    with asyncio.Runner() as runner:
        first = runner.run(go())
        return [first, runner.run(go())]


def anyio_part() -> Any:
    """anyio: task groups, worker threads, deadlines, cancelled scopes."""
    import anyio
    import anyio.from_thread
    import anyio.to_thread

    seen: list[Any] = []

    def blocking(number: int) -> Any:
        answer = tool("worker")
        return answer, anyio.from_thread.run(atool, "asked back")

    async def member(number: int) -> None:
        try:
            seen.append((number, await atool("member")))
            seen.append((number, await anyio.to_thread.run_sync(blocking, number)))
            with anyio.move_on_after(0.004):
                seen.append((number, await atool("hurried")))
            await anyio.sleep(0.001)
        except anyio.get_cancelled_exc_class():
            seen.append(("cancelled", number))
            raise

    async def go() -> None:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(member, number)
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(member, number)
            await atool("meanwhile")
            group.cancel_scope.cancel()

    anyio.run(go)
    return seen


ALL = [
    "identical",
    "as_completed",
    "waves",
    "groups",
    "timeouts",
    "executors",
    "background_loop",
    "pools",
    "threads",
    "streams",
    "thread_pool",
    "contexts",
    "anyio_part",
]
