"""The command: programs with planted leaks, and programs without any."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from otel_agent_replay.demo.stage import Stage
from otel_agent_replay.doctor import visit

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent

QUIET = """
import datetime, json, os, random, threading, time, uuid
import otel_agent_replay as replay

@replay.boundary("model", "ask")
def ask(prompt):
    return prompt.upper()

names = {"a", "b", "c"}
results = []
threads = [threading.Thread(target=lambda: results.append(len(ask("from a thread")))) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(ask(f"{datetime.datetime.now()} {uuid.uuid4()} {random.random()} {time.time()} {os.urandom(4)}"))
print(ask(" ".join(names)))
print(results)
"""

CLOCK = """
#include <Python.h>
#include <time.h>
static PyObject *now(PyObject *self, PyObject *none) { return PyFloat_FromDouble((double)time(NULL)); }
static PyObject *sum(PyObject *self, PyObject *none) { return PyFloat_FromDouble(5.0); }
static PyMethodDef methods[] = {{"now", now, METH_NOARGS, ""}, {"sum", sum, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastclock", "", -1, methods};
PyMODINIT_FUNC PyInit_fastclock(void) { return PyModule_Create(&module); }
"""


def planted() -> dict[str, int]:
    """Line of each leak in the planted program."""
    lines = (HERE / "planted.py").read_text().splitlines()
    return {name[1]: at for at, line in enumerate(lines, 1) if (name := re.search(r"# leak: ([\w-]+)", line))}


def found(told: dict, file: Path) -> set[tuple[str, int]]:
    """Kind and line of what is found in a file."""
    places = [(each["kind"], each["where"].rpartition(":")) for each in told["findings"]]
    return {(kind, int(line)) for kind, (name, _, line) in places if name == str(file)}


def test_planted_leaks_are_named_at_their_lines(doctor, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = doctor("--", "python", HERE / "planted.py", server.getsockname()[1], PLANTED="here")
    there = found(told, HERE / "planted.py")
    leaks = planted()
    assert len(leaks) == 8
    surely = {(kind, line) for kind, line in leaks.items() if kind not in ("threads", "garbage-collection")}
    assert surely <= there, told["findings"]
    garbage = {kind for kind, _ in there}
    assert "garbage-collection" in garbage
    assert {kind for kind, line in there} <= {*leaks, "order"}
    for each in told["findings"]:
        assert each["what"] and each["remedy"]
    assert (told["recordings"], told["replays"]) == (2, 10)


def test_a_race_of_threads_is_named_where_it_is(doctor, tmp_path: Path) -> None:
    program = tmp_path / "race.py"
    program.write_text(
        "import threading\nimport otel_agent_replay as replay\nraced = []\nready = threading.Barrier(3)\n"
        "@replay.boundary('model', 'ask')\ndef ask(prompt):\n    return 'yes'\n"
        "def race(number):\n    ready.wait()\n    for step in range(300_000):\n"
        "        if step % 1000 == 0:\n            raced.append(number)\n"
        "threads = [threading.Thread(target=race, args=(number,)) for number in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(ask(''.join(map(str, raced))))\n"
    )
    told = doctor("--", "python", program)
    assert ("threads", 12) in found(told, program), told["findings"]


@pytest.mark.parametrize("how", ["script", "module", "code", "package"])
def test_nothing_is_found_where_nothing_leaks(doctor, tmp_path: Path, how: str) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud" / "__init__.py").write_text("")
    (tmp_path / "loud" / "__main__.py").write_text(QUIET)
    line = {
        "script": ["quiet.py"],
        "module": ["-m", "quiet"],
        "package": ["-m", "loud"],
        "code": ["-c", "import quiet"],
    }[how]
    told = doctor("--times", "1", "--", "python", "-X", "utf8", *line)
    assert told["findings"] == []
    assert told["unexamined"] == ""
    assert (told["recordings"], told["replays"]) == (1, 5)


def test_a_program_that_begins_runs_is_looked_at_as_a_whole(doctor, tmp_path: Path) -> None:
    (tmp_path / "runs.py").write_text(
        "import otel_agent_replay as oar\n"
        "@oar.boundary('tool', 't')\ndef t(x):\n    return x + 1\n"
        "print('start', t(0))\nwith oar.run('job'):\n    print('in', t(1))\n"
        "    with oar.run('inner'):\n        print('inner', t(3))\nprint('end', t(2))\n"
    )
    told = doctor("--times", "1", "--", "python", "runs.py")
    assert {each["kind"] for each in told["findings"]} <= {"order"}, "runs that share a process are not held back"


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="openai is not installed")
def test_nothing_is_found_in_the_agent_of_the_demo(doctor, tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda _line: None)
    try:
        url = stage.start_server()
        told = doctor("--times", "1", "--", "python", "agent.py", OPENAI_BASE_URL=url, OPENAI_API_KEY="sk-demo-only")
    finally:
        stage.stop_server()
    assert told["findings"] == []


def test_leaks_of_modules_and_of_c_are_named(doctor, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if compiler is None or not headers.exists():
        pytest.skip("a C compiler and the headers of Python make the extension; they are not here")
    (tmp_path / "fastclock.c").write_text(CLOCK)
    line = [compiler, "-shared", "-fPIC", f"-I{headers.parent}", "-o", "fastclock.so", "fastclock.c"]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=120)
    (tmp_path / "helper.py").write_text("import fastclock\ndef stamp():\n    return fastclock.now(), fastclock.sum()\n")
    (tmp_path / "program.py").write_text("import helper\nprint(helper.stamp())\n")
    told = doctor("--times", "1", "--", "python", "program.py")
    (clock,) = [each for each in told["findings"] if each["kind"] == "clock"]
    assert (clock["where"], clock["library"]) == (f"{tmp_path / 'helper.py'}:3", "fastclock")
    assert "now()" in clock["what"]


def test_weak_references_are_named(doctor, tmp_path: Path) -> None:
    program = tmp_path / "weak.py"
    program.write_text(
        "import weakref\nclass Node:\n    def __init__(self): self.me = self\n"
        "left = []\nseen = weakref.WeakSet()\n"
        "def note(ref): left.append(1)\n"
        "kept = []\n"
        "for number in range(1000):\n    node = Node()\n    seen.add(node)\n    kept.append(weakref.ref(node, note))\n"
        "print(len(seen))\n"
    )
    told = doctor("--times", "1", "--", "python", program)
    assert {("garbage-collection", 11), ("garbage-collection", 12)} <= found(told, program), told["findings"]


def test_what_a_recording_noted_is_told_with_remedies(doctor, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = tmp_path / "calls.py"
        program.write_text(f"import socket\nsocket.create_connection(('127.0.0.1', {port})).close()\n")
        env = {**os.environ, "OTEL_AGENT_REPLAY_HOME": str(tmp_path / "home"), "OTEL_TRACES_EXPORTER": "none"}
        subprocess.run(
            [BIN / "opentelemetry-instrument", sys.executable, program], env=env, check=True, cwd=tmp_path, timeout=60
        )
    told = doctor("latest")
    (finding,) = told["findings"]
    assert (finding["kind"], finding["where"]) == ("socket", f"{program}:2")
    assert "boundary" in finding["remedy"]
    assert re.fullmatch(r"[0-9a-f]{32}-[0-9a-f]{16}", told["run_id"])


def test_bad_input_gets_one_sentence(doctor, tmp_path: Path) -> None:
    assert "give a command" in doctor(code=2)["stderr"]
    assert "give a command" in doctor("latest", "--", "python", "x.py", code=2)["stderr"]
    assert "no recording" in doctor("--", "true", code=125)["stderr"]
    assert "no program nowhere.py" in doctor("--", "python", "nowhere.py", code=125)["stderr"]
    assert "latest" in doctor("latest", code=128)["stderr"]


def test_what_files_and_hash_seeds_leave_in_a_manifest_is_told_as_such(doctor, tmp_path: Path) -> None:
    program = tmp_path / "reads.py"
    program.write_text(
        "import sqlite3\nimport otel_agent_replay as replay\n"
        "open('/dev/urandom', 'rb').read(4)\nopen('large').read()\nsqlite3.connect('data.db').close()\n"
    )
    (tmp_path / "large").write_text("x" * 100)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONHASHSEED"))}
    env |= {"OTEL_AGENT_REPLAY_HOME": str(tmp_path / "home"), "OTEL_AGENT_REPLAY_FILE_LIMIT": "50"}
    line = [BIN / "opentelemetry-instrument", "--traces_exporter", "none", sys.executable, program]
    subprocess.run(line, env=env, check=True, cwd=tmp_path, timeout=60)
    told = doctor("latest")
    assert sorted((each["kind"], each["where"].rpartition(":")[2]) for each in told["findings"]) == [
        ("device", "3"),
        ("file", "4"),
        ("file", "5"),
    ], told["findings"]


ENDLESS = """
import os, time
import otel_agent_replay as replay

@replay.boundary("tool", "ask")
def ask():
    return 1

def turn_for_ever():
    while True:
        pass

print(ask())
if "OTEL_AGENT_REPLAY_HANDOVER" in dict(os.environ):
    turn_for_ever()
"""


def test_a_replay_that_does_not_end_is_ended(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    monkeypatch.setattr(visit, "_LEAST_PATIENCE", 5.0)
    monkeypatch.setattr(visit, "_TIMES_SLOWER", 0.0)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    found = visit.examine([sys.executable, program.name], 1, lambda _: None)
    (why,) = {each.what for each in found.findings if "did not end" in each.what}
    assert "within 5 s" in why and re.search(r"stood at endless.py:1[01] turn_for_ever < endless.py:15 <module>", why)
