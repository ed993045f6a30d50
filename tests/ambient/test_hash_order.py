"""Sets of strings have their recorded order: the hash seed is fixed, recorded, and the same in every process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import opentelemetry.instrumentation.auto_instrumentation
import pytest

from tests.conftest import BIN, Bench

PROGRAM = """
import concurrent.futures, json, multiprocessing, subprocess, sys

WORDS = [f"word {number}" for number in range(40)]

def order():
    return list(set(WORDS))

def put(queue):
    queue.put(order())

def main():
    seen = {"here": order(), "hash": hash("x")}
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=put, args=(queue,))
        child.start()
        seen[method] = queue.get()
        child.join()
    if sys.argv[1:]:
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            seen["pool"] = pool.submit(order).result(60)
    print(json.dumps(seen))

if __name__ == "__main__":
    main()
"""

WITHOUT_LAUNCHER = Path(opentelemetry.instrumentation.auto_instrumentation.__file__).parent


def test_every_process_of_a_run_has_the_recorded_order(bench: Bench):
    bench.environment = {"PYTHONHASHSEED": "random"}
    live = bench.record(PROGRAM, "spawn", "fork", "forkserver")
    seen = json.loads(live)
    hashed = seen.pop("hash")
    assert len(seen) == 5 and all(order == seen["here"] for order in seen.values())
    (run,) = [found for found in bench.runs() if found["name"] == "program.py"]
    bench.environment = {"PYTHONHASHSEED": "4242"}
    assert json.loads(bench.run(sys.executable, "program.py").stdout)["here"] != seen["here"]
    replayed = bench.replay(run=run["run_id"])
    assert json.loads(replayed.out.splitlines()[0]) == {**seen, "hash": hashed}, replayed.err


def test_a_seed_that_the_user_has_set_stays(bench: Bench):
    bench.environment = {"PYTHONHASHSEED": "11"}
    live = bench.record(PROGRAM)
    bench.environment = {"PYTHONHASHSEED": "random"}
    assert bench.replay().out.startswith(live)


@pytest.mark.parametrize("seed", ["", "random", "12"])
def test_a_process_that_nobody_launched_says_whether_its_order_is_fixed(bench: Bench, seed: str):
    bench.environment = {
        "PYTHONPATH": os.pathsep.join([str(WITHOUT_LAUNCHER), str(bench.folder)]),
        "OTEL_PYTHON_DISTRO": "agent_replay",
        "OTEL_PYTHON_CONFIGURATOR": "agent_replay",
        **({"PYTHONHASHSEED": seed} if seed else {}),
    }
    path = bench.write(PROGRAM)
    live = bench.run(sys.executable, path.name)
    assert live.returncode == 0, live.stderr
    bench.environment = {}
    shown = bench.run(BIN / "agent-replay", "show", "latest").stdout
    assert ("PYTHONHASHSEED" in shown) == (seed != "12")
    replayed = bench.replay()
    if seed == "12":
        assert replayed.code == 0 and replayed.out.startswith(live.stdout)
    else:
        assert replayed.code != 0  # another output
        assert any("PYTHONHASHSEED" in warning for warning in replayed.report["warnings"])
