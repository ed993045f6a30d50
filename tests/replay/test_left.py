"""Calls that the recorded program did not wait for: cancelled, or still open when the process ended."""

from __future__ import annotations

import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CANCELLED = """
import asyncio, os
import openai

async def main():
    async with openai.AsyncOpenAI(max_retries=2) as model:
        async def ask(number):
            messages = [{"role": "user", "content": "the same"}]
            await asyncio.sleep(number * 0.02)
            return await model.chat.completions.create(model="m1", messages=messages)
        await asyncio.gather(*(ask(number) for number in range(4)))

try:
    asyncio.run(main())
except openai.APIConnectionError as error:
    print(type(error).__name__)
"""

LEFT_AT_THE_END = """
import asyncio, threading, time
import openai
from otel_agent_replay import boundary

model = openai.OpenAI(max_retries=8)

def ask():
    print("asking")
    model.chat.completions.create(model="m1", messages=[{"role": "user", "content": "hello"}])

@boundary("tool", "wait")
def wait():
    time.sleep(60)

@boundary("tool", "work")
def work():
    time.sleep(0.5)
    return "worked"

for target in (ask, wait):
    threading.Thread(target=target, daemon=True).start()
print(work())
"""


@pytest.fixture
def hanging_up(bench) -> Iterator[None]:
    """A server that answers no request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        bench.environment["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        yield
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("hanging_up")
@pytest.mark.parametrize("program", [CANCELLED, LEFT_AT_THE_END], ids=["cancelled", "at the end"])
def test_what_was_left_in_its_pause_before_a_retry_is_left_again(bench, program: str) -> None:
    for _ in range(2):
        out = bench.record(program)
        for _ in range(3):
            replayed = bench.replay()
            assert (replayed.code, replayed.out) == (0, out), replayed.err
            assert replayed.divergences == []


KILLED = """
import os, signal, sys
import openai

model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
for number in range(int(sys.argv[1])):
    model.chat.completions.create(model="m1", messages=[{"role": "user", "content": f"question {number}"}])
if len(sys.argv) == 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("calls", [0, 2])
def test_a_run_that_was_killed_has_no_end_to_be_compared(model_bench, calls: int) -> None:
    model_bench.record(KILLED, calls, code=-9)
    replayed = model_bench.replay(sys.executable, "program.py", calls, "to its end")
    assert replayed.code == 125
    assert "its end is not known" in replayed.err
    assert replayed.report["answered"] == calls
    assert model_bench.replay(sys.executable, "program.py", calls, "to its end", options=("--expect", "ok")).code == 0


def test_a_server_that_moved_is_named_beside_what_differs(model_bench) -> None:
    model_bench.record(KILLED, 1, "to its end")
    model_bench.environment["BASE_URL"] = "http://models.invalid/v1"
    model_bench.base_url = "http://models.invalid/v1"
    assert model_bench.replay().code == 0
    model_bench.write(KILLED.replace("question", "other"))
    replayed = model_bench.replay()
    assert replayed.code == 125
    assert "host" in replayed.err
    assert "models.invalid" in replayed.err
