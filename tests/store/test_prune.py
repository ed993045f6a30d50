"""The spool is bounded, and nothing that was recorded is lost by it."""

from __future__ import annotations

import os

import pytest

from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.store import find, select
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.prune import prune
from otel_agent_replay.store.spool import Spool

NOTHING_KEPT = {"kept_ns": 0, "kept_bytes": 0}


def record(home, name="agent.py", crossings=3):
    recorder = home.recorder()
    run = recorder.start(name)
    for ordinal in range(crossings):
        run.model(ordinal, b"x" * 400 + str(ordinal).encode())
    run.readings([1, 2])
    run.end()
    recorder.close()
    return run


def clear(home, *, load=True, **kept) -> list[str]:
    with home.engine() as engine:
        if load:
            load_spool(engine, Spool(home.spool))
        return prune(engine, Spool(home.spool), **kept)


def test_a_fresh_file_stays(home):
    record(home)
    assert clear(home) == []
    assert len(home.files()) == 1


def test_a_loaded_file_goes_after_a_day_and_its_run_stays(home):
    run = record(home)
    path = home.files()[0]
    expected = find.load(home, run.run_id)
    os.utime(path, ns=(1, path.stat().st_mtime_ns - 25 * 3600 * 10**9))
    assert clear(home) == [path.name]
    assert home.files() == []
    assert find.load(home, run.run_id) == expected


def test_the_oldest_files_go_first_where_the_spool_is_too_large(home):
    runs = [record(home, f"agent-{number}.py") for number in range(4)]
    paths = home.files()
    size = sum(path.stat().st_size for path in paths)
    assert clear(home, kept_bytes=size) == []
    removed = clear(home, kept_bytes=size - paths[0].stat().st_size - 1)
    assert removed == [path.name for path in paths[:2]]
    assert [find.load(home, run.run_id).complete for run in runs] == [True] * 4


def test_what_is_not_loaded_stays(home):
    record(home)
    assert clear(home, load=False, **NOTHING_KEPT) == []
    assert len(home.files()) == 1


def test_what_is_still_written_stays(home):
    recorder = home.recorder()
    run = recorder.start()
    run.model(0)
    assert clear(home, **NOTHING_KEPT) == []
    run.end()
    recorder.close()
    assert len(clear(home, **NOTHING_KEPT)) == 1


def test_a_damaged_file_stays(home):
    record(home)
    path = home.files()[0]
    data = bytearray(path.read_bytes())
    data[[item for item in scan(bytes(data)) if isinstance(item, Frame)][2].offset + 30] ^= 1
    path.write_bytes(data)
    assert clear(home, **NOTHING_KEPT) == []


def test_a_file_that_is_not_ours_stays(home):
    home.spool.mkdir(parents=True)
    odd = home.spool / "notes.spool"
    odd.write_bytes(b"somebody's notes")
    assert clear(home, **NOTHING_KEPT) == []
    assert odd.exists()


def test_a_tail_that_its_killed_writer_never_completed_does_not_keep_a_file(home):
    out, _ = home.process(1, 2, "--die").communicate(timeout=60)
    path = home.files()[0]
    with path.open("ab") as file:
        file.write(b"\xff")
    assert clear(home, **NOTHING_KEPT) == [path.name]
    assert len(find.load(home, out.split()[1]).crossings) == 2


def test_an_empty_file_goes(home):
    home.spool.mkdir(parents=True)
    (home.spool / "1-2-3.spool").touch()
    assert clear(home, **NOTHING_KEPT) == ["1-2-3.spool"]


@pytest.mark.parametrize(
    "rows",
    [
        *(f"frames WHERE frame = '{frame}'" for frame in ("crossing", "contents", "readings", "run")),
        "runs WHERE 1",
    ],
)
def test_a_file_stays_where_the_store_lacks_a_row_of_it(home, rows):
    record(home)
    with home.engine() as engine:
        load_spool(engine, Spool(home.spool))
        assert next(iter(engine.rows(f"SELECT count() FROM {rows}")))[0]
        engine.command(f"DELETE FROM {rows}")
        assert prune(engine, Spool(home.spool), **NOTHING_KEPT) == []
    assert len(home.files()) == 1


def test_files_that_share_a_run_go_together_or_not_at_all(home):
    out, _ = home.process(1, 1, "--fork").communicate(timeout=60)
    parent, child = home.files()
    old = child.stat().st_mtime_ns - 25 * 3600 * 10**9
    with home.engine() as engine:
        load_spool(engine, Spool(home.spool))
        whole = child.read_bytes()
        child.write_bytes(whole + b"more that is not loaded")
        os.utime(parent, ns=(old, old))
        assert prune(engine, Spool(home.spool)) == []
        child.write_bytes(whole)
        assert sorted(prune(engine, Spool(home.spool))) == [parent.name, child.name]
        assert next(iter(select.tallies(engine))).crossings == 3
    assert out
