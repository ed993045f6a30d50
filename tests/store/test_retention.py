"""Retention: by run and whole, never what is held, recorded or needed; nothing else is touched."""

from __future__ import annotations

import os
import time

import pytest

from otel_agent_replay.errors import UnknownRun
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.values import End
from otel_agent_replay.store import find, holds, select
from otel_agent_replay.store.expiry import expire
from otel_agent_replay.store.prune import prune
from otel_agent_replay.store.retention import Policy
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row
from otel_agent_replay.store.spool import Spool

DAY = 24 * 3600 * 10**9
POLICY = Policy(7 * DAY, 90 * DAY)
AT_ONCE = Policy(0, 0)
TABLES = ("runs", "crossings", "readings", "contents", "spans")
OTHERS = (
    "INSERT INTO otel_traces (Timestamp, TraceId, SpanId, SpanName) VALUES (now64(9) - toIntervalDay({days:UInt32}), "
)
NOW = time.time_ns()


def record(home, name, age: float, *, exit_status=0, finish=True, recorder=None, **entry) -> str:
    """A run that ended, or was left, so many days ago; in a file of its own unless a recorder is given."""
    own = recorder or home.recorder()
    at = NOW - int(age * DAY)
    run = own.start(name, started_ns=at, entry={"kind": "process", "argv": ["python", name], **entry})
    run.readings([1, 2])
    run.tool(0, name * 100)
    run.model(0, b'{"model":"m1","messages":[{"role":"user","content":"%s"}]}' % (name.encode() * 30))
    if finish:
        run.run.end, run.run.outcome, run.run.ended_ns = End.RETURNED, {"exit_status": exit_status}, at
        run.sink.run_ended(run.run)
    if recorder is None:
        own.close()
        path = max(home.files(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, ns=(at, at))
    return run.run_id


def ids(engine, table: str) -> set[str]:
    return {row[0] for row in engine.rows(f"SELECT DISTINCT run_id FROM {table} WHERE run_id != ''")}


def age_rows(home, run_id: str, age: float) -> None:
    """Have what the store holds of a run, which was recorded by the real clock, be so old."""
    with home.engine() as engine:
        rows = list(select.frames(engine, run_id))
        for table in ("runs", "frames", "spans"):
            engine.command(f"ALTER TABLE {table} DELETE WHERE run_id = '{run_id}' SETTINGS mutations_sync = 2")
        for frame in rows:
            frame.started_ns -= int(age * DAY)
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in rows for piece in landing_row(frame)))


def test_what_goes_and_what_stays(home):
    """One place with runs of every fate; each table and the spool hold exactly those that stay."""
    goes = {
        "succeeded": record(home, "succeeded.py", 8),
        "failed": record(home, "failed.py", 91, exit_status=1),
    }
    outer = record(home, "outer.py", 30)
    origin = record(home, "origin.py", 30)
    held_outer = record(home, "held_outer.py", 100)
    stays = {
        "young": record(home, "young.py", 6),
        "failed": record(home, "failed_young.py", 60, exit_status=3),
        "held": record(home, "held.py", 100, within={"run": held_outer}),
        "prelude of a held one": held_outer,
        "prelude of a kept one": outer,
        "inner": record(home, "inner.py", 3, within={"run": outer}),
        "origin": origin,
        "replay": record(home, "replay.py", 1, origin=origin),
        "killed": record(home, "killed.py", 30, finish=False),
    }
    goes["replay that failed"] = record(home, "failed_replay.py", 8, exit_status=1, origin=stays["young"])
    stays["inner of a held one"] = record(home, "inner_held.py", 90, within={"run": stays["held"]})
    goes["inner of a kept one"] = record(home, "inner_old.py", 9, within={"run": stays["failed"]})
    home.load()
    with home.engine() as engine:
        holds.hold(engine, stays["held"], "a fixture")
    before = {run_id: find.load(home, run_id) for run_id in stays.values()}
    files = {path.name for path in home.files()}

    planned = expire(home, POLICY, dry_run=True)
    assert set(planned.plan.doomed) == set(goes.values())
    assert (planned.plan.failed, planned.plan.held, planned.plan.needed) == (1, 2, 3)
    assert planned.plan.bytes > 4 * 800
    assert len(planned.files) == 4
    assert {path.name for path in home.files()} == files
    with home.engine() as engine:
        every = {*goes.values(), *stays.values()}
        assert {table: every ^ ids(engine, table) for table in TABLES} == {table: set() for table in TABLES}

    done = expire(home, POLICY)
    assert done.plan.doomed == planned.plan.doomed
    assert [file.name for file in done.files] == [file.name for file in planned.files]
    assert {path.name for path in home.files()} == files - {file.name for file in done.files}
    with home.engine() as engine:
        assert {table: ids(engine, table) - set(stays.values()) for table in TABLES} == {t: set() for t in TABLES}
        assert select.gone(engine) == set(goes.values())
        left = next(
            iter(
                engine.rows(
                    "SELECT count() FROM loaded_runs WHERE file IN {f:Array(String)}",
                    {"f": [f.name for f in done.files]},
                )
            )
        )
        assert left[0] == 0
    for run_id, recording in before.items():
        assert find.load(home, run_id) == recording
    for run_id in goes.values():
        with pytest.raises(UnknownRun):
            find.find_run(home, run_id)
    again = expire(home, POLICY)
    assert (again.plan.doomed, again.files) == ({}, [])


