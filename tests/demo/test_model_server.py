"""The demo's model server, spoken to by the real SDK."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import openai
import pytest

from otel_agent_replay.demo import model_server

if TYPE_CHECKING:
    from collections.abc import Iterator

QUESTION: Any = [{"role": "user", "content": "Is this one for a refund?"}]
REFUND: Any = {
    "type": "function",
    "function": {
        "name": "issue_refund",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}, "amount": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, model_server.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.kill()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0) as made:
        yield made


def test_says_where_it_listens_on_a_free_port(url: str) -> None:
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/v1")


def test_never_gives_the_same_answer_twice(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model="m", messages=QUESTION).choices[0].message.content for _ in range(6)
    ]
    assert len(set(answers)) == 6


async def test_identical_calls_come_back_in_any_order(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-test", max_retries=0) as client:

        async def ask(number: int) -> int:
            await client.chat.completions.create(model="m", messages=QUESTION)
            return number

        orders = set()
        for _ in range(20):
            orders.add(tuple([await done for done in asyncio.as_completed([ask(number) for number in range(4)])]))
            if len(orders) > 1:
                break
    assert len(orders) > 1


def test_fills_in_a_refund_with_the_comma_that_the_agent_trips_over(client: openai.OpenAI) -> None:
    said: Any = [
        {"role": "user", "content": "Order B-22 arrived broken."},
        {"role": "assistant", "content": 'The shop says {"paid": "9.99"}.'},
    ]
    reply = client.chat.completions.create(model="m", messages=said, tools=[REFUND])
    message: Any = reply.choices[0].message
    call = message.tool_calls[0].function
    assert (call.name, json.loads(call.arguments)) == ("issue_refund", {"order": "B-22", "amount": "9,99"})
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0


def test_streams_word_by_word(client: openai.OpenAI) -> None:
    stream: Any
    with client.chat.completions.create(model="m", messages=QUESTION, stream=True) as stream:
        words = [chunk.choices[0].delta.content for chunk in stream]
    assert len(words) > 5
    assert words[-1] is None
    assert "".join(words[:-1]).startswith("Dear Kim, ")
