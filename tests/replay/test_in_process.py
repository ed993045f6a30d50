"""Replays inside a living process: scoped by context, many at once, beside live code."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import os
import socket
import threading
import time
from datetime import datetime

import httpx2
import pytest

from otel_agent_replay import DivergenceError, replay

AGENT = """
import asyncio, os, time, uuid
import openai

def agent(base_url=None, prompt="hello"):
    model = openai.OpenAI(base_url=base_url or os.environ["BASE_URL"], max_retries=0)
    messages = [{"role": "user", "content": f"{prompt} {uuid.uuid4()} {time.time()}"}]
    return model.chat.completions.create(model="m1", messages=messages).choices[0].message.content

async def async_agent(base_url=None, prompt="hello"):
    async def one(model):
        reply = await model.chat.completions.create(model="m1", messages=[{"role": "user", "content": prompt}])
        await asyncio.sleep(30)
        return reply.choices[0].message.content
    async with openai.AsyncOpenAI(base_url=base_url or os.environ["BASE_URL"], max_retries=0) as model:
        return await asyncio.gather(*(one(model) for _ in range(3)))

if __name__ == "__main__":
    import sys
    if sys.argv[1] == "sync":
        print(agent())
    else:
        async_agent.__globals__["asyncio"] = asyncio
        real_sleep = asyncio.sleep
        asyncio.sleep = lambda seconds: real_sleep(0.01)
        print(asyncio.run(async_agent()))
"""

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def recorded(model_bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_AGENT_REPLAY_HOME", str(model_bench.folder / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.syspath_prepend(str(model_bench.folder))
    name = f"agent_{id(model_bench)}"

    def record(mode: str) -> tuple[str, object]:
        import importlib

        out = model_bench.record(AGENT, mode, name=f"{name}.py").strip()
        return out, importlib.import_module(name)

    return record


def test_a_process_is_left_as_it_was(recorded) -> None:
    out, agent = recorded("sync")
    before = (time.time, os.urandom, socket.socket.connect, threading.Lock, asyncio.BaseEventLoop.time)
    with replay("latest"):
        with replay("latest"):
            assert agent.agent(NOWHERE) == out
        assert time.time is not before[0]
        assert agent.agent(NOWHERE) == out
    assert (time.time, os.urandom, socket.socket.connect, threading.Lock, asyncio.BaseEventLoop.time) == before


def test_a_block_is_answered(recorded) -> None:
    out, module = recorded("sync")
    with replay("latest") as replayed:
        assert module.agent(NOWHERE) == out
    assert replayed.report.exit_code == 0
    assert replayed.report.answered == 1


async def test_an_async_block_is_answered_without_waiting(recorded) -> None:
    out, module = recorded("async")
    async with asyncio.timeout(25):
        async with replay("latest"):
            assert str(await module.async_agent(NOWHERE)) == out


def test_many_at_once_in_threads(recorded) -> None:
    out, module = recorded("sync")
    seen = []

    def one() -> None:
        with replay("latest"):
            seen.append(module.agent(NOWHERE))

    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [out] * 5


async def test_many_at_once_in_one_loop(recorded) -> None:
    out, module = recorded("async")

    async def one() -> str:
        async with replay("latest"):
            return str(await module.async_agent(NOWHERE))

    assert await asyncio.gather(*(one() for _ in range(4))) == [out] * 4


def test_code_outside_of_the_block_is_live(recorded, base_url: str) -> None:
    out, module = recorded("sync")
    with replay("latest"):
        assert module.agent(NOWHERE) == out
    assert httpx2.get(base_url.replace("/v1", "/hits")).status_code == 200
    assert module.agent(base_url) != out


def test_a_changed_prompt_diverges(recorded) -> None:
    _, module = recorded("sync")
    with pytest.raises(DivergenceError, match=r"body\.messages\[0\]\.content"), replay("latest"):
        module.agent(NOWHERE, prompt="goodbye")


def test_a_swallowed_divergence_is_raised_at_the_end(recorded) -> None:
    _, module = recorded("sync")
    with pytest.raises(DivergenceError), replay("latest"):
        try:
            module.agent(NOWHERE, prompt="goodbye")
        except BaseException as error:
            assert type(error) is DivergenceError


def test_a_call_that_went_away_diverges_at_the_end(recorded) -> None:
    recorded("sync")
    with pytest.raises(DivergenceError, match="never asked for"), replay("latest"):
        pass
    with replay("latest", partial=True):
        pass


def test_no_socket_is_opened_in_the_block(recorded, base_url: str) -> None:
    import socket

    recorded("sync")
    host, port = base_url.removeprefix("http://").removesuffix("/v1").split(":")
    with pytest.raises(DivergenceError, match="socket"), replay("latest", partial=True):
        socket.create_connection((host, int(port)), timeout=1)


def test_a_client_without_context_is_answered_by_the_replay_that_made_it(recorded) -> None:
    recorded("sync")
    raised = []

    def without_context(client) -> None:
        try:
            client.chat.completions.create(model="m1", messages=[{"role": "user", "content": "something else"}])
        except BaseException as error:
            raised.append(error)

    with pytest.raises(DivergenceError, match="something else"), replay("latest", partial=True) as replayed:
        client = replayed.openai_client(base_url=NOWHERE, max_retries=0)
        thread = threading.Thread(target=contextvars.Context().run, args=(without_context, client))
        thread.start()
        thread.join()
    assert [type(error) for error in raised] == [DivergenceError]


AROUND = """
import sys, time
import otel_agent_replay as oar

def read(name, count):
    return [(name, time.time()) for _ in range(count)]

if len(sys.argv) == 1:
    for each in read("recorded", 5):
        print(each)
else:
    with oar.run("before"):
        read("in it", 1)
    found = []
    for name, block in (("live", oar.run("live")), ("replayed", oar.replay(sys.argv[1], partial=True))):
        with block:
            for _ in range(5):
                found.append((name, time.time()))
    with oar.run("after"):
        read("in it", 1)
    print(found)
"""


def test_a_recorded_process_that_replays_goes_on_to_be_recorded(bench) -> None:
    """Its runs after the block are runs, and no frame of it takes live readings for the block's."""
    bench.record(AROUND)
    (run,) = bench.runs()
    out = bench.record(AROUND, run["run_id"])
    names = [found["name"] for found in bench.runs()]
    assert sorted(names) == ["after", "before", "live", "program.py", "program.py"]
    began = datetime.fromisoformat(run["started_at"]).timestamp()
    now = ast.literal_eval(out)
    assert [abs(at - began) < run["duration_s"] + 1 for _, at in now[5:]] == [True] * 5
    assert min(at for name, at in now if name == "live") > max(at for name, at in now if name == "replayed")
