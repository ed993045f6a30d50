"""What README.md says of commands, options, settings and exit codes is what the code does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest

from otel_agent_replay import cli, errors, settings
from otel_agent_replay.recording.divergence import DivergenceClass

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def table(first_column: str) -> dict[str, list[str]]:
    """The rows of the table whose first column has this title: the first cell, then the others."""
    found = re.search(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    assert found is not None, f"README.md has no table of {first_column!r}"
    rows = ([cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in found[1].splitlines())
    return {row[0].strip("`"): row[1:] for row in rows}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def command_lines() -> list[list[str]]:
    """Every `agent-replay …` that stands in a block or between backticks, as words."""
    typed = [line for block in blocks("sh") for line in block.splitlines()]
    typed += re.findall(r"`(agent-replay [^`]+)`", README)
    found = [re.search(r"(?:^|[\s/])(agent-replay\s.*)", line) for line in typed]
    return [shlex.split(line[1]) for line in found if line]


def click_command(name: str) -> click.Command:
    command = import_module(f"otel_agent_replay.cli.{name}").command
    assert isinstance(command, click.Command)
    return command


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def test_every_setting_is_listed_and_no_other() -> None:
    known = {value for name, value in vars(settings).items() if name.startswith("OTEL_AGENT_REPLAY_")}
    assert set(table("variable")) == known


@pytest.mark.parametrize(("name", "choices"), [("MODE", settings.MODES), ("ORDER", settings.ORDERS)])
def test_choices_and_defaults_of_settings(name: str, choices: tuple[str, ...]) -> None:
    meaning, default = table("variable")[f"OTEL_AGENT_REPLAY_{name}"]
    assert all(f"`{choice}`" in meaning for choice in choices)
    assert default == f"`{choices[0]}`"


def test_defaults_of_the_other_settings(tmp_path: Path) -> None:
    read = settings.read({"OTEL_AGENT_REPLAY_HOME": str(tmp_path)})
    assert read.dsn.startswith("chdb://")
    assert read.dsn.endswith(f"{tmp_path}/store")
    assert read.environment == ()
    assert table("variable")["OTEL_AGENT_REPLAY_ENVIRONMENT"][1] == "none"


def test_every_exit_code_is_listed_and_no_other() -> None:
    known = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert set(table("code")) == known


def test_every_option_of_replay_is_listed_and_no_other() -> None:
    assert {option.split()[0] for option in table("option")} == options_of(click_command("replay"))


def test_classes_of_divergence() -> None:
    assert set(table("class")) == {str(kind) for kind in DivergenceClass} - {"stale"}


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_commands_are_real(words: list[str]) -> None:
    name, rest = words[1], words[2:]
    assert name in cli.COMMANDS
    own = rest[: rest.index("--")] if "--" in rest else rest
    command = click_command(name)
    if isinstance(command, click.Group) and own:
        command, own = command.commands[own[0]], own[1:]
    assert {word for word in own if word.startswith("--")} <= options_of(command)


def test_expectations_are_understood() -> None:
    from otel_agent_replay.replay.expectation import parse

    meaning = table("option")["--expect WHAT"][0]
    forms = re.findall(r"`([a-z]+(?:\.NAME)?(?:=[A-Z]+)?)`", meaning)
    assert len(forms) == 5
    for form in forms:
        parse(form.replace("=N", "=3") if form.endswith("=N") else form)


def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec", dont_inherit=True), namespace)
    handle, check = namespace["handle"], namespace["check"]
    assert callable(handle)
    assert callable(check)
    handle("Order A-1007 arrived broken.")
    assert "paid back" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "extra"), [("demo", "demo"), ("tests", "test")])
def test_pasted_lines_install_an_extra_that_there_is(name: str, extra: str) -> None:
    line = _readme_line(name)
    assert f".[{extra}]" in line
    assert extra in PROJECT["optional-dependencies"]


def test_the_last_part_of_a_line_in_another_environment() -> None:
    assert _readme_line("tests", "--last", "--venv", "elsewhere") == "elsewhere/bin/python -m pytest -n auto"


def test_tested_versions_are_allowed_ones() -> None:
    floor = PROJECT["requires-python"]
    row = next(line for line in README.splitlines() if line.startswith("| Python |"))
    assert floor.removeprefix(">=") in row


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?://)([^)#]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def _readme_line(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "readme_line.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.rstrip("\n")
