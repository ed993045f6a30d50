"""Real spool files, written by the real writer, and real stores."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.spool import Spool

SCRIPT = Path(__file__).with_name("recorder_process.py")
SERVER = Path(__file__).with_name("clickhouse_server.py")


def _module():
    spec = importlib.util.spec_from_file_location("recorder_process", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Home:
    """A home of its own; it is a place, as the settings are."""

    path: Path
    empty_store: Path
    """A store with its schema applied and nothing in it: to copy it is faster than to make one."""

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def dsn(self) -> str:
        return f"chdb://{self.path / 'store'}"

    def recorder(self):
        return _module().Recorder(self.path)

    def process(self, *arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, SCRIPT, self.path, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )

    def prepare(self) -> None:
        """Have an empty store, where there is none yet."""
        store = self.path / "store"
        if not store.exists():
            self.path.mkdir(exist_ok=True)
            shutil.copytree(self.empty_store, store, symlinks=True)

    def engine(self) -> Engine:
        self.prepare()
        engine = Engine(self.dsn)
        schema.require(engine)
        return engine

    def load(self):
        """Load the spool, once."""
        with self.engine() as engine:
            return load_spool(engine, Spool(self.spool))

    def files(self) -> list[Path]:
        return sorted(self.spool.glob("*.spool"))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "store"
    with Engine(f"chdb://{path}") as engine:
        schema.require(engine)
    return path


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Home:
    return Home(tmp_path / "home", empty_store)


@pytest.fixture
def server(tmp_path):
    """DSN of a server that holds nothing."""
    process = subprocess.Popen([sys.executable, SERVER, tmp_path / "server"], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        yield f"clickhouse://127.0.0.1:{process.stdout.readline().strip()}/traces"
        process.kill()
        process.wait()
