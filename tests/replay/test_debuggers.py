"""A debugger works in a replay: it stops for as long as wanted, and the program goes on to its recorded end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pexpect
import pytest

PROGRAM = """
import asyncio, time
from otel_agent_replay import boundary

@boundary("tool", "fetch")
async def fetch(n):
    await asyncio.sleep(0.01)
    return n, time.time_ns()

async def main():
    answers = await asyncio.gather(*(fetch(n) for n in range(3)))
    total = len(answers)
    print(answers)

asyncio.run(main())
"""

BIN = Path(sys.executable).parent
PROMPT = r"\(Pdb\) "


@pytest.fixture
def recorded(bench):
    return bench, bench.record(PROGRAM).strip()


def spawn(bench, *options: str, command: tuple[str, ...] = ()) -> pexpect.spawn:
    line = [*options, *(["--", *command] if command else [])]
    return pexpect.spawn(
        str(BIN / "agent-replay"), ["replay", "latest", *line], env=bench.env, cwd=str(bench.folder), timeout=60,
        encoding="utf-8", dimensions=(50, 300),
    )  # fmt: skip


def ended(child: pexpect.spawn) -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_pdb_stops_steps_and_goes_on(recorded) -> None:
    bench, out = recorded
    child = spawn(bench, command=(sys.executable, "-m", "pdb", "program.py"))
    child.expect(PROMPT)
    child.sendline("break 12")
    child.expect(PROMPT)
    child.sendline("continue")
    child.expect("total = len")
    child.expect(PROMPT)
    time.sleep(3)  # longer than anything in a replay takes
    child.sendline("next")
    child.expect(PROMPT)
    child.sendline("p total")
    child.expect("3")
    child.expect(PROMPT)
    child.sendline("continue")
    child.expect_exact(out)
    child.expect(PROMPT)
    child.sendline("quit")
    ended(child)


def test_stop_at_a_crossing(recorded) -> None:
    bench, out = recorded
    child = spawn(bench, "--stop-at", "tool:fetch#0")
    child.expect("stopped at")
    child.expect(PROMPT)
    time.sleep(2)
    child.sendline("continue")
    child.expect_exact(out)
    assert ended(child) == 0
