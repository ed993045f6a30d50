"""A call that has ended leaves nothing of its recording in memory that only the garbage collector would find."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import asyncio, gc, json, os, sys
from collections import Counter
import httpx2
import openai
from otel_agent_replay import boundary

url = os.environ["BASE_URL"]
client = openai.OpenAI(base_url=url, max_retries=0)
http = httpx2.Client()
asked = {"model": "m", "messages": [{"role": "user", "content": "a question " * 50}]}
calls = client.chat.completions

@boundary("tool", "look")
def look(number):
    return {"number": number}

@boundary("tool", "lines")
def lines():
    yield from "abc"

@boundary("tool", "ask")
def ask():
    return calls.create(**asked).id is not None

def refused():
    try:
        calls.create(**asked, extra_headers={"x-status": "400"})
    except openai.BadRequestError:
        pass

async def concurrently(stream):
    async with openai.AsyncOpenAI(base_url=url, max_retries=0) as client:
        async def one():
            answer = await client.chat.completions.create(**asked, stream=stream)
            return [chunk async for chunk in answer] if stream else answer
        for _ in range(4):
            await asyncio.gather(one(), one())

KINDS = {
    "a call": lambda: calls.create(**asked),
    "a raw call": lambda: calls.with_raw_response.create(**asked).parse(),
    "a refused call": refused,
    "a stream": lambda: list(calls.create(**asked, stream=True)),
    "calls of tasks": lambda: asyncio.run(concurrently(False)),
    "streams of tasks": lambda: asyncio.run(concurrently(True)),
    "a request": lambda: http.get(url),
    "a tool": lambda: look(1),
    "a generator": lambda: list(lines()),
    "a tool that asks": ask,
}
OURS = ("RecordedCrossing", "RecordedExchange", "CrossingRecord", "Attempt", "WireRequest", "Tap")

def count():
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each).__name__ in OURS)

call = KINDS[sys.argv[1]]
call()
gc.collect()
gc.disable()
before = count()
for _ in range(3):
    call()
print(json.dumps(dict(count() - before)))
"""

KINDS = [line.split('"')[1] for line in PROGRAM.splitlines() if line.startswith('    "')]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_of(model_bench, kind: str) -> None:
    """A loop keeps what it ran last: of the eight calls in tasks of each of three loops the last two may stay."""
    found = json.loads(model_bench.record(PROGRAM, kind))
    assert max(found.values(), default=0) <= (6 if kind.endswith("of tasks") else 0), found
