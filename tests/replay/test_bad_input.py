"""Bad input: one clear sentence, the right exit code, and nothing recorded is lost or changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import time, uuid
from otel_agent_replay import boundary

@boundary("tool", "fetch")
def fetch(n):
    return n, str(uuid.uuid4())

for n in range(5):
    print(fetch(n), time.time())
"""

BIN = Path(sys.executable).parent


@pytest.fixture
def recorded(bench):
    out = bench.record(PROGRAM)
    (file,) = (bench.folder / "home" / "spool").glob("*.spool")
    return bench, out, file


def sentence(err: str) -> str:
    (line,) = err.strip().splitlines()
    assert line.startswith("agent-replay: ")
    assert line.endswith(".")
    return line


def digests(folder: Path) -> dict[str, str]:
    """Of everything but what replays are recorded in."""
    files = [path for path in folder.glob("*.spool") if not path.name.endswith(".replay.spool")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_an_unknown_run(recorded) -> None:
    bench, _, _ = recorded
    again = bench.replay(run="f" * 32)
    assert again.code == 128
    assert "No run" in sentence(again.err)


def test_an_ambiguous_run(recorded) -> None:
    bench, _, _ = recorded
    for _ in range(17):
        bench.record("pass")
    first = {run["trace_id"][0] for run in bench.runs()}
    digit = next(digit for digit in first if sum(run["trace_id"][0] == digit for run in bench.runs()) > 1)
    again = bench.replay(run=digit)
    assert again.code == 128
    assert "names" in sentence(again.err)


def test_a_file_cut_in_the_middle_gives_what_is_whole(recorded) -> None:
    bench, _, file = recorded
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 2 // 3])
    (run,) = bench.runs()
    assert (run["status"], run["complete"]) == ("unfinished", False)
    again = bench.replay()
    assert again.code == 125
    assert again.report["divergences"]


def test_files_that_are_no_recordings(recorded) -> None:
    bench, out, file = recorded
    (file.parent / "0-empty.spool").write_bytes(b"")
    (file.parent / "1-foreign.spool").write_bytes(b"this is no recording at all\n" * 50)
    before = digests(file.parent)
    assert len(bench.runs()) == 1
    assert bench.replay().out == out
    assert digests(file.parent) == before


def test_a_program_that_has_moved(recorded) -> None:
    bench, _, _ = recorded
    (bench.folder / "program.py").rename(bench.folder / "elsewhere.py")
    again = bench.replay()
    assert again.code == 125
    assert "not in" in sentence(again.err)
    assert bench.replay(sys.executable, "elsewhere.py").code == 0


@pytest.mark.parametrize("command", [("-",), (), ("-u", "-"), ("-W", "error")], ids=" ".join)
def test_a_program_from_standard_input(bench, command: tuple[str, ...]) -> None:
    """It is not kept: the replay neither takes what it has there for the program nor waits for somebody to type."""
    recorded = bench.run(BIN / "opentelemetry-instrument", sys.executable, *command, input=PROGRAM)
    again = bench.replay(input="print('something else')")
    assert (again.code, again.out) == (125, "")
    assert "standard input" in sentence(again.err)
    assert bench.replay("python", "-", input=PROGRAM).out == recorded.stdout


def test_a_recording_of_another_user(recorded) -> None:
    bench, out, _ = recorded
    (bench.folder / "home" / "trust.key").unlink()
    again = bench.replay()
    assert again.code == 125
    assert "--trust" in sentence(again.err)
    assert bench.replay(options=("--trust",)).out == out
    assert bench.replay(sys.executable, "program.py").out == out


def test_a_half_recorded_run(bench) -> None:
    killed = PROGRAM + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    bench.record(killed, code=-9)
    (run,) = bench.runs()
    assert run["status"] == "unfinished"
    assert run["crossings"] == 5
    again = bench.replay_changed(PROGRAM)
    assert again.report["answered"] == 5


def test_two_replays_at_once(recorded) -> None:
    bench, out, file = recorded
    before = digests(file.parent)
    line = [str(BIN / "agent-replay"), "replay", "latest"]
    both = [
        subprocess.Popen(
            line, env=bench.env, cwd=bench.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(2)
    ]
    for replaying in both:
        assert replaying.communicate(timeout=100)[0] == out
        assert replaying.returncode == 0
    assert digests(file.parent) == before


def test_a_home_that_cannot_be_written(bench) -> None:
    file = bench.folder / "home"
    file.write_text("a file, where a directory is to be")
    bench.environment["OTEL_AGENT_REPLAY_RAISE"] = ""
    out = bench.record(PROGRAM)
    assert out.count("\n") == 5, "the program is not hurt"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a small file system")
def test_a_full_disk_does_not_hurt_the_agent(bench) -> None:
    home = bench.folder / "home"
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(home)], capture_output=True).returncode:
        pytest.skip("this machine does not let a small file system be mounted")
    try:
        bench.environment["OTEL_AGENT_REPLAY_RAISE"] = ""
        large = PROGRAM.replace("return n,", "return n, str(uuid.uuid4()) * 2000,").replace("range(5)", "range(20)")
        out = bench.record(large)
        assert out.count("\n") == 20
        (run,) = bench.runs()
        assert run["complete"] is False
    finally:
        subprocess.run(["umount", str(home)], check=True)


