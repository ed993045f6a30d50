"""Recorded programs that fork, exit and die while they are shipped: every call that returned arrives, once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import decode

BIN = Path(sys.executable).parent
KINDS = ["grpc", "http/protobuf"]

PREAMBLE = """
import ctypes, multiprocessing, os, signal, sys, time
import otel_agent_replay as replay

FILE = os.environ["RETURNED"]

@replay.boundary("tool", "step")
def step(who, number):
    return f"{who} {number} " + "x" * 300

def work(who, count=5):
    for number in range(count):
        got = step(who, number)
        with open(FILE, "a") as file:  # what stands there has returned to the program
            file.write(got[:40].partition(" x")[0] + "\\n")
"""


def eventually(holds, seconds: float = 40.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never held"
        time.sleep(0.05)


def program(home, body: str) -> Path:
    path = home.path.parent / "agent.py"
    path.write_text(PREAMBLE + body)
    return path


def start(home, body: str) -> subprocess.Popen[str]:
    home.environ["RETURNED"] = str(home.path.parent / "returned")
    line = [BIN / "opentelemetry-instrument", sys.executable, program(home, body)]
    return subprocess.Popen(
        line,
        env=home.env,
        cwd=home.path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def returned(home) -> list[str]:
    path = home.path.parent / "returned"
    return path.read_text().splitlines() if path.exists() else []


def arrived(spans) -> dict:
    return assemble(decode(span.SerializeToString()) for span in spans)


def outcomes(spans) -> list[str]:
    """What each call that arrived has returned; a call that arrived twice under two ids is there twice."""
    found = []
    for recording in arrived(spans).values():
        found += [str(each.outcome).partition(" x")[0] for each in recording.crossings if each.outcome is not None]
    return sorted(found)


def shipped(home) -> bool:
    return not home.files()


CASES = {
    "fork": """
pid = os.fork()
work("child" if pid == 0 else "parent")
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
work("after")
""",
    "prefork": """
pids = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        work(f"worker-{number}", 10)
        sys.exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
""",
    "multiprocessing fork": """
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(f"child-{n}",)) for n in range(3)]
    for child in children: child.start()
    for child in children: child.join()
    work("parent")
""",
    "multiprocessing spawn": """
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=work, args=("child",))
    child.start(); child.join()
    work("parent")
""",
    "multiprocessing forkserver": """
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=work, args=("child",))
    child.start(); child.join()
    work("parent")
""",
    "os._exit": 'work("a")\nos._exit(3)\n',
    "sys.exit": 'work("a")\nsys.exit(4)\n',
    "raise": 'work("a")\nraise ValueError("no")\n',
    "SIGTERM": 'work("a")\nos.kill(os.getpid(), signal.SIGTERM)\n',
    "SIGINT": 'work("a")\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n'
    "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n",
    "SIGKILL": 'work("a")\nos.kill(os.getpid(), signal.SIGKILL)\n',
    "SIGSEGV": 'work("a")\nctypes.string_at(0)\n',
    "SIGABRT": 'work("a")\nos.abort()\n',
}


@pytest.mark.parametrize("case", CASES)
def test_every_call_that_returned_arrives_once(home, servers, case: str) -> None:
    kind = KINDS[len(case) % 2]
    server = servers(kind)
    home.to(server, kind)
    process = start(home, CASES[case])
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err or case in ("raise", "SIGINT"), err[-2000:]
    eventually(lambda: shipped(home))
    assert returned(home)
    assert outcomes(server.inbox.spans) == sorted(returned(home))
    counts = home.command("status")
    assert (counts["waiting"], counts["refused"]) == (0, 0)
    assert counts["recorded"] == counts["shipped"]
    assert counts["spans"] == len(server.inbox.ids)


def test_a_short_program_is_shipped_when_it_has_ended(home, servers) -> None:
    server = servers("grpc")
    home.to(server, "grpc").environ["OTEL_AGENT_REPLAY_EXIT_WAIT"] = "20"
    process = start(home, 'work("a")\n')
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
    assert outcomes(server.inbox.spans) == sorted(returned(home))


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_says_nothing_holds_up_nobody(home, servers, lib, kind: str) -> None:
    server = servers(kind, judge=lambda *_: lib.Said(silent=20))
    home.to(server, kind).environ["OTEL_AGENT_REPLAY_EXIT_WAIT"] = "0.5"
    body = 'began = time.monotonic()\nwork("a", 50)\nprint(time.monotonic() - began)\n'
    process = start(home, body + "import atexit\natexit.register(lambda: print(time.monotonic()))\n")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert float(out.split()[0]) < 5
    assert len(returned(home)) == 50
    assert home.command("status", code=0)["waiting"] > 0


def test_the_recorded_process_imports_no_client_and_has_no_thread_of_ours(home, servers) -> None:
    server = servers("grpc")
    home.to(server, "grpc")
    body = """
