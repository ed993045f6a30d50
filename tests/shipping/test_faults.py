"""Processes are killed and the network is cut at instants that nobody chose; every call that returned arrives, once.

The receiver is one that answers every third request with a fault (tests/shipping/receiver.py), or `agent-replay serve`;
Collectors are killed in tests/collector. The instants are drawn from a seed, so that a failure can be looked at again:
SHIPPING_SEED sets it, SHIPPING_INSTANTS how many there are in the long run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import decode
from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.find import load
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
SEED = int(os.environ.get("SHIPPING_SEED", "20"))
INSTANTS = 20
MANY = int(os.environ.get("SHIPPING_INSTANTS", "200"))
KINDS = ("grpc", "serve", "http/protobuf")
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


class Wire:
    """The network before a receiver. While it is cut, nothing gets through in either direction and nothing is said."""

    def __init__(self) -> None:
        self.target = 0
        self.open = threading.Event()
        self.open.set()
        self.ended = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def restore(self) -> None:
        """Let through what comes; connections of before are gone."""
        self._drop()
        self.open.set()

    def close(self) -> None:
        self.ended = True
        self.server.close()
        self.restore()

    def _drop(self) -> None:
        with self.lock:
            sockets, self.sockets = self.sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self.ended:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with self.lock:
            self.sockets.append(client)
        self.open.wait()
        try:
            other = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            other.settimeout(None)
        except OSError:
            client.close()
            return
        with self.lock:
            self.sockets.append(other)
        threading.Thread(target=self._carry, args=(client, other), daemon=True).start()
        self._carry(other, client)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                self.open.wait()
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Bench:
    """A receiver, the network before it, agents and shippers, each of which may fail at any time."""

    def __init__(self, home, lib, kind: str) -> None:
        self.home = home
        self.lib = lib
        self.kind = kind
        self.file = home.path.parent / "received"
        self.returned = home.path.parent / "returned"
        self.wire = Wire()
        self.receiver: subprocess.Popen | None = None
        self.agents: list[subprocess.Popen] = []
        home.environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.wire.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc" if kind == "serve" else kind,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "10" if kind == "serve" else "2",  # less than a faulty receiver is silent
            "OTEL_AGENT_REPLAY_BATCH_BYTES": "100000",
            "OTEL_AGENT_REPLAY_EXIT_WAIT": "0",
        }
        self.program = home.path.parent / "agent.py"
        self.program.write_text(PROGRAM)

    def listen(self, fault: str = "flaky") -> None:
        if self.kind == "serve":
            line = [BIN / "agent-replay", "serve", "--json", "--home", self.store.parent]
            line += ["--grpc-port", "0", "--http-port", "0", "--sql-port", "0"]
        else:
            kind = "grpc" if self.kind == "grpc" else "http"
            line = [sys.executable, HERE / "receiver.py", kind, "0", self.file, fault]
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        self.receiver = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=env)
        assert self.receiver.stdout is not None
        said = self.receiver.stdout.readline()
        port = json.loads(said)["otlp_grpc"].rpartition(":")[2] if self.kind == "serve" else said
        self.wire.target = int(port)

    @property
    def store(self) -> Path:
        """Where what has arrived is read from in the end."""
        return self.home.path.parent / "elsewhere" / "store"

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
        if what == "network":
            self.wire.open.clear()
        elif what == "receiver" and self.receiver is not None:
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

    @property
    def dsn(self) -> str:
        return f"chdb://{self.store}"

    @property
    def spool(self) -> Path:
        return self.store.parent / "spool"

    def _elsewhere(self, *words: object) -> subprocess.CompletedProcess[str]:
        """A command where nothing was recorded."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        env |= {"OTEL_AGENT_REPLAY_HOME": str(self.store.parent), "OTEL_AGENT_REPLAY_RAISE": "1"}
        line = [str(word) for word in (BIN / "agent-replay", *words)]
        return subprocess.run(
            line, env=env, cwd=self.program.parent, capture_output=True, text=True, timeout=120, check=False
        )

    def elsewhere(self, *words: object) -> list[dict]:
        done = self._elsewhere(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def replay(self, run_id: str, promised: set[str]) -> None:
        """Every call that had returned is answered; only then the recording ends."""
        again = self.program.with_name(f"again-{run_id}")
        who = min(promised or {"0/"}, key=len).partition("/")[0].removesuffix("-child")
        done = self._elsewhere("replay", run_id, "--", sys.executable, self.program, who, again)
        assert done.returncode in (0, 125), (done.returncode, done.stdout, done.stderr)
        answered = set(again.read_text().splitlines()) if again.exists() else set()
        assert not promised - answered, (sorted(promised - answered)[:5], done.stderr)

    def close(self) -> None:
        for what in ("agent", "shipper", "receiver"):
            self.kill(what)
        for process in self.agents:
            process.wait()
        self.wire.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def survive(bench: Bench, draw: random.Random, instants: int) -> None:
    for number in range(instants):
        if bench.receiver is None:
            bench.listen()
        if not bench.wire.open.is_set():
            bench.wire.restore()
        if all(process.poll() is not None for process in bench.agents):
            bench.agent(f"{number}{'f' if draw.random() < 0.5 else ''}")
            bench.wait_for_calls()
        time.sleep(draw.random() * 1.5)
        bench.kill(draw.choice(("agent", "shipper", "receiver", "network", "agent")))
    bench.kill("agent")
    bench.kill("shipper")
    bench.kill("receiver")
    bench.wire.restore()
    bench.listen("")
    said = bench.home.command("ship", "--wait", "80")
    assert (said["waiting"], said["refused"]) == (0, 0), said
    bench.kill("receiver")


def judge(bench: Bench) -> None:
    if bench.kind != "serve":
        frames = [decode(span.SerializeToString()) for span in bench.lib.read_file(str(bench.file))]
        with Engine(f"chdb://{bench.store}") as engine:
            schema.require(engine)
            engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for each in frames for piece in landing_row(each)))
        assert assemble(frames)
    recordings = {row["run_id"]: load(bench, row["run_id"]) for row in bench.elsewhere("runs", "--all", "--json")}
    by_run = {
        run_id: [str(each.outcome).partition(" ")[0] for each in recording.crossings if each.outcome is not None]
        for run_id, recording in recordings.items()
    }
    found = [each for calls in by_run.values() for each in calls]
    promised = bench.returned.read_text().splitlines()
    assert len(promised) > 50, "the test itself saw nothing"
    assert not set(promised) - set(found), "a call that returned is not in the store"
    assert len(found) == len(set(found)), "a call is there twice"
    assert not bench.home.files()
    for recording in recordings.values():
        lacking = [text for text in recording.missing if "is not there" in text or "damaged" in text]
        assert not lacking
    most = {run_id: set(promised) & set(calls) for run_id, calls in by_run.items()}
    run_id = max(most, key=lambda run_id: len(most[run_id]))
    bench.replay(run_id, most[run_id])


def _run(home, lib, kind: str, seed: int, instants: int) -> None:
    bench = Bench(home, lib, kind)
    try:
        survive(bench, random.Random(seed), instants)
        judge(bench)
    finally:
        bench.close()


@pytest.mark.parametrize("part", range(INSTANTS // AT_ONCE))
def test_killed_at_instants_that_nobody_chose(home, lib, part: int) -> None:
    _run(home, lib, KINDS[part % 3], SEED + part, AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(MANY // AT_ONCE))
def test_killed_at_many_instants(home, lib, part: int) -> None:
    _run(home, lib, KINDS[part % 3], 1000 * SEED + part, AT_ONCE)