@pytest.mark.parametrize(
    "options",
    [
        ("--expect", "nonsense"),
        ("--stop-at", "nowhere"),
        ("--report", "/no/such/folder/r.json"),
        ("--expect", "stdout=("),
        ("--expect", "exit=soon"),
        ("--expect", "exception="),
        ("--expect", "outcome.=1"),
    ],
)
def test_wrong_usage(recorded, options: tuple[str, ...]) -> None:
    bench, _, _ = recorded
    done = bench.run(BIN / "agent-replay", "replay", "latest", *options)
    assert done.returncode == 2
    sentence(done.stderr)


def test_a_report_that_cannot_be_written(recorded) -> None:
    bench, out, _ = recorded
    done = bench.run(BIN / "agent-replay", "replay", "latest", "--quiet", "--report", "/dev/full")
    assert (done.returncode, done.stdout) == (2, out)
    assert "No space left" in sentence(done.stderr)


@pytest.mark.parametrize("options", [(), ("--expect", "ok")], ids=str)
@pytest.mark.parametrize("program", ["import nowhere_to_be_found", "import helper", "def f(:\n    pass"])
def test_a_program_that_cannot_start_is_skipped_by_bisect(recorded, program: str, options: tuple[str, ...]) -> None:
    bench, _, _ = recorded
    bench.write("if True:\nprint('not indented')\n", "helper.py")
    bench.write(f"print('begins')\n{program}\n")
    again = bench.replay(sys.executable, "program.py", options=options)
    assert again.code == 125
    assert "could not start" in again.report["reasons"][0]
    assert again.report["divergences"] == []


def test_a_program_that_is_not_there_is_skipped_by_bisect(recorded) -> None:
    bench, _, _ = recorded
    done = bench.run(BIN / "agent-replay", "replay", "latest", "--expect", "ok", "--", "python", "gone.py")
    assert done.returncode == 125
    assert "gone.py" in sentence(done.stderr)


def test_a_failure_to_import_after_calls_is_a_finding(recorded) -> None:
    bench, _, _ = recorded
    again = bench.replay_changed(f"{PROGRAM}\nimport nowhere_to_be_found\n")
    assert again.code == 1


def test_a_recorded_failure_to_import_is_replayed(bench) -> None:
    bench.record("import nowhere_to_be_found\n", code=1)
    assert bench.replay().code == 0
    assert bench.replay_changed("import nowhere_else\n").code == 1


def test_a_python_that_ignores_its_environment_is_refused(recorded) -> None:
    bench, _, _ = recorded
    again = bench.replay("python", "-I", "program.py")
    assert again.code == 2
    assert "-I" in sentence(again.err)
