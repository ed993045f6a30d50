"""The project speaks of itself alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_prose.py"
_spec = importlib.util.spec_from_file_location("check_prose", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
check_prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_prose)


def test_nothing_of_one_machine_or_one_place_of_work() -> None:
    assert check_prose.check() == []


@pytest.mark.parametrize(
    "line",
    [
        "see /work/shared/notes",
        'open("/root/x")',
        "as issue 3 asks",
        "fixes Issue #12",
        "in PR 40",
        "from https://pypi.org/project/x",
    ],
)
def test_finds_what_may_not_stand(line: str) -> None:
    assert len(list(check_prose.findings("a.md", line))) == 1


@pytest.mark.parametrize(
    "line", ["a framework/worker", "$HOME/work", "main/task:work#0", "an issue of taste", "the root/child lanes"]
)
def test_passes_what_may(line: str) -> None:
    assert list(check_prose.findings("a.md", line)) == []