work("a")
import threading
print([name for name in ("grpc", "requests", "subprocess") if name in sys.modules and name not in BEFORE])
print(len(sys._current_frames()))
"""
    process = start(home, "BEFORE = ()\n" + body.replace('"subprocess"', '"urllib3"'))
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["[]", "1"], err


def test_nothing_of_the_shipping_is_recorded(home, servers) -> None:
    server = servers("http/protobuf")
    home.to(server, "http/protobuf")
    start(home, 'work("a", 3)\ntime.sleep(1.5)\nwork("b", 3)\n').communicate(timeout=60)
    eventually(lambda: shipped(home))
    (recording,) = arrived(server.inbox.spans).values()
    assert {each.position.key for each in recording.crossings} == {"tool:step"}
    assert not recording.notes


def test_what_was_recorded_while_nobody_listened_ships_with_the_next_process(home, servers) -> None:
    server = servers("grpc")
    port = server.port
    server.close()
    home.to(server, "grpc").environ["OTEL_AGENT_REPLAY_EXIT_WAIT"] = "0"
    _, err = start(home, 'work("first")\ntime.sleep(2)\nwork("second")\n').communicate(timeout=60)
    assert "nothing gets through" in err
    assert not shipped(home)
    again = servers("grpc", port=port)
    start(home, 'work("third")\n').communicate(timeout=60)
    eventually(lambda: shipped(home))
    assert outcomes(again.inbox.spans) == sorted(returned(home))


def test_what_was_recorded_without_a_receiver_stays_until_it_is_asked_for(home, servers) -> None:
    start(home, 'work("quiet")\n').communicate(timeout=60)
    assert len(home.files()) == 1
    server = servers("grpc")
    home.to(server, "grpc")
    start(home, 'work("loud")\n').communicate(timeout=60)
    eventually(lambda: len(home.files()) == 1)
    assert "quiet 0" not in outcomes(server.inbox.spans)
    said = home.command("ship")
    assert said["waiting"] == 0
    assert said["shipped"] > 0
    assert outcomes(server.inbox.spans) == sorted(returned(home))
    assert not home.files()


def test_no_process_is_left_behind(home, servers) -> None:
    server = servers("grpc")
    home.to(server, "grpc")
    start(home, 'work("a")\n').communicate(timeout=60)
    eventually(lambda: shipped(home))
    eventually(lambda: not shippers(home), 15)


def test_a_shipper_that_was_killed_is_replaced(home, servers) -> None:
    server = servers("grpc")
    home.to(server, "grpc")
    process = start(home, 'for n in range(60):\n    work(f"round-{n}", 2)\n    time.sleep(0.1)\n')
    eventually(lambda: shippers(home))
    for pid in shippers(home):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    eventually(lambda: shipped(home))
    assert outcomes(server.inbox.spans) == sorted(returned(home))


def shippers(home) -> list[int]:
    """Processes that ship this home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"shipping import worker" in line and json.dumps(str(home.path)).encode() in line:
                found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def nothing_stays(home):
    """Whatever a test leaves running of its own home ends with it."""
    yield
    for pid in shippers(home):
        os.kill(pid, signal.SIGKILL)


def test_what_the_program_has_open_is_not_held_open(home, servers) -> None:
    """A server that is started again at once finds its port free."""
    server = servers("grpc")
    home.to(server, "grpc").environ["OTEL_AGENT_REPLAY_EXIT_WAIT"] = "0"
    body = """
import socket
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
os.set_inheritable(listener.fileno(), True)
work("a")
time.sleep(1.5)
print(listener.getsockname()[1])
"""
    out, err = start(home, body).communicate(timeout=60)
    assert shippers(home), err
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(out))) != 0


def test_what_lies_beside_the_program_stands_in_for_no_library(home, servers) -> None:
    for name in ("requests", "grpc"):
        (home.path.parent / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    server = servers("http/protobuf")
    home.to(server, "http/protobuf")
    start(home, 'work("a")\n').communicate(timeout=60)
    eventually(lambda: shipped(home))
    assert outcomes(server.inbox.spans) == sorted(returned(home))
