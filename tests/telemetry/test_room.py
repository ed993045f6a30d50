"""A spool that has reached its limit: recording stops, says so, and slows nobody down."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.telemetry import room, spool
from otel_agent_replay.telemetry.room import Room
from otel_agent_replay.telemetry.spool import SpoolWriter

BIN = Path(sys.executable).parent

PROGRAM = """
import os, time
import otel_agent_replay as replay

@replay.boundary("tool", "step")
def step(number):
    return os.urandom(5000).hex()

began = time.perf_counter()
for number in range(1000):
    step(number)
print(time.perf_counter() - began)
"""


def test_room_is_looked_for_seldom(tmp_path: Path, monkeypatch) -> None:
    looks = []
    monkeypatch.setattr(Room, "_held", lambda self: looks.append(1) or sum(taken))
    taken: list[int] = []
    found = Room(tmp_path, 100_000_000)
    while found.take(1000):
        taken.append(1000)
    assert 90_000_000 < sum(taken) <= 100_000_000
    assert len(looks) < 100
    assert not found.take(1000)
    assert len(looks) < 100, "a full spool is not looked at again at once"
    assert found.take(1000, vital=True)


def test_what_is_vital_looks_no_more_often(tmp_path: Path, monkeypatch) -> None:
    """A server whose spool is full begins and ends runs all the time."""
    looks = []
    monkeypatch.setattr(Room, "_held", lambda _: looks.append(1) or 900)
    monkeypatch.setattr(room, "FULL_FOR", 3600.0)
    found = Room(tmp_path, 1000)
    assert all(found.take(200, vital=True) for _ in range(1000))
    assert len(looks) == 1
    assert not found.take(200)
    assert not found.take(room.RESERVE, vital=True), "the reserve has an end"
    assert len(looks) == 1


def test_what_is_vital_is_so_behind_a_large_write_too(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, lambda _: None, limit=1000)
    failed: list[str] = []
    begin, ended = threading.Event(), [b"e" * 200]

    def make() -> list[bytes]:
        assert begin.wait(10)
        return [b"x" * 900]

    writer.write_behind(make, 900, lambda: failed.append("large"))
    writer.write(ended, lambda: failed.append("end"), vital=True)
    begin.set()
    writer.close()
    assert not failed
    assert writer.path is not None
    assert writer.path.read_bytes().endswith(ended[0])


def test_a_quota_that_is_used_up_may_have_room_later(tmp_path: Path, monkeypatch) -> None:
    writer = SpoolWriter(tmp_path, lambda _: None)
    failed: list[int] = []

    def full(*_: object) -> int:
        raise OSError(errno.EDQUOT, "quota")

    with monkeypatch.context() as patch:
        patch.setattr(spool, "_open", full)
        writer.write([b"one"], lambda: failed.append(1))
    writer.write([b"two"], lambda: failed.append(2))
    writer.close()
    assert failed == [1]


def test_no_limit_is_never_looked_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Room, "_held", lambda _: 1 / 0)
    assert Room(tmp_path, 0).take(1 << 50)


def test_there_is_room_again_once_files_are_gone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(room, "FULL_FOR", 0.05)
    (tmp_path / "old.spool").write_bytes(b"x" * 2000)
    found = Room(tmp_path, 1000)
    assert not found.take(10)
    (tmp_path / "old.spool").unlink()
    time.sleep(0.06)
    assert found.take(10)


def test_at_the_limit_the_run_says_so_and_the_program_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    script = tmp_path / "agent.py"
    script.write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env |= {"OTEL_AGENT_REPLAY_HOME": str(home), "OTEL_AGENT_REPLAY_SPOOL_LIMIT": "1M"}
    line = [BIN / "opentelemetry-instrument", sys.executable, script]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    (path,) = (home / "spool").glob("*.spool")
    assert path.stat().st_size < 1.3e6
    (recording,) = assemble(item for item in scan(path.read_bytes()) if isinstance(item, Frame)).values()
    assert recording.run.ended_ns
    assert 20 < len(recording.crossings) < 400
    (note,) = [note for note in recording.notes if "limit" in note.what and "recording stopped" in note.what]
    assert note.incomplete
    assert "OTEL_AGENT_REPLAY_SPOOL_LIMIT" in note.what
    runs = subprocess.run([BIN / "agent-replay", "runs"], env=env, capture_output=True, text=True, timeout=90)
    assert "no" in runs.stdout.split("\n")[1].split()
