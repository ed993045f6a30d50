"""Commands that are started by calls of the system: recorded, and not started in a replay."""

from __future__ import annotations

import pytest

WATCHED = """
import os, sys
STARTED = []
def _watch(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec", "os.kill"):
        STARTED.append(event)
sys.addaudithook(_watch)
TOOL = os.path.abspath("tool")
"""
TOLD = """
print("started", len(STARTED), file=sys.stderr)
"""
TOOL = """#!/bin/sh
echo "$$" >>ran
[ "$1" = quiet ] || [ "$1" = wait ] || echo "$$ $*"
[ "$1" = hear ] && while read line; do echo "heard $line"; done
[ "$1" = wait ] && exec sleep 30
[ "$1" = mode ] && echo "mode $MODE"
exit "${2:-0}"
"""

PROGRAMS = {
    "posix_spawn": """
pid = os.posix_spawn(TOOL, [TOOL, "quiet", "3"], os.environ)
print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.posix_spawnp("sh", ["sh", "-c", "exit 4"], dict(os.environ, MODE="x"), setpgroup=0)
print(pid, os.waitpid(pid, 0))
pid = os.posix_spawn(TOOL, ("another name", "wait"), os.environ)
print(os.waitpid(pid, os.WNOHANG))
os.kill(pid, 15)
print(os.wait() == (pid, 15))
for path in ("no-such-program-here", "/etc/passwd"):
    try:
        os.posix_spawn(path, [path], os.environ)
    except OSError as error:
        print(repr(error), error.filename)
for wrong in ((TOOL, [], os.environ), (TOOL, [TOOL], None)):
    try:
        print(os.waitpid(os.posix_spawn(*wrong), 0))
    except (TypeError, ValueError) as error:
        print(repr(error))
""",
    "spawn": """
print(os.spawnl(os.P_WAIT, TOOL, TOOL, "quiet", "3"), os.spawnv(os.P_WAIT, TOOL, [TOOL, "quiet"]))
print(os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "kill -9 $$"), os.spawnvp(os.P_WAIT, "no-such-program-here", ["no"]))
env = dict(os.environ, CODE="6")
print(os.spawnle(os.P_WAIT, "/bin/sh", "sh", "-c", "exit $CODE", env), os.spawnvpe(os.P_WAIT, "sh", ["sh"], env))
pid = os.spawnvp(os.P_NOWAIT, "sh", ["sh", "-c", "exit 5"])
print(pid, os.waitpid(pid, 0))
pid = os.spawnlpe(os.P_NOWAIT, TOOL, TOOL, "wait", env)
os.kill(pid, 9)
print(os.waitpid(pid, 0) == (pid, 9))
try:
    os.spawnv(os.P_WAIT, TOOL, [])
except ValueError as error:
    print(repr(error))
""",
    "pipes": """
def speak(read):
    r, w = os.pipe()
    inner, outer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, inner, 0), (os.POSIX_SPAWN_DUP2, w, 1), (os.POSIX_SPAWN_DUP2, 1, 2),
               (os.POSIX_SPAWN_CLOSE, outer), (os.POSIX_SPAWN_CLOSE, r)]
    pid = os.posix_spawn(TOOL, [TOOL, "hear"], os.environ, file_actions=actions)
    os.close(inner), os.close(w)
    os.write(outer, b"one\\ntwo\\n")
    os.close(outer)
    seen = read(r)
    return seen, os.waitpid(pid, 0) == (pid, 0)

def by_number(r):
    seen = b""
    while data := os.read(r, 1000):
        seen += data
    os.close(r)
    return seen

def by_file(r):
    with os.fdopen(r) as file:
        return file.read()

def by_line(r):
    with open(r, "rb", closefd=False) as file:
        lines = list(file)
    os.close(r)
    return lines

def by_selector(r):
    import selectors
    with selectors.DefaultSelector() as selector:
        selector.register(r, selectors.EVENT_READ)
        while not selector.select(10):
            pass
    return by_number(r)

for read in (by_number, by_file, by_line, by_selector):
    print(speak(read))
""",
    "files": """
with open("out.txt", "wb") as out:
    out.write(b"before\\n")
    out.flush()
    pid = os.posix_spawn(TOOL, [TOOL, "mode"], {"MODE": "y"}, file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)])
    print(os.waitpid(pid, 0) == (pid, 0))
    out.write(b"after\\n")
print(open("out.txt").read())
actions = [(os.POSIX_SPAWN_OPEN, 1, "own.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
           (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
os.waitpid(os.posix_spawn(TOOL, [TOOL, "hear"], os.environ, file_actions=actions), 0)
print(open("own.txt").read())
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_command_is_not_started_in_a_replay(bench, name: str) -> None:
    tool = bench.write(TOOL, "tool")
    tool.chmod(0o755)
    out = bench.record(WATCHED + PROGRAMS[name] + TOLD)
    (row,) = bench.runs()
    assert row["complete"]
    plain = bench.run(*("env", "PYTHONHASHSEED=0", "python3", "program.py"))
    assert plain.stderr.strip() != "started 0"
    for made in ("tool", "ran", "out.txt", "own.txt"):
        (bench.folder / made).unlink(missing_ok=True)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert "started 0" in replayed.err
    assert not replayed.report["new_readings"] and not replayed.report["unread"]
    assert not (bench.folder / "out.txt").exists() and not (bench.folder / "ran").exists()


def test_another_command_is_told(bench) -> None:
    tool = bench.write(TOOL, "tool")
    tool.chmod(0o755)
    program = WATCHED + "print(os.spawnl(os.P_WAIT, TOOL, TOOL, 'quiet', '3'))" + TOLD
    bench.record(program)
    (bench.folder / "ran").unlink()
    changed = bench.replay_changed(program.replace("'3'", "'4'"))
    assert changed.code == 125 and "diverged" in changed.err
    assert not (bench.folder / "ran").exists()


ELSEWHERE = """
import os, socket
ours, its = socket.socketpair()
pid = os.posix_spawn("/bin/echo", ["echo", "hello"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, its.fileno(), 1)])
its.close()
ours.recv(10)
os.waitpid(pid, 0)
"""


def test_output_that_goes_elsewhere_is_said_not_to_be_recorded(bench) -> None:
    bench.record(ELSEWHERE)
    (row,) = bench.runs()
    assert not row["complete"]
    assert "output of process:echo" in bench.replay().err


UNCAPTURED = {
    "pty.spawn": """
import pty
pty.spawn(["echo", "hello"])
""",
    "forkpty": """
import os
pid, number = os.forkpty()
if not pid:
    os.execlp("echo", "echo", "hello")
os.read(number, 100)
os.waitpid(pid, 0)
""",
    "fork": """
import os
if not (pid := os.fork()):
    os.execv("/bin/echo", ["echo", "hello"])
os.waitpid(pid, 0)
""",
}


@pytest.mark.parametrize("name", UNCAPTURED)
def test_what_a_copy_of_the_program_becomes_is_said_not_to_be_recorded(bench, name: str) -> None:
    bench.record(UNCAPTURED[name])
    (row,) = bench.runs()
    assert not row["complete"]
    assert "not captured when recorded: process echo started by" in bench.replay().err
