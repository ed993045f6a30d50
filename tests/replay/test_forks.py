"""A replayed program that forks: each child is answered in its own lane, and what it was answered is counted."""

from __future__ import annotations

import pytest

START = """
import multiprocessing, os, sys
import otel_agent_replay as replay

@replay.boundary("tool", "step")
def step(who, number):
    return [who, number, os.urandom(4).hex()]

def work(who, count=3):
    for number in range(count):
        step(who, number)
"""

FORK = """
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        work(f"child-{n}")
        os._exit(0)
    children.append(pid)
    work("parent", 2)
for pid in children:
    os.waitpid(pid, 0)
work("parent", 1)
"""

PROCESSES = """
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(f"child-{n}",)) for n in range(2)]
    for child in children: child.start()
    work("parent")
    for child in children: child.join()
"""


@pytest.mark.parametrize(("body", "calls"), [(FORK, 16), (PROCESSES, 9)], ids=["fork", "multiprocessing"])
def test_a_program_that_forks_is_replayed_whole(bench, body: str, calls: int) -> None:
    bench.record(START + body)
    (row,) = bench.runs()
    assert (row["crossings"], row["complete"]) == (calls, True)
    done = bench.replay()
    assert done.code == 0, done.err
    assert (done.report["answered"], done.report["crossings"]) == (calls, calls)


def test_what_a_child_asks_otherwise_is_found(bench) -> None:
    bench.record(START + FORK)
    done = bench.replay_changed(
        START + FORK.replace('work(f"child-{n}")', 'work("stranger" if n == 1 else f"child-{n}")')
    )
    assert done.code == 125
    assert ("diverged", "main/process:fork#1") in done.divergences


def test_a_child_that_asks_less_is_found(bench) -> None:
    bench.record(START + FORK)
    done = bench.replay_changed(START + FORK.replace('work(f"child-{n}")', 'work(f"child-{n}", 3 - (n == 2))'))
    assert done.code == 125
    assert done.divergences == [("unconsumed", "main/process:fork#2")]
