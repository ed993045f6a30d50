"""What most tests of whole programs need: a model server, and a bench to record and replay programs on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
LIMIT = 120
"""Seconds that one command of a test may take, on a busy machine."""


@dataclass
class Replayed:
    """The end of a replaying command."""

    code: int
    out: str
    err: str
    report: dict

    @property
    def divergences(self) -> list[tuple[str, str]]:
        """Class, and the lane where the program was or, where it no longer asks, the recorded one."""
        found = []
        for divergence in self.report.get("divergences", []):
            place = divergence["asked"] or divergence["nearest"]
            found.append((divergence["kind"], place["lane"]))
        return found


@dataclass
class Bench:
    """Records and replays programs, in a folder and a home of their own."""

    folder: Path
    base_url: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONHASHSEED"))}
        env |= {"OTEL_AGENT_REPLAY_HOME": str(self.folder / "home"), "BASE_URL": self.base_url}
        env |= {"OTEL_AGENT_REPLAY_RAISE": "1", "OPENAI_API_KEY": "sk-test", "PYTHONWARNINGS": "default"}
        return env | self.environment

    def write(self, program: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.write_text(program)
        return path

    def run(self, *command: object, **options) -> subprocess.CompletedProcess[str]:
        options = {
            "env": self.env,
            "cwd": self.folder,
            "capture_output": True,
            "text": True,
            "timeout": LIMIT,
        } | options
        return subprocess.run([str(part) for part in command], **options)

    def record(self, program: str, *args: object, name: str = "program.py", code: int = 0) -> str:
        """Record a program; gives its standard output."""
        path = self.write(program, name)
        done = self.run(BIN / "opentelemetry-instrument", sys.executable, path.name, *args)
        assert done.returncode == code, done.stderr
        return done.stdout

    def runs(self) -> list[dict]:
        done = self.run(BIN / "agent-replay", "runs", "--json", "--all")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def replay(self, *command: object, run: str = "latest", options: tuple[str, ...] = (), **rest) -> Replayed:
        """Replay, by default the recorded command; gives how it ended."""
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        rest_of_line = ["--", *command] if command else []
        line = [BIN / "agent-replay", "replay", run, "--report", report, *options, *rest_of_line]
        done = self.run(*line, **rest)
        return Replayed(
            done.returncode, done.stdout, done.stderr, json.loads(report.read_text()) if report.exists() else {}
        )

    def replay_changed(self, program: str, **rest) -> Replayed:
        """Replay a changed program, which stands in the place of the recorded one."""
        path = self.write(program)
        return self.replay(sys.executable, path.name, **rest)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def base_url():
    """Where the model server listens."""
    script = Path(__file__).parent / "echo_server.py"
    server = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server.stdout:
        yield server.stdout.readline().strip()
        server.kill()
        server.wait()


@pytest.fixture
def model_bench(bench: Bench, base_url: str) -> Bench:
    """A bench whose programs find a model server at BASE_URL. Replays are pointed at one that is not there."""
    bench.base_url = base_url
    return bench
