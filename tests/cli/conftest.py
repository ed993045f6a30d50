"""The command as a user runs it: a process, a home, two streams and an exit code."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import Engine

SCRIPT = Path(__file__).parents[1] / "store" / "recorder_process.py"
COMMAND = "import sys; sys.argv[0] = 'agent-replay'; from otel_agent_replay.cli import main; main()"
WITHOUT_ENGINE = "import sys; sys.modules['chdb'] = None; sys.modules['clickhouse_connect'] = None\n"
WITHOUT_RIGHTS = """
import ctypes, os, sys
for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; PR_CAPBSET_DROP takes effect when a program is started
    ctypes.CDLL(None).prctl(24, right, 0, 0, 0)
"""


@dataclass
class Home:
    """A home of its own."""

    path: Path
    empty_store: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def dsn(self) -> str:
        return f"chdb://{self.path / 'store'}"

    def recorder(self):
        spec = importlib.util.spec_from_file_location("recorder_process", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Recorder(self.path)

    def record(self, name: str = "agent.py", crossings: int = 2, **over):
        """One run in a file of its own, written and closed."""
        recorder = self.recorder()
        run = recorder.start(name, **over)
        for ordinal in range(crossings):
            run.model(ordinal)
        run.end()
        recorder.close()
        return run

    def prepare(self) -> None:
        """Have an empty store: to copy it is faster than to make one."""
        if not (self.path / "store").exists():
            self.path.mkdir(exist_ok=True)
            shutil.copytree(self.empty_store, self.path / "store", symlinks=True)

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "COV_"))}
        return {**kept, "OTEL_AGENT_REPLAY_HOME": str(self.path), "TZ": "UTC", **self.environment}

    def command(
        self, *arguments: str, engine: bool = True, plain_user: bool = False, **options
    ) -> subprocess.CompletedProcess:
        """Run `agent-replay`, perhaps where no engine is installed, or without root's right to write anywhere."""
        code = COMMAND if engine else WITHOUT_ENGINE + COMMAND
        if plain_user:
            code = f"{WITHOUT_RIGHTS}os.execv(sys.executable, [sys.executable, '-c', {code!r}, *sys.argv[1:]])"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self.env(), capture_output=True, text=True, timeout=120, **options,
        )  # fmt: skip

    def json(self, *arguments: str, **options):
        """What a command prints with `--json`."""
        done = self.command(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "store"
    with Engine(f"chdb://{path}") as engine:
        schema.require(engine)
    return path


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Home:
    return Home(tmp_path / "home", empty_store)
