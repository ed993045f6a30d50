"""The story of the demo: each step is judged by what it did."""

from __future__ import annotations

import socket
import subprocess
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from otel_agent_replay.cli.demo import command
from otel_agent_replay.demo import story as stories
from otel_agent_replay.demo.stage import Stage, resolved
from otel_agent_replay.demo.story import PROMPT, REPAIR, STORY, Step, perform, play
from otel_agent_replay.errors import CannotStart, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def told(tmp_path: Path, *steps: Step) -> tuple[bool, str]:
    said: list[str] = []
    done = play(tmp_path, said.append, steps)
    return done, "\n".join(said)


def test_a_story_in_which_all_holds(tmp_path: Path) -> None:
    done, text = told(
        tmp_path,
        Step("First.", 'python -c "print(5)"', shows=("5",), hides=("6",)),
        Step("The same.", 'python -c "print(5)"', as_recorded=True),
    )
    assert done
    assert "All 2 steps did what they say" in text


@pytest.mark.parametrize(
    ("step", "trouble"),
    [
        (Step("x", 'python -c "raise SystemExit(3)"'), "exited with 3, not 0"),
        (Step("x", 'python -c "print(1)"', exit_code=1), "exited with 0, not 1"),
        (Step("x", 'python -c "print(1)"', shows=("2",)), "nothing like 2"),
        (Step("x", 'python -c "print(1)"', hides=("1",)), "its output has 1"),
        (Step("x", 'python -c "print(1)"', as_recorded=True), "not the recorded one"),
    ],
)
def test_a_step_that_did_something_else_ends_the_story(tmp_path: Path, step: Step, trouble: str) -> None:
    done, text = told(tmp_path, Step("First.", 'python -c "print(0)"'), step, Step("Never.", 'python -c "print(9)"'))
    assert not done
    assert "Step 2 did not do what it says" in text
    assert trouble in text
    assert "Never." not in text


def test_a_server_that_still_answers_is_no_server_gone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda line: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        stage._port = other.getsockname()[1]
        assert perform(Step("Gone.", serves=False), stage, None) == (
            None,
            ["something still answers where the model server was"],
        )


@pytest.mark.parametrize("edit", [REPAIR, PROMPT])
def test_an_edit_changes_one_line_of_the_agent(edit: stories.Edit) -> None:
    source = (files("otel_agent_replay.demo") / "agent.py").read_text("utf-8")
    changed = edit.apply(source)
    differing = [pair for pair in zip(source.splitlines(), changed.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(differing) == 1
    compile(changed, edit.saved_as, "exec")
    with pytest.raises(ValueError, match="0 times"):
        edit.apply("nothing of it")


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "find_spec", lambda name: None if name == "openai" else name)
    with pytest.raises(CannotStart, match=r"needs openai; install it with `pip install 'otel-agent-replay\[demo\]'`"):
        play(tmp_path, lambda line: None)


def test_keep_refuses_a_folder_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    result = CliRunner().invoke(command, ["--keep", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert "there is something in it" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_whole_demo(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    finished = subprocess.run(
        [resolved("agent-replay"), "demo", "--keep", str(kept)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, ""), finished.stdout + finished.stderr
    for step in STORY:
        assert step.title in finished.stdout
        assert not step.command or f"  $ {step.command}\n" in finished.stdout
    assert {path.name for path in kept.iterdir()} >= {"agent.py", "agent_repaired.py", "agent_changed.py", "home"}
    assert "\x1b" not in finished.stdout
