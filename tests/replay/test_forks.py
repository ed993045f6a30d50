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


WORKERS = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor

def look(path):
    with open(path) as f:
        return f.read(), time.time(), os.environ.get("REGION"), os.getpid()

def write(path):
    with open(path, "w") as f:
        f.write("written")
    return path, time.time()

def start():
    with open("start.txt") as f:
        assert f.read() == "there"

def tell(queue):
    queue.put((os.environ.get("REGION"), time.time()))

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with open("own.txt", "w") as f:
        f.write("own")
    with ProcessPoolExecutor(2, mp_context=context, initializer=start) as pool:
        print(list(pool.map(look, ["a.txt", "own.txt", "a.txt"])))
        print(list(pool.map(write, ["one.txt", "two.txt"])), pool.submit(look, "own.txt").result())
    print(open("one.txt").read())
    queue = context.SimpleQueue()
    process = context.Process(target=tell, args=(queue,))
    process.start()
    print(queue.get(), process.join())
    with context.Pool(1) as pool:
        print(pool.map(look, ["a.txt"]), pool.map(write, ["three.txt"]))
"""


def test_worker_processes_are_answered_from_the_recording(bench) -> None:
    bench.write("there", "a.txt")
    bench.write("there", "start.txt")
    bench.environment = {"REGION": "eu"}
    out = bench.record(WORKERS)
    written = [bench.folder / name for name in ("own.txt", "one.txt", "two.txt", "three.txt")]
    for path in (*written, bench.write("", "start.txt")):
        path.unlink()
    bench.write("changed", "a.txt")
    bench.environment = {"REGION": "us"}
    done = bench.replay()
    assert (done.code, done.out) == (0, out), done.err
    assert not any(path.exists() for path in written)


SPAWNED = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(abs, [-1])))
"""


def test_the_latest_run_is_that_of_the_program_and_says_what_is_none_of_it(bench) -> None:
    bench.record(SPAWNED)
    done = bench.replay()
    assert (done.code, done.out) == (0, "[1]\n"), done.err
    assert "not forked" in done.err
    assert not any("resource_tracker" in row["name"] for row in bench.runs())
