"""What people type, and what the machine says of itself, are given back elsewhere."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

PROGRAMS = {
    "typed": """
import sys
print(input("name? "))
print(repr(sys.stdin.readline()), input())
for line in sys.stdin:
    print("line", line.strip())
    if "stop" in line:
        break
print(repr(sys.stdin.read(3)), repr(sys.stdin.buffer.read()))
try:
    input("more? ")
except EOFError as error:
    print(error)
""",
    "machine": """
import getpass, os, pathlib, platform, socket, sys, threading
print(os.getlogin() if sys.argv[1:] == ["tty"] else "", getpass.getuser(), os.getuid(), os.getppid(), os.getpid())
print(socket.gethostname(), platform.node(), os.uname(), os.uname().sysname, platform.platform())
print(os.cpu_count(), os.sched_getaffinity(0), os.getloadavg(), threading.get_native_id())
print(pathlib.Path.home(), os.path.expanduser("~/x"), pathlib.Path("~/y").expanduser(), sys.argv)
""",
}


def test_what_was_typed_is_given_back(bench) -> None:
    bench.write(PROGRAMS["typed"])
    typed = "Ann\nsecond\nthird\none\nstop\nabcdef\n"
    recorded = bench.run(BIN / "opentelemetry-instrument", sys.executable, "program.py", input=typed)
    assert recorded.returncode == 0, recorded.stderr
    assert "line stop" in recorded.stdout
    replayed = bench.replay(stdin=subprocess.DEVNULL)
    assert (replayed.code, replayed.out) == (0, recorded.stdout), replayed.err


def test_the_machine_is_that_of_the_recording(bench) -> None:
    out = bench.record(PROGRAMS["machine"])
    assert bench.runs()
    bench.environment |= {"HOME": "/nowhere", "LOGNAME": "somebody", "USER": "somebody"}
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert not replayed.report["new_readings"] and not replayed.report["unread"]


def _typing(command: list[str], answers: list[tuple[str, str]], **options) -> tuple[int, str]:
    """Run a command at a terminal, and type each answer when its question is there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, **options)
    os.close(theirs)
    shown, waiting, end = "", list(answers), time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 4096).decode()
                except OSError:
                    break
            elif process.poll() is not None:
                break
            if waiting and waiting[0][0] in shown:
                os.write(ours, waiting.pop(0)[1].encode())
        return process.wait(10), shown
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


ASKS = """
import getpass
name = input("name? ")
print("hello", name)
secret = getpass.getpass("word? ")
print(len(secret) > 3)
"""


def test_what_was_typed_at_a_terminal(bench) -> None:
    bench.write(ASKS)
    command = [str(BIN / "opentelemetry-instrument"), sys.executable, "program.py"]
    code, shown = _typing(
        command, [("name? ", "Ann\n"), ("word? ", "hunter2-hunter2\n")], cwd=bench.folder, env=bench.env
    )
    assert code == 0 and "hello Ann" in shown and "hunter2" not in shown, shown
    spooled = b"".join(path.read_bytes() for path in (bench.folder / "home" / "spool").rglob("*") if path.is_file())
    assert b"Ann" in spooled and b"hunter2" not in spooled
    replayed = bench.replay(stdin=subprocess.DEVNULL)
    assert replayed.code == 0 and "hello Ann" in replayed.out, replayed.err


def test_switched_off_it_is_left_to_the_machine(bench) -> None:
    bench.environment["OTEL_AGENT_REPLAY_CAPTURE"] = "none"
    (bench.folder / "a.txt").write_text("one")
    bench.record("import subprocess, sys\nprint(open('a.txt').close(), subprocess.call('true'))")
    replayed = bench.replay()
    assert replayed.code == 0 and replayed.report["crossings"] == 0


@pytest.mark.parametrize("text", ["files", "process,everything"])
def test_a_word_without_meaning_is_said(bench, text: str) -> None:
    bench.environment["OTEL_AGENT_REPLAY_CAPTURE"] = text
    done = bench.run(BIN / "agent-replay", "runs")
    assert done.returncode == 2 and "OTEL_AGENT_REPLAY_CAPTURE" in done.stderr
