"""A divergence may end the task or thread that others wait for: the replay ends all the same, as diverged."""

from __future__ import annotations

import pytest

TASK = """
import asyncio
from otel_agent_replay import boundary

async def answer(future):
    await asyncio.sleep(0.01)
    async with boundary("tool", "look", "QUESTION") as call:
        call.value = call.recorded if call.answered else 1
    future.set_result(call.value)

async def main():
    future = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(answer(future))
    print(await future)

asyncio.run(main())
"""

THREAD = """
import queue, threading
from otel_agent_replay import boundary

def answer():
    with boundary("tool", "look", "QUESTION") as call:
        call.value = call.recorded if call.answered else 1
    answered.append(call.value)
    done()

answered = []
WAITS
threading.Thread(target=answer, daemon=True).start()
wait()
print(answered)
"""

WAITS = {
    "an event": "event = threading.Event(); done, wait = event.set, event.wait",
    "a queue": "items = queue.Queue(); done, wait = lambda: items.put(1), items.get",
    "a lock": "lock = threading.Lock(); lock.acquire(); done, wait = lock.release, lock.acquire",
}

PROGRAMS = {"a future": TASK, **{name: THREAD.replace("WAITS", lines) for name, lines in WAITS.items()}}


@pytest.mark.parametrize("waits", PROGRAMS)
def test_a_program_that_waits_for_what_diverged_ends(bench, waits: str) -> None:
    program = PROGRAMS[waits]
    out = bench.record(program)
    again = bench.replay()
    assert (again.code, again.out) == (0, out), again.err
    changed = bench.replay_changed(program.replace("QUESTION", "CHANGED"))
    assert changed.code == 125, changed.err
    assert changed.report["divergences"][0]["kind"] == "diverged"
    assert "waits" in changed.err
