"""Everything that hands out the world, read in one process and answered in another: see `table`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.ambient.another_day import SHIFT, another_day
from tests.ambient.table import program, rows
from tests.conftest import BIN, Bench

if TYPE_CHECKING:
    from pathlib import Path

TABLE = rows()
CASES = [pytest.param(row.name, form, id=f"{row.name}-{form}") for row in TABLE for form in row.reads(0)]
BOUND_BEFORE_CASES = [
    pytest.param(row.name, form, id=f"{row.name}-{form}")
    for row in TABLE
    for form in row.reads(0)
    if form in row.before
]
VARYING = [row.name for row in TABLE if row.varies]

AS_USUAL = """
import ctypes, json, sys
import table_program
print(json.dumps(table_program.read_all()))
sys.stderr.write(f"DAY {ctypes.CDLL(None).time(None)}\\n")
"""
"""The program is recorded by `opentelemetry-instrument`, so it is patched before it binds any name."""

BOUND_BEFORE = """
import json, sys
import table_program
import otel_agent_replay

if sys.argv[1] == "record":
    from otel_agent_replay import assembly
    assembly.start()
    with otel_agent_replay.run("table"):
        found = table_program.read_all()
elif sys.argv[1] == "live":
    found = table_program.read_all()
else:
    with otel_agent_replay.replay(sys.argv[1], partial=True):
        found = table_program.read_all()
print(json.dumps(found))
"""
"""Names are bound first; then the process begins to record, or to replay a block."""


@dataclass
class Shown:
    """What the rows gave, by name and form."""

    recorded: dict[str, Any]
    replayed: dict[str, Any]
    live: dict[str, Any]
    days: tuple[float, float] | None = None
    """When it was recorded and replayed, seconds since the epoch, by a clock that nobody virtualises."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("table"))
    made.write(program(TABLE), "table_program.py")
    return made


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of another day, hash seed and place."""
    folder: Path = tmp_path_factory.mktemp("day")
    return {"PYTHONHASHSEED": "4242", **(another_day(folder) or {})}


@pytest.fixture(scope="module")
def as_usual(bench: Bench, elsewhere: dict[str, str]) -> Shown:
    path = bench.write(AS_USUAL)
    recording = bench.run(BIN / "opentelemetry-instrument", sys.executable, path.name)
    assert recording.returncode == 0, recording.stderr
    # That it prints something is enough: what it printed is compared row by row.
    replaying = bench.replay(env=bench.env | elsewhere, options=("--quiet", "--expect", "stdout=."))
    assert replaying.code == 0, replaying.err
    assert replaying.report["new_readings"] == []
    live = bench.run(sys.executable, path.name, env=bench.env | elsewhere)
    days = [float(text.partition("DAY ")[2].split()[0]) for text in (recording.stderr, replaying.err)]
    return Shown(json.loads(recording.stdout), json.loads(replaying.out), json.loads(live.stdout), (days[0], days[1]))


@pytest.fixture(scope="module")
def bound_before(bench: Bench, elsewhere: dict[str, str]) -> Shown:
    path = bench.write(BOUND_BEFORE, "bound_before.py")

    def ran(*arguments: str, env: dict[str, str] = bench.env) -> Any:
        done = bench.run(sys.executable, path.name, *arguments, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    recorded = ran("record")
    (run,) = [found["run_id"] for found in bench.runs() if found["name"] == "table"]
    return Shown(recorded, ran(run, env=bench.env | elsewhere), ran("live", env=bench.env | elsewhere))


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_replay_gives_what_was_recorded(as_usual: Shown, name: str, form: str) -> None:
    assert as_usual.recorded[name][form][0][0] != "raised"
    assert as_usual.replayed[name][form] == as_usual.recorded[name][form]


@pytest.mark.parametrize(("name", "form"), BOUND_BEFORE_CASES)
def test_names_that_were_bound_before_give_it_too(bound_before: Shown, name: str, form: str) -> None:
    assert bound_before.recorded[name][form][0][0] != "raised"
    assert bound_before.replayed[name][form] == bound_before.recorded[name][form]


@pytest.mark.parametrize("name", VARYING)
def test_another_process_would_have_got_something_else(as_usual: Shown, name: str) -> None:
    for form, live in as_usual.live[name].items():
        assert live != as_usual.recorded[name][form]


def test_it_was_another_day(as_usual: Shown, elsewhere: dict[str, str]) -> None:
    if "LD_PRELOAD" not in elsewhere:
        pytest.skip("no compiler to make another day with")
    assert as_usual.days is not None
    recorded, replayed = as_usual.days
    assert SHIFT <= replayed - recorded < SHIFT + 3600
