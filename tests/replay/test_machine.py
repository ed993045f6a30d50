"""What a replay takes from the machine that it runs on, and what it leaves there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("recorded", ["Asia/Tokyo", ":America/New_York", "EST5EDT"])
def test_local_time_is_that_of_the_recording(model_bench, recorded: str) -> None:
    program = "import datetime, time; print(datetime.datetime.fromtimestamp(1e9), time.tzname, time.timezone)"
    model_bench.environment["TZ"] = recorded
    out = model_bench.record(program)
    model_bench.environment["TZ"] = "Australia/Adelaide"
    replayed = model_bench.replay()
    assert (replayed.code, replayed.out) == (0, out)


def test_without_a_zone_it_is_that_of_the_recording_machine(model_bench) -> None:
    program = "import datetime; print(datetime.datetime.fromtimestamp(1e9))"
    out = model_bench.record(program)
    model_bench.environment["TZ"] = "Australia/Adelaide"
    assert model_bench.replay().out == out


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot ask to end with its parent")
def test_a_replay_does_not_outlive_its_command(model_bench) -> None:
    program = "import os, sys; print(os.stat('/proc/self').st_ino, os.readlink('/proc/self'), flush=True)\n"
    program += "while len(sys.argv) > 1: pass"
    model_bench.record(program)
    command = [BIN / "agent-replay", "replay", "latest", "--", sys.executable, "program.py", "for ever"]
    replaying = subprocess.Popen(
        command, env=model_bench.env, cwd=model_bench.folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert replaying.stdout is not None
        child = int(replaying.stdout.readline().split()[1])
        assert Path(f"/proc/{child}").exists()
        replaying.send_signal(signal.SIGKILL)
        replaying.wait(10)
        end = time.monotonic() + 10
        while Path(f"/proc/{child}").exists() and time.monotonic() < end:
            time.sleep(0.01)
        gone = not Path(f"/proc/{child}").exists()
        if not gone:
            os.kill(child, signal.SIGKILL)
        assert gone
    finally:
        replaying.kill()
        replaying.wait()
        replaying.stdout.close()


def test_uuids_that_rust_makes_come_back(model_bench) -> None:
    program = """
import os
import openai
from uuid_utils import UUID
import uuid_utils
from uuid_utils.compat import uuid4, uuid7

made = [uuid_utils.uuid7(), uuid_utils.uuid4(), uuid_utils.uuid1(), uuid4(), uuid7()]
assert [type(uuid) is UUID for uuid in made] == [True] * 3 + [False] * 2
model = openai.OpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
asked = [{"role": "user", "content": str(uuid)} for uuid in made]
print(made, made[0].time_low, model.chat.completions.create(model="m1", messages=asked).choices[0].message.content)
"""
    out = model_bench.record(program)
    replayed = model_bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert replayed.report["new_readings"] == []


OWN_CLOCK = """
import asyncio, time

class Ahead(asyncio.SelectorEventLoop):
    def time(self):
        return time.clock_gettime(time.CLOCK_MONOTONIC) + 1e6

async def main():
    before = time.monotonic()
    await asyncio.sleep(0.01)
    after = time.monotonic()
    print(after - before < 100{})

asyncio.Runner(loop_factory=Ahead).run(main())
"""


def test_timers_of_a_loop_with_a_clock_of_its_own_move_no_other_clock(model_bench) -> None:
    model_bench.record(OWN_CLOCK.format(""))
    replayed = model_bench.replay_changed(OWN_CLOCK.format(", time.monotonic() - before < 100"))
    assert replayed.out == "True True\n"
