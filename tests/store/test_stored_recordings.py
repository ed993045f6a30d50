"""Recordings of every version there was: each still loads, shows and replays.

    python tests/store/test_stored_recordings.py vN

writes `expected.json` for a new one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_agent_replay.recording import names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.store import find

FOLDER = Path(__file__).parent / "recordings"
VERSIONS = sorted(path.name for path in FOLDER.glob("v*"))
COMMAND = "import sys; sys.argv[0] = 'agent-replay'; from otel_agent_replay.cli import main; main()"


def told(recording) -> dict[str, object]:
    """What a recording holds, as far as it is to stay readable for ever."""
    return {
        "run_id": recording.run.run_id,
        "end": recording.run.end,
        "outcome": recording.run.outcome,
        "readings": sum(len(reading.values) for reading in recording.readings),
        "order": len(recording.order),
        "crossings": [
            {
                "position": str(crossing.position),
                "kind": crossing.kind,
                "end": crossing.end,
                "seq": crossing.seq,
                "input": digest(crossing.input),
                "outcome": digest(crossing.outcome),
                "attempts": [
                    [digest(each.request.body), digest(b"".join(each.chunks)), len(each.chunks)]
                    for each in crossing.attempts
                ],
                "attributes": crossing.attributes,
            }
            for crossing in recording.crossings
        ],
    }


def digest(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return sha256(data).hexdigest()[:16]


def read(version: str):
    """The recording, by its id."""
    frames = [item for item in scan((FOLDER / version / "recording.spool").read_bytes()) if isinstance(item, Frame)]
    (recording,) = assemble(frames).values()
    return recording


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "COV_"))}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**kept, "OTEL_AGENT_REPLAY_HOME": str(home)}, cwd=home, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(params=VERSIONS)
def version(request) -> str:
    return request.param


@pytest.fixture
def placed(version, home) -> Path:
    """A home that holds the recording, and its program."""
    home.prepare()
    home.spool.mkdir()
    shutil.copy(FOLDER / version / "recording.spool", home.spool / "1-1-00000000.spool")
    shutil.copy(FOLDER / version / "agent.py", home.path)
    return home.path


def test_this_version_has_a_recording() -> None:
    assert [f"v{number}" for number in range(1, names.SCHEMA_VERSION + 1)] == VERSIONS


def test_it_is_read_as_it_was(version) -> None:
    recording = read(version)
    assert recording.complete, recording.missing
    assert json.loads(json.dumps(told(recording))) == json.loads((FOLDER / version / "expected.json").read_text())


def test_it_comes_through_the_store(version, home, placed) -> None:
    home.load()
    (path,) = home.files()
    path.unlink()
    place = SimpleNamespace(spool=home.spool, dsn=home.dsn)
    assert find.load(place, find.find_run(place, "latest")) == read(version)


def test_it_shows_and_replays(version, placed) -> None:
    expected = json.loads((FOLDER / version / "expected.json").read_text())
    shown = json.loads(command(placed, "show", "latest", "--json").stdout)
    assert shown["run"]["run_id"] == expected["run_id"]
    replayed = command(placed, "replay", "latest", "--", sys.executable, "agent.py")
    assert replayed.returncode == 0, replayed.stderr
    assert len(replayed.stdout.splitlines()) == 6


if __name__ == "__main__":
    name = sys.argv[1]
    (FOLDER / name / "expected.json").write_text(json.dumps(told(read(name)), indent=1) + "\n")
