"""Commands as a user types them, run in the demo's folder."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.demo import stage as stages
from otel_agent_replay.demo.stage import Stage, resolved
from otel_agent_replay.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path


def test_shows_the_command_and_its_output_line_by_line(tmp_path: Path) -> None:
    said: list[str] = []
    code = "import sys; print('one'); print('two', flush=True); sys.stderr.write('three'); sys.exit(7)"
    finished = Stage(tmp_path, said.append).run(f'python -c "{code}"')
    assert (finished.exit_code, finished.stdout, finished.stderr) == (7, "one\ntwo\n", "three")
    assert said == [f'  $ python -c "{code}"', "    one", "    two", "    three"]


def test_output_is_shown_while_the_command_runs(tmp_path: Path) -> None:
    program = """
import pathlib, time
print("first", flush=True)
for _ in range(600):
    if pathlib.Path("shown").exists():
        print("second")
        break
    time.sleep(0.05)
"""
    (tmp_path / "program.py").write_text(program)

    def say(line: str) -> None:
        if line.strip() == "first":
            (tmp_path / "shown").touch()

    assert Stage(tmp_path, say).run("python program.py").stdout == "first\nsecond\n"


def test_a_command_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "COMMAND_LIMIT", 0.5)
    started = time.monotonic()
    with pytest.raises(CannotStart, match="did not end"):
        Stage(tmp_path, lambda line: None).run('python -c "import time; time.sleep(60)"')
    assert time.monotonic() - started < 20


def test_the_server_is_gone_once_stopped(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda line: None)
    try:
        stage.start_server()
        assert stage.refused() is None
    finally:
        stage.close()
    refusal = stage.refused()
    assert refusal is not None
    assert "refused" in refusal.lower()


def test_settings_of_the_user_do_not_bend_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = {
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_AGENT_REPLAY_DSN",
        "OPENAI_API_KEY",
        "HTTP_PROXY",
        "all_proxy",
        "PYTHONHASHSEED",
    }
    for name in foreign:
        monkeypatch.setenv(name, "of the user")
    environment = Stage(tmp_path, lambda line: None).environment
    assert not foreign & set(environment)
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("command", ["agent-replay", "opentelemetry-instrument"])
def test_commands_are_those_of_this_installation(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = resolved(command)
    assert found.startswith(sys.prefix)
    assert os.access(found, os.X_OK)


def test_an_absent_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotStart, match="no-such-command is not installed"):
        resolved("no-such-command")
