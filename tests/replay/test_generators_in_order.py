"""What several generators give at once comes in the recorded order, and so do their ends and errors."""

from __future__ import annotations

import pytest

HEAD = """
import asyncio, concurrent.futures, os, threading, time
from otel_agent_replay import boundary

@boundary("tool", "feed")
async def feed(number):
    for item in range(2):
        await asyncio.sleep(0.01 * (4 - number))
        yield number, item
    if number == 3:
        await asyncio.sleep(0.05)
    if number == 2:
        raise ValueError(number)

@boundary("tool", "feed in a thread")
def feed_in_thread(number):
    for item in range(2):
        time.sleep(0.02 * (4 - number))
        yield number, item

async def use(number):
    try:
        async for item in feed(number):
            print(item)
        print(number, "ended")
    except ValueError as error:
        print("broke", error)
    return number

def use_in_thread(number):
    for item in feed_in_thread(number):
        print(item)
    print(number, "ended")
"""

PROGRAMS = {
    "tasks": """
async def main():
    await asyncio.gather(*map(use, range(4)))
asyncio.run(main())
""",
    "threads": """
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    list(pool.map(use_in_thread, range(3)))
""",
    "the first one wins": """
async def main():
    tasks = [asyncio.create_task(use(number)) for number in range(4)]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    print(sorted(task.result() for task in done), [task.cancelled() for task in tasks])
asyncio.run(main())
""",
    "one is left": """
async def main():
    async for item in feed(0):
        print(item)
        break
    print(await use(1))
asyncio.run(main())
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_generators_give_comes_in_order(bench, name: str) -> None:
    recorded = bench.record(HEAD + PROGRAMS[name])
    for _ in range(2):
        again = bench.replay()
        assert (again.code, again.out) == (0, recorded), again.err
