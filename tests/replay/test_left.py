"""Calls that the recorded program did not wait for: cancelled, or still open when the process ended."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN = Path(sys.executable).parent

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


GOES_ON = """
import threading, time
import otel_agent_replay as oar

@oar.boundary("tool", "slow")
def slow(number):
    time.sleep(0.3)
    return number * 2

@oar.boundary("tool", "counts")
def counts():
    for number in range(3):
        time.sleep(0.1)
        yield number

found = []
with oar.run("one"):
    threads = [
        threading.Thread(target=lambda: found.append([slow(21), slow(1)])),
        threading.Thread(target=lambda: found.append(list(counts()))),
    ]
    for thread in threads:
        thread.start()
for thread in threads:
    thread.join()
print(sorted(found))
"""


def process_of(bench) -> str:
    (found,) = (run["run_id"] for run in bench.runs() if run["entry"] == "process" and not run["replay_of"])
    return found


def test_a_call_that_outlives_the_block_of_its_run_is_kept(bench) -> None:
    out = bench.record(GOES_ON)
    assert out == "[[0, 1, 2], [42, 2]]\n"
    replayed = bench.replay(run=process_of(bench))
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert replayed.divergences == []
    assert "Traceback" not in replayed.err


def test_a_thread_that_is_left_is_left_in_silence(bench) -> None:
    out = bench.record(
        "import threading, time\nimport otel_agent_replay as oar\n"
        "@oar.boundary('tool', 'slow')\ndef slow():\n    time.sleep(60)\n"
        "threading.Thread(target=slow, daemon=True).start()\ntime.sleep(0.2)\nprint('end')\n"
    )
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert "Traceback" not in replayed.err


MANY = """
import asyncio, os, random, signal, time
async def one():
    return time.time(), random.getrandbits(8)
async def main():
    for _ in range(50):
        await asyncio.gather(*(one() for _ in range(100)))
asyncio.run(main())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_readings_of_many_tasks_are_written_too(bench) -> None:
    """Each call site of each task has its own: together they are as many as those of one."""
    bench.record(MANY, code=-9)
    done = bench.run(BIN / "agent-replay", "show", "latest", "--json")
    assert sum(lane["readings"] for lane in json.loads(done.stdout)["lanes"].values()) > 5_000


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
    here = ("--free", "environment")
    assert model_bench.replay(options=here).code == 0
    model_bench.write(KILLED.replace("question", "other"))
    replayed = model_bench.replay(options=here)
    assert replayed.code == 125
    assert "host" in replayed.err
    assert "models.invalid" in replayed.err
