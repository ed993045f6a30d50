"""The program that `busy_loop.py` measures: tasks that ask a model, on an event loop that never idles.

    python _busy.py URL TASKS CALLS SHAPE ROUNDS

The loop is kept busy in one of three ways (SHAPE): `bursts` that compute ROUNDS each ten milliseconds, a task that
spins on `sleep0` and computes a tenth of that, a callback that schedules itself by `call_soon` and does; `idle` does
not. What the calls took goes to the file that TIMES names.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import _clocks
import openai
from _contender import text

PROMPT = 2048
"""Characters of a prompt."""


def compute(rounds: int) -> None:
    for _ in range(rounds):
        pass


async def bursts(rounds: int) -> None:
    while True:
        compute(rounds)
        await asyncio.sleep(0.001)


async def sleep0(rounds: int) -> None:
    while True:
        compute(rounds // 10)
        await asyncio.sleep(0)


async def call_soon(rounds: int) -> None:
    loop = asyncio.get_running_loop()
    going_on = True

    def again() -> None:
        compute(rounds // 10)
        if going_on:
            loop.call_soon(again)

    again()
    try:
        await asyncio.Event().wait()
    finally:
        going_on = False


async def idle(_: int) -> None:
    await asyncio.Event().wait()


async def agent(client: openai.AsyncOpenAI, tasks: int, calls: int, shape: str, rounds: int) -> float:
    """Seconds that all calls took, of all tasks at once."""

    async def worker(number: int) -> None:
        for turn in range(calls):
            prompt = text(f"{number} {turn}", PROMPT)
            await client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": prompt}])

    await asyncio.gather(*[worker(number) for number in range(tasks)])  # connections are made, caches warm
    background = asyncio.create_task(globals()[shape](rounds))
    await asyncio.sleep(0)
    began = _clocks.wall()
    await asyncio.gather(*[worker(tasks + number) for number in range(tasks)])
    took = _clocks.wall() - began
    background.cancel()
    return took


async def main() -> float:
    url, tasks, calls, shape, rounds = sys.argv[1:]
    async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:
        return await agent(client, int(tasks), int(calls), shape, int(rounds))


if __name__ == "__main__":
    seconds = asyncio.run(main())
    Path(os.environ["TIMES"]).write_text(repr(seconds), "utf-8")
