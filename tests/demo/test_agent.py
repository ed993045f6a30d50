"""The demo's agent and its edits, run directly against the model server, with nothing recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.demo.stage import Stage
from otel_agent_replay.demo.story import PROMPT, REPAIR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_agent_replay.demo.stage import Finished
    from otel_agent_replay.demo.story import Edit


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, lambda line: None)
    stage.environment |= {"OPENAI_BASE_URL": stage.start_server(), "OPENAI_API_KEY": "sk-test"}
    yield stage
    stage.close()


def run(stage: Stage, edit: Edit | None = None) -> Finished:
    if edit is None:
        return stage.run("python agent.py")
    source = (stage.folder / "agent.py").read_text("utf-8")
    (stage.folder / edit.saved_as).write_text(edit.apply(source), "utf-8")
    return stage.run(f"python {edit.saved_as}")


def test_the_agent_pays_and_then_fails_on_the_comma(stage: Stage) -> None:
    finished = run(stage)
    assert finished.exit_code == 1
    assert finished.stderr.rstrip().endswith("ValueError: could not convert string to float: '12,50'")
    assert finished.stdout.count("opinion: ") == 3
    assert (stage.folder / "payments.log").read_text().count("\n") == 1


def test_two_live_runs_have_nothing_in_common(stage: Stage) -> None:
    first, second = run(stage), run(stage)
    varying = ("case ", "opinion: ", "paid ", "to the customer: ")
    lines = [[line for line in one.stdout.splitlines() if line.startswith(varying)] for one in (first, second)]
    assert len(lines[0]) == len(lines[1]) == 6
    assert not set(lines[0]) & set(lines[1])
    assert (stage.folder / "payments.log").read_text().count("\n") == 2


def test_the_repair_books_the_amount(stage: Stage) -> None:
    finished = run(stage, REPAIR)
    assert (finished.exit_code, finished.stderr) == (0, "")
    assert finished.stdout.endswith("booked 1250 cents\n")


def test_the_changed_prompt_alone_repairs_nothing(stage: Stage) -> None:
    assert run(stage, PROMPT).exit_code == 1
