"""Recordings of an agent that depends on the order of everything, replayed in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORDINGS, REPLAYS = 4, 10


def program(*arguments: str | Path) -> dict[str, Any]:
    env = os.environ | {"PYTHONHASHSEED": "random", "OTEL_AGENT_REPLAY_RAISE": "1", "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-m", "tests.concurrency.program", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("number", range(RECORDINGS))
def test_every_replay_decides_as_the_recording_did(number: int, tmp_path: Path) -> None:
    tape = tmp_path / "tape.json"
    recorded = program("record", tape)
    assert "error" not in recorded
    assert recorded["lanes"] > 60
    with ThreadPoolExecutor(2) as pool:
        replays = list(pool.map(lambda _: program("replay", tape), range(REPLAYS)))
    for replayed in replays:
        assert replayed.get("error") is None
        assert replayed["decisions"] == recorded["decisions"]
        assert replayed["unasked"] == []
        assert replayed["skipped"] == 0


def test_what_was_only_observed_is_numbered_whole(tmp_path: Path) -> None:
    """Nothing is held back, so decisions between two completions may race; but none lacks its number."""
    tape = tmp_path / "tape.json"
    recorded = program("observe", tape)
    assert "error" not in recorded
    events = json.loads(tape.read_text())["events"]
    numbers = sorted(seq for *_, seq in events if seq >= 0)
    assert numbers == list(range(len(numbers)))
