"""Recorded clients: they answer from the recording even where no context says which run this is."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import anthropic
import openai
import pytest

from otel_agent_replay.boundary import lanes
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.instrument import clients

SAID: Any = [{"role": "user", "content": "hello"}]


def without_context(function: Any) -> Any:
    """Run where every context variable is lost."""
    return contextvars.Context().run(function)


def in_a_thread(function: Any) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join(20)
    return result[0]


@pytest.mark.parametrize("lose", [without_context, in_a_thread])
def test_openai_without_context(server: Any, tape: Any, lose: Any) -> None:
    with tape.record(), openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
        live = client.chat.completions.create(model="m", messages=SAID)
        chunks = list(client.chat.completions.create(model="m", messages=SAID, stream=True))
    with tape.replay() as session:
        recorded = clients.openai_client(session.root)
        assert isinstance(recorded, openai.OpenAI)

        def program() -> Any:
            assert lanes.current() is None
            other = recorded.with_options(timeout=3)
            return [
                recorded.chat.completions.create(model="m", messages=SAID),
                list(other.chat.completions.create(model="m", messages=SAID, stream=True)),
            ]

        assert lose(program) == [live, chunks]
    assert session.waiting == []
    recorded.close()


async def test_async_openai_without_context(server: Any, tape: Any) -> None:
    with tape.record():
        async with openai.AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
            live = await client.chat.completions.create(model="m", messages=SAID)
    with tape.replay() as session:
        async with clients.async_openai_client(session.root) as recorded:
            task = asyncio.create_task(
                recorded.chat.completions.create(model="m", messages=SAID), context=contextvars.Context()
            )
            assert await task == live


def test_anthropic_without_context(server: Any, tape: Any) -> None:
    with tape.record(), anthropic.Anthropic(api_key="k", base_url=server.url) as client:
        live = client.messages.create(model="c", max_tokens=5, messages=SAID)
    with tape.replay() as session, clients.anthropic_client(session.root) as recorded:
        assert without_context(lambda: recorded.messages.create(model="c", max_tokens=5, messages=SAID)) == live


async def test_async_anthropic_without_context(server: Any, tape: Any) -> None:
    with tape.record():
        async with anthropic.AsyncAnthropic(api_key="k", base_url=server.url) as client:
            live = await client.messages.create(model="c", max_tokens=5, messages=SAID)
    with tape.replay() as session:
        async with clients.async_anthropic_client(session.root) as recorded:
            assert await recorded.messages.create(model="c", max_tokens=5, messages=SAID) == live


def test_what_was_not_recorded_does_not_go_live(server: Any, tape: Any) -> None:
    with tape.replay() as session, clients.openai_client(session.root, base_url=f"{server.url}/v1") as recorded:
        before = len(server.requests)
        with pytest.raises(DivergenceError):
            without_context(lambda: recorded.chat.completions.create(model="m", messages=SAID))
        assert len(server.requests) == before


def test_retries_are_one_crossing(server: Any, tape: Any) -> None:
    said: Any = [{"role": "user", "content": "flaky client"}]
    with tape.record(), openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
        live = client.chat.completions.create(model="m", messages=said)
    with tape.replay() as session, clients.openai_client(session.root) as recorded:
        assert without_context(lambda: recorded.chat.completions.create(model="m", messages=said)) == live
        assert [len(crossing.exchanges) for crossing in session.crossings] == [3]


def test_a_lane_of_the_same_run_is_kept(server: Any, tape: Any) -> None:
    """Code that has its context is where it is: only code without one is put into the given lane."""
    with tape.record() as session, openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
        inner = session.root.spawn("task", "worker")
        token = lanes.LANE.set(inner)
        live = client.chat.completions.create(model="m", messages=SAID)
        lanes.LANE.reset(token)
    with tape.replay() as session, clients.openai_client(session.root) as recorded:
        token = lanes.LANE.set(session.root.spawn("task", "worker"))
        try:
            assert recorded.chat.completions.create(model="m", messages=SAID) == live
        finally:
            lanes.LANE.reset(token)


@pytest.mark.usefixtures("unpatched")
def test_it_needs_no_patch(server: Any, tape: Any) -> None:
    with tape.record() as session, clients.openai_client(session.root, base_url=f"{server.url}/v1") as client:
        live = without_context(lambda: client.chat.completions.create(model="m", messages=SAID))
    assert [record.position.key for record in session.records] == ["model:openai.chat"]
    with tape.replay() as session, clients.openai_client(session.root) as recorded:
        assert without_context(lambda: recorded.chat.completions.create(model="m", messages=SAID)) == live
