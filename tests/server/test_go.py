"""clickhouse-go over http, which the Collector's ClickHouse exporter and Grafana's data source use."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("go")
BUILT = 600
"""Seconds that a first build may take."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    path = tmp_path_factory.mktemp("go") / "client"
    env = os.environ | {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    fetched = subprocess.run(
        [go, "mod", "download"], cwd=PROGRAM, env=env, capture_output=True, text=True, timeout=BUILT
    )
    if fetched.returncode:
        pytest.skip(f"Go's modules cannot be had: {fetched.stderr.strip().splitlines()[-1][:200]}")
    subprocess.run([go, "build", "-o", path, "."], cwd=PROGRAM, env=env, check=True, timeout=BUILT)
    return path


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "gzip"])
def test_clickhouse_go_writes_and_reads(shared, client: Path, compression: str):
    address = shared.said["sql"].removeprefix("http://")
    command = [client, address, shared.token, compression]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_clickhouse_go_cannot_write_without_the_token(shared, client: Path):
    address = shared.said["sql"].removeprefix("http://")
    done = subprocess.run([client, address, "", "lz4"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "insert:" in done.stderr
    assert "READONLY" in done.stderr or "readonly" in done.stderr
