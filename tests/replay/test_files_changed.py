"""Files in a replay of a changed program, and what settings leave out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def notes(bench) -> list:
    """The capture manifest of the latest run."""
    done = bench.run(BIN / "agent-replay", "show", "latest", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["notes"]


WRITES = """
import pathlib, subprocess
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/a.txt").write_text("one")
print(pathlib.Path("out/a.txt").read_text(), pathlib.Path("out/a.txt").stat().st_size)
print(sorted(p.name for p in pathlib.Path("out").iterdir()))
"""


def test_changed_code_reads_what_it_writes_now(bench) -> None:
    bench.record(WRITES)
    replayed = bench.replay_changed(WRITES.replace('"one"', '"three"').replace("out/a.txt", "out/b.txt"))
    assert replayed.out == "three 5\n['b.txt']\n", replayed.err
    assert sorted(path.name for path in (bench.folder / "out").iterdir()) == ["a.txt"]
    assert (bench.folder / "out" / "a.txt").read_text() == "one"
    replayed = bench.replay_changed(WRITES.replace('"one"', '"three"'))
    assert replayed.out == "three 5\n['a.txt']\n", replayed.err
    assert (bench.folder / "out" / "a.txt").read_text() == "one"


def test_a_file_that_was_never_read_is_a_divergence(bench) -> None:
    (bench.folder / "a.txt").write_text("a")
    (bench.folder / "b.txt").write_text("b")
    program = "print(open('a.txt').read())\n"
    bench.record(program)
    replayed = bench.replay_changed(program + "print(open('b.txt').read())\n")
    assert replayed.code == 125 and replayed.out == "a\n"
    assert [kind for kind, _ in replayed.divergences] == ["exhausted"]


def test_what_it_does_not_write_any_more_cannot_be_read(bench) -> None:
    bench.record(WRITES)
    replayed = bench.replay_changed(WRITES.replace('pathlib.Path("out/a.txt").write_text("one")', ""))
    assert replayed.code == 125 and "has not now" in replayed.err, replayed.err


def test_patterns_say_what_is_recorded(bench) -> None:
    (bench.folder / "prompts").mkdir()
    (bench.folder / "prompts" / "p.txt").write_text("old")
    (bench.folder / "data.txt").write_text("old")
    bench.environment["OTEL_AGENT_REPLAY_FILES_EXCLUDE"] = "prompts/*, *.log"
    program = """
import pathlib
print(open("prompts/p.txt").read(), open("data.txt").read())
with open("a.log", "a") as log:
    log.write("x")
"""
    assert bench.record(program) == "old old\n"
    (bench.folder / "prompts" / "p.txt").write_text("new")
    (bench.folder / "data.txt").write_text("new")
    del bench.environment["OTEL_AGENT_REPLAY_FILES_EXCLUDE"]
    replayed = bench.replay()
    assert replayed.out == "new old\n", replayed.err
    assert (bench.folder / "a.log").read_text() == "xx"


def test_a_large_file_is_read_where_it_is_while_it_is_the_same(bench) -> None:
    bench.environment["OTEL_AGENT_REPLAY_FILE_LIMIT"] = "1K"
    (bench.folder / "large.txt").write_text("x" * 2000)
    out = bench.record("print(len(open('large.txt').read()))")
    assert "large.txt" in json.dumps(notes(bench))
    assert bench.replay().out == out
    (bench.folder / "large.txt").write_text("y" * 3000)
    replayed = bench.replay()
    assert replayed.code == 125 and "OTEL_AGENT_REPLAY_FILE_LIMIT" in replayed.err, replayed.err


def test_content_is_masked_and_stored_once(bench) -> None:
    key = "sk-proj-" + "aB3" * 14
    (bench.folder / "a.env").write_text(f"KEY={key}\n" + "filler words " * 5000)
    bench.record("for _ in range(20): text = open('a.env').read()\nprint(text.count('filler'))")
    spooled = b"".join(path.read_bytes() for path in (bench.folder / "home" / "spool").rglob("*") if path.is_file())
    assert key.encode() not in spooled and len(spooled) < 300_000
    assert bench.replay().code == 0


@pytest.mark.parametrize("device", ["/dev/urandom", "/proc/meminfo"])
def test_devices_are_noted(bench, device: str) -> None:
    bench.record(f"open({device!r}, 'rb').read(8)")
    assert device in json.dumps(notes(bench))


def test_sqlite_is_noted(bench) -> None:
    bench.record("import sqlite3\nsqlite3.connect('a.db').close()\nsqlite3.connect(':memory:').close()")
    (note,) = notes(bench)
    assert "a.db" in str(note)
    assert bench.replay().code == 0


def test_a_run_of_an_earlier_version_leaves_files_to_the_machine(bench) -> None:
    """Such a run has no list of what it captured."""
    from otel_agent_replay.boundary.session import captured

    assert captured({}) == frozenset() and captured({"captured": "all"}) == frozenset()
    assert captured({"captured": ["process"]}) == {"process"}


TOOL = """
import os, subprocess
from otel_agent_replay import boundary

@boundary("tool", "edit")
def edit(path, text):
    with open(path, "w") as file:
        file.write(text)
    os.makedirs("made", exist_ok=True)
    return subprocess.check_output(["sh", "-c", "echo $$"], text=True)

with open("a.txt", "w") as file:
    file.write("mine")
print(open("a.txt").read(), edit("a.txt", "the tool's"), open("a.txt").read(), edit("b.txt", "b"), open("b.txt").read())
print(sorted(os.listdir(".")), os.path.exists("made"))
"""


def test_what_a_tool_has_written_is_read_as_it_was(bench) -> None:
    """The code of a tool does not run in a replay, so what it wrote is not there."""
    out = bench.record(TOOL)
    for name in ("a.txt", "b.txt"):
        (bench.folder / name).unlink()
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_in_a_block(bench) -> None:
    """A replay inside of a process keeps the files of its block from the disk, and of no other code."""
    bench.record(
        "from otel_agent_replay import run\n@run('agent')\ndef agent():\n"
        "    open('x.txt', 'w').write('written')\n    return open('x.txt').read() + open('in.txt').read()\n"
        "open('in.txt', 'w').write('-first')\nprint(agent())"
    )
    (bench.folder / "in.txt").write_text("-second")
    (bench.folder / "x.txt").unlink()
    run = next(each["run_id"] for each in bench.runs() if each["name"] == "agent")
    program = f"""
from otel_agent_replay import replay, run
def agent():
    open('x.txt', 'w').write('written')
    return open('x.txt').read() + open('in.txt').read()
with replay({run!r}):
    print(agent())
open('y.txt', 'w').write('y')
print(open('in.txt').read())
"""
    bench.write(program, "block.py")
    done = bench.run(sys.executable, "block.py")
    assert done.stdout == "written-first\n-second\n", done.stderr
    assert not (bench.folder / "x.txt").exists() and (bench.folder / "y.txt").exists()
