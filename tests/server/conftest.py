"""A running server: the command as a user starts it, on free ports, in a home of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import clickhouse_connect
import pytest

BIN = Path(sys.executable).parent
RECORDER = Path(__file__).parents[1] / "store" / "recorder_process.py"
LIMIT = 120
"""Seconds that a start, a stop or a command may take on a busy machine."""


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


@dataclass
class Served:
    """One home, and the server that has its store open."""

    home: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = None
    said: dict = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        return env | {"OTEL_AGENT_REPLAY_HOME": str(self.home), "OTEL_AGENT_REPLAY_RAISE": "1"} | self.environment

    def start(self) -> Served:
        self.process = subprocess.Popen(
            [BIN / "agent-replay", "serve", "--json", *self.ports(), *self.options],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.said = json.loads(line)
        return self

    @staticmethod
    def ports() -> list[str]:
        return ["--grpc-port", "0", "--http-port", "0", "--sql-port", "0"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; gives its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            _, self.errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return process.returncode

    @property
    def token(self) -> str:
        return Path(self.said["token_file"]).read_text().strip()

    @property
    def port(self) -> int:
        return urllib.parse.urlsplit(self.said["sql"]).port

    def command(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "agent-replay", *map(str, arguments)], env=self.env, capture_output=True, text=True, timeout=LIMIT
        )

    def client(self, *, writer: bool = False, **options):
        """clickhouse-connect, as anybody uses it."""
        return clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, password=self.token if writer else "", **options
        )

    def sql(self, sql: str, *, writer: bool = False, headers: dict[str, str] | None = None, **parameters) -> Answer:
        query = urllib.parse.urlencode(parameters)
        sent = {"X-ClickHouse-User": "default", "X-ClickHouse-Key": self.token} if writer else {}
        return request(f"{self.said['sql']}/?{query}", sql.encode(), sent | (headers or {}))

    def rows(self, sql: str) -> list[list[str]]:
        answer = self.sql(sql)
        assert answer.status == 200, answer.text
        return [line.split("\t") for line in answer.text.splitlines()]

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT count() FROM otel.{table} FINAL")[0][0])

    def traces(self, body: bytes, kind: str = "application/x-protobuf", **headers: str) -> Answer:
        """Send an export over HTTP."""
        sent = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
        return request(f"{self.said['otlp_http']}/v1/traces", body, sent)

    def health(self) -> dict:
        return json.loads(request(f"{self.said['otlp_http']}/health", None).body)

    def resident(self, *, peak: bool = False) -> int:
        """Bytes of memory that the server takes, or has taken at most."""
        wanted = "VmHWM" if peak else "VmRSS"
        fields = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in fields.splitlines() if line.startswith(wanted))) * 1024


def load(path: Path):
    """A module beside the tests, which are in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def request(url: str, body: bytes | None, headers: dict[str, str] | None = None, method: str | None = None) -> Answer:
    asked = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
            return Answer(answer.status, answer.read(), dict(answer.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), dict(error.headers))


def record(home: Path, name: str = "agent.py", crossings: int = 2):
    """One run in a spool file, by the real writer."""
    recorder = load(RECORDER).Recorder(home)
    run = recorder.start(name)
    for ordinal in range(crossings):
        run.model(ordinal)
    run.end()
    recorder.close()
    return run


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    """A server for the tests of a module that leave it as it is, or add what nobody else looks for."""
    served = Served(tmp_path_factory.mktemp("served") / "home").start()
    yield served
    served.stop()


@pytest.fixture
def serve(tmp_path: Path):
    """Starts servers; what is left of them at the end is stopped."""
    started = []

    def start(*options: str, home: Path | None = None, **environment: str) -> Served:
        served = Served(home or tmp_path / "home", options, environment).start()
        started.append(served)
        return served

    yield start
    for served in started:
        served.stop(signal.SIGKILL)


@pytest.fixture
def recorded():
    """Records a run by the real writer; gives it."""
    return record


@pytest.fixture(scope="session")
def otlp():
    """Exports as the protobuf library encodes them."""
    return load(Path(__file__).with_name("otlp.py"))


@pytest.fixture
def recorder():
    """Makes a recorder for a home: the real writer."""
    return load(RECORDER).Recorder
