"""A chat of 200 calls that sends everything again with each: what is stored grows with what is new."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "growing_chat.py"


def test_a_chat_that_sends_39_megabytes_is_stored_in_400_kilobytes():
    done = subprocess.run([sys.executable, SCRIPT, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["calls"], found["complete"]) == (200, 1)
    assert found["sent"] > 39_000_000
    assert found["read back"] == found["sent"]
    assert max(found["stored"], found["merged"]) <= 400_000
    assert found["shipped"] < 1_000_000
    assert found["spooled"] < 800_000
