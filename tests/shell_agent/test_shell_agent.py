"""A shell agent of forty steps is replayed without its directory, and no process is started for it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
AGENT = Path(__file__).parent / "agent.py"


def _replay(bench, times: int) -> None:
    scratch = bench.folder / "scratch"
    bench.write(AGENT.read_text(), "agent.py")
    done = bench.run(BIN / "opentelemetry-instrument", sys.executable, "agent.py", scratch)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 41 and "started 0" not in done.stderr
    shutil.rmtree(scratch)
    for _ in range(times):
        replayed = bench.replay()
        assert (replayed.code, replayed.out) == (0, done.stdout), replayed.err
        assert "started 0" in replayed.err
        assert not replayed.report["new_readings"] and not replayed.report["unread"]
        assert not scratch.exists()


def test_it_takes_the_same_decisions(bench) -> None:
    _replay(bench, 10)


@pytest.mark.slow
def test_it_takes_the_same_decisions_a_hundred_times(bench) -> None:
    _replay(bench, 100)


@pytest.mark.parametrize("left", [True, False], ids=["left there", "taken away"])
def test_a_scratch_directory_of_its_own(bench, left: bool) -> None:
    """Its name is drawn, and the agent makes it itself."""
    bench.environment["TMPDIR"] = str(bench.folder)
    out = bench.record(AGENT.read_text(), name="agent.py")
    (scratch,) = (path for path in bench.folder.iterdir() if path.name.startswith("shell-agent-"))
    if not left:
        shutil.rmtree(scratch)
    before = scratch.exists() and sorted((path.name, path.read_bytes()) for path in scratch.iterdir())
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert "started 0" in replayed.err
    assert not replayed.report["unread"]
    assert before == (scratch.exists() and sorted((path.name, path.read_bytes()) for path in scratch.iterdir()))


def test_another_command_is_a_divergence(bench) -> None:
    scratch = bench.folder / "scratch"
    program = "import subprocess, sys\nprint(subprocess.check_output(['echo', 'a'], text=True))\n"
    bench.record(program, scratch)
    replayed = bench.replay_changed(program.replace("'a'", "'b'"))
    assert replayed.code == 125
    assert [kind for kind, _ in replayed.divergences] == ["diverged"]
    assert "input.args[1]" in replayed.err or "'b'" in replayed.err or '"b"' in replayed.err, replayed.err
