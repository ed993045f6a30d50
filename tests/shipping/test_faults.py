"""Processes are killed at instants that nobody chose; every call that returned arrives all the same, once.

The instants are drawn from a seed, so that a failure can be looked at again: SHIPPING_SEED sets it, SHIPPING_INSTANTS
how many there are in the long run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SEED = int(os.environ.get("SHIPPING_SEED", "20"))
INSTANTS = 20
MANY = int(os.environ.get("SHIPPING_INSTANTS", "200"))
AT_ONCE = 5
"""Instants of one test: a receiver, a home, and agents one after the other."""

PROGRAM = """
import os, sys, time
import otel_agent_replay as replay

@replay.boundary("tool", "step")
def step(who, number):
    return f"{who}/{number} " + os.urandom(400).hex()

who = sys.argv[1]
file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pid = os.fork() if who.endswith("f") else 1
if pid == 0:
    who += "-child"
for number in range(400):
    os.write(file, (step(who, number).partition(" ")[0] + "\\n").encode())
    time.sleep(0.005)
"""


class Bench:
    """A receiver, agents and shippers, each of which may be killed at any time."""

    def __init__(self, home, lib, kind: str) -> None:
        self.home = home
        self.lib = lib
        self.kind = kind
        self.file = home.path.parent / "received"
        self.returned = home.path.parent / "returned"
        self.port = _free_port()
        self.receiver: subprocess.Popen | None = None
        self.agents: list[subprocess.Popen] = []
        home.environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": kind,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
            "OTEL_AGENT_REPLAY_BATCH_BYTES": "100000",
            "OTEL_AGENT_REPLAY_EXIT_WAIT": "0",
        }
        self.program = home.path.parent / "agent.py"
        self.program.write_text(PROGRAM)

    def listen(self, fault: str = "flaky") -> None:
        kind = "grpc" if self.kind == "grpc" else "http"
        line = [sys.executable, HERE / "receiver.py", kind, str(self.port), self.file, fault]
        self.receiver = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self.receiver.stdout is not None
        assert self.receiver.stdout.readline().strip() == str(self.port)

    def agent(self, who: str) -> subprocess.Popen:
        line = [BIN / "opentelemetry-instrument", sys.executable, self.program, who, self.returned]
        process = subprocess.Popen(
            line, env=self.home.env, cwd=self.program.parent, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.agents.append(process)
        return process

    def wait_for_calls(self) -> None:
        """Wait until the agent that was started last makes calls: what is killed before it records is no instant."""
        until, before = time.monotonic() + 60, self._promised()
        while self._promised() == before:
            assert time.monotonic() < until
            time.sleep(0.02)

    def _promised(self) -> int:
        return self.returned.stat().st_size if self.returned.exists() else 0

    def shippers(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"shipping import worker" in line and json.dumps(str(self.home.path)).encode() in line:
                    found.append(int(entry.name))
        return found

    def kill(self, what: str) -> None:
        if what == "receiver" and self.receiver is not None:
            self.receiver.kill()
            self.receiver.wait()
            assert self.receiver.stdout is not None
            self.receiver.stdout.close()
            self.receiver = None
        elif what == "shipper":
            for pid in self.shippers():
                _kill(pid)
        elif what == "agent":
            for process in self.agents:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        for what in ("agent", "shipper", "receiver"):
            self.kill(what)
        for process in self.agents:
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def survive(bench: Bench, draw: random.Random, instants: int) -> None:
    for number in range(instants):
        if bench.receiver is None:
            bench.listen()
        if all(process.poll() is not None for process in bench.agents):
            bench.agent(f"{number}{'f' if draw.random() < 0.5 else ''}")
            bench.wait_for_calls()
        time.sleep(draw.random() * 1.5)
        bench.kill(draw.choice(("agent", "shipper", "receiver", "agent")))
    bench.kill("agent")
    bench.kill("shipper")
    bench.kill("receiver")
    bench.listen("")
    said = bench.home.command("ship", "--wait", "60")
    assert (said["waiting"], said["refused"]) == (0, 0), said


def judge(bench: Bench) -> None:
    from otel_agent_replay.recording.assemble import assemble
    from otel_agent_replay.recording.frames import decode

    spans = bench.lib.read_file(str(bench.file))
    recordings = assemble(decode(span.SerializeToString()) for span in spans)
    found = [
        str(each.outcome).partition(" ")[0]
        for recording in recordings.values()
        for each in recording.crossings
        if each.outcome is not None
    ]
    promised = bench.returned.read_text().splitlines()
    assert len(promised) > 50, "the test itself saw nothing"
    assert not set(promised) - set(found), "a call that returned is not in the store"
    assert len(found) == len(set(found)), "a call is there twice"
    assert not bench.home.files()
    for recording in recordings.values():
        lacking = [text for text in recording.missing if "is not there" in text or "damaged" in text]
        assert not lacking


def _run(home, lib, kind: str, seed: int, instants: int) -> None:
    bench = Bench(home, lib, kind)
    try:
        survive(bench, random.Random(seed), instants)
        judge(bench)
    finally:
        bench.close()


@pytest.mark.parametrize("part", range(INSTANTS // AT_ONCE))
def test_killed_at_instants_that_nobody_chose(home, lib, part: int) -> None:
    _run(home, lib, ("grpc", "http/protobuf")[part % 2], SEED + part, AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(MANY // AT_ONCE))
def test_killed_at_many_instants(home, lib, part: int) -> None:
    _run(home, lib, ("grpc", "http/protobuf")[part % 2], 1000 * SEED + part, AT_ONCE)
