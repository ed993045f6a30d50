"""Stores that earlier schemas made are brought up to date in place: nothing is lost, and nothing counted twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_agent_replay.recording import names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.store import find, holds, retention, schema, select
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, binary_row, landing_row

RECORDINGS = Path(__file__).parent / "recordings"
BEFORE_FRAMES = 9
"""The last version that kept a run's frames in four tables."""


@pytest.fixture
def old(home) -> Path:
    """A store of that version, in which nothing is."""
    home.path.mkdir()
    with Engine(home.dsn) as engine:
        apply(engine, BEFORE_FRAMES)
    return home.path


def apply(engine: Engine, last: int) -> None:
    """Apply what is pending, as a package would that knows no later version than this one."""
    engine.use_database(create=True)
    for migration in schema.migrations(embedded=True):
        if migration.version <= last:
            for statement in migration.statements():
                engine.command(statement)
            if migration.version:
                said = binary_row(migration.name, migration.digest)
                row = migration.version.to_bytes(4, "little") + said + (0).to_bytes(8, "little")
                engine.insert("schema_versions", ("version", "name", "digest", "applied"), row)


def land(engine: Engine, frames: list[Frame]) -> None:
    engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in frames for piece in landing_row(frame)))


def frames_in(path: Path) -> list[Frame]:
    return [item for item in scan(path.read_bytes()) if isinstance(item, Frame)]


def recorded(home) -> tuple[str, list[Frame]]:
    """A run with every kind of frame, one crossing of which never ended, and its frames."""
    recorder = home.recorder()
    run = recorder.start("before.py")
    run.model(0, b'{"messages":[{"role":"user","content":"%s"}]}' % (b"once upon a time " * 200))
    run.readings([1.5, 2, "x"])
    run.tool(0, {"q": "x"})
    run.model(1, finish=False)
    run.end()
    recorder.close()
    (file,) = home.files()
    frames = frames_in(file)
    file.unlink()
    return run.run_id, frames


def state(engine: Engine) -> list[object]:
    counts = [
        int(next(iter(engine.rows(f"SELECT count() FROM {table}")))[0])
        for table in ("crossings", "contents", "readings")
    ]
    return [*counts, list(select.tallies(engine)), list(select.tallies(engine, limit=5)), select.count(engine)]


def test_a_store_of_the_four_tables_holds_what_it_held(home, old):
    run_id, frames = recorded(home)
    whole = next(frame for frame in frames if frame.kind is FrameKind.CROSSING)
    attributes = {**whole.attributes, names.PAYLOAD: str(whole.attributes[names.PAYLOAD])[:-1]}
    cut = replace(whole, attributes=attributes)
    with Engine(home.dsn) as engine:
        engine.use_database(create=False)
        for batch in (frames, [cut], frames):
            land(engine, batch)
        holds.hold(engine, run_id, "why not")
    with home.engine() as engine:  # which brings it up to date
        assert {each.state for each in schema.status(engine)} == {"applied"}
        assert assemble(select.frames(engine, run_id))[run_id] == assemble(frames)[run_id]
        assert select.only_run(engine, run_id[:32])[0] == run_id
        before = state(engine)
        assert before[:3] == [3, before[1], before[2]]
        assert [(tally.crossings, tally.flaws) for tally in before[3]] == [(3, 0)]
        assert before[3] == before[4]
        land(engine, [cut, *frames])  # which come late
        assert state(engine) == before
        assert list(holds.held_runs(engine)) == [run_id]
        assert not retention.plan(engine, retention.Policy(0, 0), set(), now_ns=frames[-1].ended_ns + 10**18).doomed
    place = SimpleNamespace(spool=home.spool, dsn=home.dsn)
    assert find.load(place, find.find_run(place, run_id[:32])) == assemble(frames)[run_id]


@pytest.mark.parametrize("killed_in", [10, 11])
def test_an_upgrade_that_was_killed_is_finished_by_the_next(home, old, killed_in):
    run_id, frames = recorded(home)
    with Engine(home.dsn) as engine:
        engine.use_database(create=False)
        land(engine, frames)
        apply(engine, killed_in - 1)
        (migration,) = (each for each in schema.migrations(embedded=True) if each.version == killed_in)
        for statement in migration.statements():
            engine.command(statement)  # and killed before the version was written
    with home.engine() as engine:
        assert assemble(select.frames(engine, run_id))[run_id] == assemble(frames)[run_id]
        assert state(engine)[0] == 3


@pytest.mark.parametrize("version", sorted(path.name for path in RECORDINGS.glob("v*")))
def test_a_recording_of_every_version_is_in_it_still(home, old, version):
    home.spool.mkdir()
    file = shutil.copy(RECORDINGS / version / "recording.spool", home.spool / "1-1-00000000.spool")
    frames = frames_in(file)
    file.unlink()
    with Engine(home.dsn) as engine:
        engine.use_database(create=False)
        land(engine, frames)
    place = SimpleNamespace(spool=home.spool, dsn=home.dsn)
    with home.engine():
        pass
    (run_id,) = assemble(frames)
    assert find.load(place, find.find_run(place, run_id[:32])) == assemble(frames)[run_id]
