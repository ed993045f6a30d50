"""Runs the command as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(sys.executable).parent


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`agent-replay doctor --json ...`; gives what it prints, and checks that the exit code fits."""

    def run(*words: object, code: int | None = None, **variables: str) -> dict[str, Any]:
        line = [BIN / "agent-replay", "doctor", "--json", *map(str, words)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONHASHSEED"))}
        env |= {"OTEL_AGENT_REPLAY_HOME": str(tmp_path / "home"), **variables}
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
        if code is not None:
            assert done.returncode == code, done.stderr
            return {"stderr": done.stderr}
        told = json.loads(done.stdout)
        assert done.returncode == (1 if told["findings"] else 0), done.stderr
        return told

    return run
