"""The real Collector, built from collector/manifest.yaml, with the configurations that are shipped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ROOT / "collector"
LIMIT = 60
"""Seconds that a start or a stop may take on a busy machine."""


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago: the Collector does not say which ones it chose by itself."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass
class Collector:
    """One Collector in a folder of its own; its ports and its queue outlive a restart."""

    binary: Path
    name: str
    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    ports: list[int] = field(default_factory=lambda: free_ports(3))

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> Collector:
        self.folder.mkdir(exist_ok=True)
        named = zip(("OTLP_GRPC_PORT", "OTLP_HTTP_PORT", "HEALTH_PORT"), map(str, self.ports), strict=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, "--config", CONFIGURATIONS / f"{self.name}.yaml"],
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], **dict(named), **self.environment},
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + LIMIT
        while not self.healthy():
            assert self.process.poll() is None, self.log[-2000:]
            assert time.monotonic() < end, self.log[-2000:]
            time.sleep(0.05)
        return self

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@pytest.fixture(scope="session")
def binary() -> Path:
    """The Collector; it is built by scripts/build_collector.sh, which CI runs."""
    found = subprocess.run(
        [ROOT / "scripts" / "build_collector.sh", "--cached"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return Path(found.stdout.strip())


@pytest.fixture
def collectors(binary: Path, tmp_path: Path):
    """Makes a Collector of a configuration; all of them are stopped in the end."""
    made: list[Collector] = []

    def make(name: str, **environment: str) -> Collector:
        made.append(Collector(binary, name, tmp_path / f"{name}{len(made)}", environment))
        return made[-1]

    yield make
    for each in made:
        each.stop()
