"""Runs that share generators replay each by itself; what else draws shifts nothing. With real recordings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Bench

PROGRAM = """
import asyncio, json, random, sys, threading, time
import numpy as np
from numpy.random import rand
from random import choice, random as draw
import otel_agent_replay

rng = random.Random(5)
generator = np.random.default_rng(6)
numbers = np.random.RandomState(7)

def step():
    # MORE
    return [draw(), choice("abcdefghijklm"), random.gauss(0, 1), rng.random(), rng.sample(range(99), 2),
            rand(2).tolist(), np.random.randint(10**9), generator.random(), generator.integers(9, size=3).tolist()]

@otel_agent_replay.run("thread")
def in_thread(name):
    seen = []
    for _ in range(6):
        seen.append(step())
        time.sleep(0.002)
    print(json.dumps([name, seen]) + "\\n", end="", flush=True)  # one write: threads do not mix in a line

@otel_agent_replay.run("task")
async def in_task(name):
    seen = []
    for _ in range(6):
        seen.append(step())
        await asyncio.sleep(0)
    print(json.dumps([name, seen]) + "\\n", end="", flush=True)  # one write: threads do not mix in a line

async def both():
    await asyncio.gather(in_task("a"), in_task("b"))

if __name__ == "__main__":
    random.seed(7), np.random.seed(8)
    if sys.argv[1] == "task":
        asyncio.run(both())
    else:
        threads = [threading.Thread(target=in_thread, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""


def lines(text: str) -> dict[str, list]:
    return dict(json.loads(line) for line in text.splitlines() if line.startswith("["))


@pytest.mark.parametrize("kind", ["task", "thread"])
def test_two_runs_at_once_replay_each_alone(bench: Bench, kind: str):
    live = lines(bench.record(PROGRAM, kind))
    assert set(live) == {"a", "b"}
    runs = [found["run_id"] for found in bench.runs() if found["name"] == kind]
    replayed = {}
    for run in runs:
        done = bench.replay(run=run, env=bench.env | {"PYTHONHASHSEED": "77"})
        assert done.code == 0, done.err
        assert done.report["new_readings"] == [] and done.report["unread"] == []
        replayed.update(lines(done.out))
    assert replayed == live
    if kind == "task":  # which draw in turns for certain, as they would have without being recorded
        plain = bench.run(sys.executable, "program.py", kind)
        assert lines(plain.stdout) == live


SPANS = """
import json, random, sys
import numpy as np
from opentelemetry.sdk.trace import TracerProvider

random.seed(7), np.random.seed(7)
tracer = TracerProvider().get_tracer("own")
seen = []
for _ in range(3):
    if "spans" in sys.argv:
        with tracer.start_as_current_span("a"):
            seen.append(random.random())
    seen += [random.random(), random.getrandbits(90), random.gauss(0, 1), random.choice("abcdef"), np.random.random()]
print(json.dumps([value for index, value in enumerate(seen)] + [random.getstate()[1][:4]]))
"""


def test_spans_draw_nothing(bench: Bench):
    """A recorded program with spans draws what it draws without them, recorded or not."""
    spanned = SPANS.replace("seen.append(random.random())", "pass")
    bench.write(SPANS)
    plain = bench.run(sys.executable, "program.py").stdout
    assert bench.record(SPANS) == plain
    assert bench.record(spanned, "spans") == plain
    replayed = bench.replay()
    assert replayed.code == 0 and replayed.out.startswith(plain)


ONE_MORE = """
import json, random, secrets, uuid
import numpy as np

def main():
    own, other = random.Random(), random.Random()
    made, numbers = np.random.default_rng(), np.random.default_rng()
    first = [own.random(), random.random(), made.random(), np.random.random(), secrets.token_hex(4), str(uuid.uuid4())]
    # MORE
    shifted = [own.random(), made.random()]
    rest = [other.random(), numbers.random(), random.random(), np.random.random(), secrets.token_hex(4),
            str(uuid.uuid4())]
    print(json.dumps([first, shifted, rest]))

main()
"""


def test_one_more_draw_is_reported_and_shifts_only_what_it_draws_from(bench: Bench):
    live = json.loads(bench.record(ONE_MORE))
    more = {
        "own.random()": "random:random",
        "random.random()": "random:random",
        "made.random()": "random:numpy:random",
        "np.random.random()": "random:numpy:random",
        "secrets.token_hex(4)": "random:os.urandom:4",
        "uuid.uuid4()": "random:uuid4",
    }
    changed = ONE_MORE.replace("# MORE", "\n    ".join(more))
    first = bench.replay_changed(changed)
    again = bench.replay_changed(changed)
    seen = json.loads(first.out.splitlines()[0])
    assert seen[0] == live[0] and seen[2] == live[2]
    assert [a != b for a, b in zip(seen[1], live[1], strict=True)] == [True, True]
    assert json.loads(again.out.splitlines()[0]) == seen
    new = first.report["new_readings"]
    assert sorted(line.split()[1] for line in new) == sorted(more.values()), new
    fewer = bench.replay_changed(ONE_MORE.replace("shifted = [own.random(), made.random()]", "shifted = []"))
    assert len([line for line in fewer.report["unread"] if "1 of 2 draws of the generator" in line]) == 2
