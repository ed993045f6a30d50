"""Errors that a program saw come back whole: the same types, in every cause."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.conftest import BIN

if TYPE_CHECKING:
    from collections.abc import Iterator

CAUSES = """
import asyncio, os
import FAMILY as http

def show(error):
    while error is not None:
        print(type(error).__module__, type(error).__name__, error)
        error = error.__cause__ or error.__context__

async def main(url):
    async with http.AsyncClient() as client:
        try:
            await client.get(url)
        except http.HTTPError as error:
            show(error)

for url in os.environ["BASE_URL"], "http://127.0.0.1:1":
    asyncio.run(main(url))
    try:
        http.get(url)
    except http.HTTPError as error:
        show(error)
"""


@pytest.fixture
def resetting() -> Iterator[str]:
    """The URL of a server that resets each connection once it was asked something."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.parametrize("family", ["httpx", "httpx2"])
def test_causes_below_the_client_keep_their_types(bench, resetting: str, family: str) -> None:
    """Of what the client is built on, too, which a replay, that connects to nothing, has not imported."""
    bench.base_url = resetting
    out = bench.record(CAUSES.replace("FAMILY", family))
    core = "httpcore2" if family == "httpx2" else "httpcore"
    assert f"{core} ReadError" in out and f"{core} ConnectError" in out
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


ALARM = """
import os, signal
import httpx2, openai

class TooLate(Exception):
    pass

def ring(number, frame):
    raise TooLate(number)

signal.signal(signal.SIGALRM, ring)
model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
for ask in lambda: model.models.list(), lambda: model.embeddings.create(model="m", input="x"):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        ask()
    except TooLate as error:
        print("too late", error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_what_a_signal_handler_raised_into_a_call_keeps_its_type(bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        bench.base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        out = bench.record(ALARM)
    assert out.count("too late") == 2
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


TOOL = """
import requests
from otel_agent_replay import boundary

@boundary("tool", "fetch")
def fetch():
    requests.get("http://127.0.0.1:1")

try:
    fetch()
except requests.RequestException as error:
    while error is not None:
        print(type(error).__module__, type(error).__name__)
        error = error.__cause__ or error.__context__
"""


def test_what_a_tool_raised_keeps_the_types_of_its_causes(bench) -> None:
    """The tool's module imports none of what its client is built on."""
    out = bench.record(TOOL)
    assert "urllib3.exceptions MaxRetryError" in out
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


INTERRUPTED = """
import os, signal, sys
import openai

model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0, timeout=60)

def stop(number, frame):
    sys.exit(7)

def answer():
    try:
        model.embeddings.create(model="m", input="x")
    except KeyboardInterrupt:
        print("interrupted")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
signal.signal(signal.SIGTERM, stop)
print("asks", flush=True)
answer()
print("goes on", flush=True)
answer()
"""


def test_an_interrupt_and_an_exit_in_a_call_are_replayed(bench) -> None:
    """As Ctrl-C and a supervisor give them, from outside."""
    path = bench.write(INTERRUPTED)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        bench.base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = [BIN / "opentelemetry-instrument", sys.executable, path]
        program = subprocess.Popen(line, env=bench.env, cwd=bench.folder, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        seen = []
        for number in (signal.SIGINT, signal.SIGTERM):
            seen.append(program.stdout.readline())
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)  # it has asked, and waits
                program.send_signal(number)
                seen.append(program.stdout.readline())
        program.stdout.close()
        assert program.wait(60) == 7
    assert seen == ["asks\n", "interrupted\n", "goes on\n", ""]
    out = "".join(seen)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert replayed.report["outcome"]["exit_status"] == 7


def test_an_exit_in_a_tool_is_replayed(bench) -> None:
    program = "import sys\nfrom otel_agent_replay import boundary\nboundary('tool', 'stop').call(sys.exit, 5)\n"
    bench.record(program, code=5)
    replayed = bench.replay()
    assert replayed.code == 0, replayed.err
    assert replayed.report["outcome"]["exit_status"] == 5
