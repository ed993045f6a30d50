"""Programs that a recorded program starts are recorded as runs of their own, beside the program's."""

from __future__ import annotations

import json

import pytest

from tests.conftest import BIN

PARENT = """
import os, subprocess, sys

shown = []
for command in ([sys.executable, "child.py"], ["python", "-c", "import os; print(os.getpid())"]):
    shown.append(subprocess.run(command, capture_output=True, text=True, env={**os.environ}).stdout)
shown.append(subprocess.getoutput(f"{sys.executable} child.py"))
print(shown)
"""

CHILD = """
import time

print(time.time_ns())
"""

REPLACED = """
import os, sys, time

if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
print(time.time_ns())
"""


def listed(bench, *options: str) -> list[dict]:
    done = bench.run(BIN / "agent-replay", "runs", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def recorded(bench):
    bench.environment = {"PATH": f"{BIN}:{bench.env['PATH']}"}
    bench.write(CHILD, "child.py")
    return bench, bench.record(PARENT)


def test_the_runs_are_those_of_programs_that_people_start(recorded) -> None:
    bench, out = recorded
    (run,) = listed(bench)
    assert (run["name"], run["entry"]) == ("program.py", "process")
    (bench.folder / "child.py").unlink()
    done = bench.replay()
    assert (done.code, done.out) == (0, out), done.err


def test_what_they_start_is_listed_with_the_rest_and_replayed_by_its_id(recorded) -> None:
    bench, out = recorded
    started = [run for run in listed(bench, "--all") if run["entry"] == "child"]
    assert [run["name"] for run in started] == ["child.py", "import os; print(os.getpid())", "child.py"]
    (parent,) = listed(bench)
    shown = bench.run(BIN / "agent-replay", "show", started[0]["run_id"])
    assert parent["run_id"] in shown.stdout
    done = bench.replay(run=started[0]["run_id"])
    assert done.code == 0, done.err
    assert done.out.strip() in out


def test_a_program_that_replaces_itself_has_not_started_another(bench) -> None:
    out = bench.record(REPLACED)
    assert [run["entry"] for run in listed(bench)] == ["process", "process"]
    done = bench.replay()
    assert (done.code, done.out) == (0, out), done.err


def test_the_same_holds_once_the_runs_are_in_the_store(recorded) -> None:
    bench, out = recorded
    assert len(listed(bench, "--all")) == 4
    for path in bench.folder.rglob("*.spool"):
        path.unlink()
    assert [run["name"] for run in listed(bench)] == ["program.py"]
    done = bench.replay()
    assert (done.code, done.out) == (0, out), done.err