def test_a_run_that_is_still_recorded_is_never_removed(home):
    recorder = home.recorder()
    request = record(home, "request.py", 50, recorder=recorder)
    live = record(home, "live.py", 100, finish=False, recorder=recorder)
    result = expire(home, AT_ONCE)
    assert set(result.plan.doomed) == {request}  # it ended, though its process has not
    assert result.files == []
    assert len(find.load(home, live).crossings) == 2
    recorder.close()
    assert expire(home, AT_ONCE).plan.doomed == {}  # somebody else may write of it: something came of it just now
    with home.engine() as engine:
        assert ids(engine, "runs") == {live}


def test_a_killed_run_counts_as_failed_and_its_time_runs_from_what_came_last(home):
    run_id = record(home, "killed.py", 0, finish=False)
    home.load()
    home.files()[0].unlink()
    age_rows(home, run_id, 89)
    assert expire(home, POLICY).plan.doomed == {}
    age_rows(home, run_id, 2)
    assert [run.failed for run in expire(home, POLICY).plan.doomed.values()] == [True]
    with home.engine() as engine:
        assert not ids(engine, "contents")


def test_what_arrives_after_a_run_was_removed_is_removed_too(home):
    run_id = record(home, "late.py", 8)
    frames = [item for item in scan(home.files()[0].read_bytes()) if isinstance(item, Frame)]
    assert set(expire(home, POLICY).plan.doomed) == {run_id}
    with home.engine() as engine:
        late = [frame for frame in frames if not frame.ended_ns]
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in late for piece in landing_row(frame)))
        assert ids(engine, "contents") == {run_id}
    assert set(expire(home, POLICY).plan.doomed) == {run_id}
    with home.engine() as engine:
        assert not any(ids(engine, table) for table in TABLES)


def test_a_file_that_a_kept_run_shares_stays_until_the_store_holds_that_one(home):
    recorder = home.recorder()
    old = record(home, "old.py", 8, recorder=recorder)
    young = record(home, "young.py", 1, recorder=recorder)
    recorder.close()
    result = expire(home, POLICY)
    assert (set(result.plan.doomed), result.files) == ({old}, [])
    with home.engine() as engine:
        assert len(prune(engine, Spool(home.spool), kept_ns=0, kept_bytes=0)) == 1
    assert find.load(home, young).complete


def test_spans_of_others_go_with_the_last_run_of_their_trace(home):
    gone, stays = record(home, "gone.py", 8), record(home, "stays.py", 1)
    home.load()
    with home.engine() as engine:
        for trace, days in ((gone[:32], 8), (stays[:32], 200), ("e" * 32, 91), ("f" * 32, 89)):
            engine.command(OTHERS + "{trace:String}, 'aaaaaaaaaaaaaaaa', 'GET /')", {"days": days, "trace": trace})
    expire(home, POLICY)
    with home.engine() as engine:
        traces = {row[0] for row in engine.rows("SELECT DISTINCT trace_id FROM spans WHERE run_id = ''")}
    assert traces == {"f" * 32}  # a span of 200 days in the trace of a young run is nobody's any more


def test_for_ever(home):
    record(home, "old.py", 3000)
    record(home, "failed.py", 3000, exit_status=1)
    assert expire(home, Policy(None, None)).plan.doomed == {}
    assert [run.failed for run in expire(home, Policy(None, 0)).plan.doomed.values()] == [True]


def test_a_place_where_nothing_was_recorded(home):
    assert expire(home, POLICY).plan.doomed == {}
    assert not home.path.exists()
