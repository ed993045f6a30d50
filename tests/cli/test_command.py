"""The command itself: help, exit codes, streams that go away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from otel_agent_replay.cli import COMMANDS

COMMAND = "import sys; sys.argv[0] = 'agent-replay'; from otel_agent_replay.cli import main; main()"


def test_help_names_every_command_and_imports_none_of_them(home):
    code = (
        "import json, sys\nfrom otel_agent_replay.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print(json.dumps([name for name in sys.modules if name.startswith(('otel_agent_replay.', 'rich', 'orjson'))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=home.env(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    *text, modules = done.stdout.splitlines()
    assert sorted(json.loads(modules)) == ["otel_agent_replay.cli", "otel_agent_replay.errors"]
    for name in COMMANDS:
        assert any(line.split()[:1] == [name] for line in text)


@pytest.mark.parametrize("name", ["runs", "show", "schema"])
def test_every_command_explains_itself(home, name):
    done = home.command(name, "--help")
    assert done.returncode == 0
    assert "Usage: agent-replay" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["show"], ["runs", "--limit", "x"], ["runs", "--wrong"], ["schema", "drop"]]
)
def test_wrong_usage_exits_with_2(home, arguments):
    done = home.command(*arguments)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert done.stdout == ""


def test_a_setting_without_meaning_exits_with_2_and_one_sentence(home):
    home.environment["OTEL_AGENT_REPLAY_MODE"] = "sometimes"
    done = home.command("runs")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "agent-replay: OTEL_AGENT_REPLAY_MODE is 'sometimes'; set it to one of record, off.\n"


def test_a_store_of_no_known_kind_exits_with_2(home):
    home.environment["OTEL_AGENT_REPLAY_DSN"] = "postgres://nowhere"
    for arguments in (["runs"], ["schema", "status"]):
        done = home.command(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("agent-replay: The store postgres:// is of no known kind")
        assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error(home):
    home.record(crossings=300)
    command = [sys.executable, "-c", COMMAND, "show", "latest", "--json"]
    process = subprocess.Popen(command, env=home.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process.stderr:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_an_interrupt_exits_with_130_and_no_traceback(home):
    home.record()
    # Somebody else holds the store, so the command waits for it.
    lock = str(home.path / "store.lock")
    code = f"import fcntl, time; f = open({lock!r}, 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"1\n"
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND_WITH_SIGN, "runs"],
            env=home.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in error
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


COMMAND_WITH_SIGN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
from otel_agent_replay.boundary import real
wait = real.sleep
def sleep(seconds):
    if not said:
        said.append(print("waiting", flush=True))
    wait(seconds)
said = []
real.sleep = sleep
from otel_agent_replay.cli import main
main()
"""
