"""Receivers on loopback, homes with recordings, and a shipper between them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.values import CrossingRecord, End, Kind
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.delivery import Patience
from otel_agent_replay.telemetry.shipping.ledger import Ledger
from otel_agent_replay.telemetry.shipping.receivers import connect
from otel_agent_replay.telemetry.shipping.shipper import Shipper

if TYPE_CHECKING:
    from types import ModuleType

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
QUICK = Patience(0.01, 0.05, 0.02)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


RECEIVER = load(HERE / "receiver.py")
RECORDER = load(HERE.parent / "store" / "recorder_process.py")


class Recorder(RECORDER.Recorder):
    """The same, with calls of any key."""

    def start(self, name: str = "agent.py", **over: object) -> Recorded:
        return Recorded(self.writer, name, **over)


class Recorded(RECORDER.Recorded):
    """One run being written."""

    def call(self, key: str, outcome: object, lane: str = "main") -> CrossingRecord:
        """A call of a tool."""
        counts = self.__dict__.setdefault("counts", {})
        number = counts[lane, key] = counts.get((lane, key), -1) + 1
        record = CrossingRecord(
            Position(lane, key, number), Kind.TOOL, 0, 0, time.time_ns(), input={"n": number}, name=key
        )
        self.sink.opened(record, None)
        record.outcome = outcome
        self._end(record, End.RETURNED)
        return record


@pytest.fixture
def lib() -> ModuleType:
    return RECEIVER


@pytest.fixture
def servers():
    """Starts receivers, and stops them in the end."""
    opened: list[Any] = []

    def start(kind: str, **options: Any) -> Any:
        inbox = RECEIVER.Inbox(options.pop("judge", lambda _request, _number: None))
        server = (RECEIVER.GrpcServer if kind == "grpc" else RECEIVER.HttpServer)(inbox, **options)
        opened.append(server)
        return server

    yield start
    for server in opened:
        server.close()


@dataclass
class Home:
    """A home of recordings, and the environment of who ships them."""

    path: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.path)

    def recorder(self) -> Any:
        """Writes runs with the real writer; the spool is their destination."""
        return Recorder(self.path)

    def to(self, server: Any, kind: str, **settings: str) -> Home:
        self.environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": kind}
        self.environ |= {f"OTEL_EXPORTER_OTLP_{name.upper()}": value for name, value in settings.items()}
        return self

    def ship(self, *, batch_bytes: int = 3_500_000, seconds: float = 20.0, rounds: int = 500) -> Shipper:
        """Ship all that there is, within so many seconds."""
        to = destination.read(self.environ)
        assert to is not None
        until = time.monotonic() + seconds
        receiver = connect(to)
        shipper = Shipper(
            self.ledger,
            receiver,
            to.name,
            batch_bytes=batch_bytes,
            stopped=lambda: time.monotonic() > until,
            patience=QUICK,
        )
        try:
            for _ in range(rounds):
                if not shipper.round(lambda _path, _written: True):
                    if not shipper.stuck:
                        break
                    time.sleep(0.02)
        finally:
            receiver.close()
        return shipper

    @property
    def env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONHASHSEED"))}
        env |= {
            "OTEL_AGENT_REPLAY_HOME": str(self.path),
            "OTEL_AGENT_REPLAY_RAISE": "1",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_AGENT_REPLAY_CAPTURE": "none",  # what programs of tests note in files is for the tests
        }
        return env | self.environ

    def run(self, *command: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(part) for part in command],
            **(
                {"env": self.env, "cwd": self.path.parent, "capture_output": True, "text": True, "timeout": 90}
                | options
            ),
        )
        assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-3000:])
        return done

    def record(self, program: str, *args: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Record a program, as a user does."""
        path = self.path.parent / "program.py"
        path.write_text(program)
        return self.run(BIN / "opentelemetry-instrument", sys.executable, path, *args, code=code, **options)

    def command(self, *words: object, code: int = 0) -> Any:
        """Run one of our commands with --json."""
        return json.loads(self.run(BIN / "agent-replay", *words, "--json", code=code).stdout)

    def files(self) -> list[Path]:
        return sorted((self.path / "spool").glob("*.spool"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def eventually(holds: Any, seconds: float = 30.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never held"
        time.sleep(0.05)
