"""What settings name is masked in a recorded program, and what is wrong with them is said in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

BIN = Path(sys.executable).parent

PROGRAM = """
import time
from otel_agent_replay import boundary

@boundary("tool", "find")
def find(name, card):
    user = {"email": name + "@mail.test", "ssn": 1234, "n": 1}
    return {"user": user, "note": f"ticket T-{card} for zorro", "at": time.time()}

found = find("ada", 4711)
print(found["user"]["email"], found["user"]["n"], found["note"])
"""
HOOK = """
import time

def names(text):
    time.time()
    return [word for word in ("zorro", "ada") if word in text]
"""


def test_settings_of_a_recorded_program(model_bench) -> None:
    model_bench.write(HOOK, "myhook.py")
    model_bench.environment |= {
        "OTEL_AGENT_REPLAY_MASK_KEYS": "ssn",
        "OTEL_AGENT_REPLAY_MASK_PATHS": "$.user.email",
        "OTEL_AGENT_REPLAY_MASK_PATTERNS": r"T-(?P<secret>\d+)",
        "OTEL_AGENT_REPLAY_MASK_HOOK": "myhook:names",
    }
    model_bench.record(PROGRAM)
    spool = b"".join(path.read_bytes() for path in (model_bench.folder / "home" / "spool").iterdir())
    for secret in (b"ada@mail", b"zorro", b"1234", b"T-4711"):
        assert secret not in spool
    (run,) = model_bench.runs()
    assert run["complete"]
    shown = json.loads(model_bench.run(BIN / "agent-replay", "show", "latest", "--json").stdout)
    assert set(shown["outcome"]["masked"]) == {"ssn", "path", "pattern", "hook"}
    assert sum(len(reading["values"]) for reading in shown["readings"] if reading["source"] == "clock:time.time") == 1
    replayed = model_bench.replay()
    assert (replayed.code, replayed.divergences) == (0, [])
    assert replayed.out.split()[1] == "1"
    assert replayed.out.startswith("masked.path.")


def test_a_wrong_setting_is_said_and_the_program_runs(model_bench) -> None:
    model_bench.environment["OTEL_AGENT_REPLAY_MASK_PATTERNS"] = "("
    model_bench.write(PROGRAM)
    done = model_bench.run(BIN / "opentelemetry-instrument", sys.executable, "program.py")
    assert done.returncode == 0
    assert done.stdout.startswith("ada@mail.test")
    (line,) = [line for line in done.stderr.splitlines() if "not recording" in line]
    assert "OTEL_AGENT_REPLAY_MASK_PATTERNS" in line
    assert not (model_bench.folder / "home" / "spool").exists()


def test_a_hook_that_raises_masks_all_and_is_noted(model_bench) -> None:
    model_bench.write("def names(text):\n    raise ValueError(text)\n", "myhook.py")
    model_bench.environment["OTEL_AGENT_REPLAY_MASK_HOOK"] = "myhook:names"
    model_bench.record(PROGRAM)
    spool = b"".join(path.read_bytes() for path in (model_bench.folder / "home" / "spool").iterdir())
    assert b"mail.test" not in spool
    assert b"zorro" not in spool
    shown = json.loads(model_bench.run(BIN / "agent-replay", "show", "latest", "--json").stdout)
    assert any("hook raised ValueError" in note["what"] for note in shown["notes"])
    assert not shown["run"]["complete"]
