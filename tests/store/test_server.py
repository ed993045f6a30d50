"""A ClickHouse server in place of the embedded engine: the same schema, the same answers, over HTTP."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.errors import StoreError
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.store import find, listing, schema, select
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row

if TYPE_CHECKING:
    from pathlib import Path


def ship(dsn: str, path: Path) -> list[Frame]:
    """Deliver a spool file, as a Collector would."""
    frames = [item for item in scan(path.read_bytes()) if isinstance(item, Frame)]
    with Engine(dsn) as engine:
        engine.use_database(create=False)
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in frames for piece in landing_row(frame)))
    return frames


def test_a_server_is_read_as_the_embedded_store_is(home, server):
    with Engine(server) as engine:
        assert not engine.embedded
        assert {each.state for each in schema.status(engine)} == {"pending"}
        with pytest.raises(StoreError, match=r"run `agent-replay schema apply`"):
            schema.require(engine)
        applied = schema.apply(engine)
        assert [each.name for each in applied] == [
            "landing",
            "spans",
            "crossings",
            "contents",
            "runs",
            "readings",
            "retention",
        ]
        schema.require(engine)
    recorder = home.recorder()
    run = recorder.start("shipped.py")
    run.model(0, b'{"messages":[{"content":"nul \x00 \xf0\x9f\x98\x80"}]}' * 100, answer=b"\xff\x00" * 500)
    run.readings([1, 2.5])
    run.tool(0, "x" * 100_000)
    run.end()
    recorder.close()
    frames = ship(server, home.files()[0])
    ship(server, home.files()[0])
    expected = assemble(frames)[run.run_id]
    local = home.recorder()
    beside = local.start("local.py")
    beside.end()
    local.close()
    home.files()[0].unlink()
    place = SimpleNamespace(spool=home.spool, dsn=server)
    assert find.find_run(place, run.run_id[:9]) == run.run_id
    assert find.load(place, run.run_id) == expected
    assert find.load_for_replay(place, run.run_id).recordings == {run.run_id: expected}
    with listing.opened(place) as runs:
        assert runs.problems == []
        assert [(tally.name, tally.crossings) for tally in runs.tallies()] == [("local.py", 0), ("shipped.py", 2)]
        assert [tally.name for tally in runs.tallies(limit=1)] == ["local.py"]
        assert runs.count() == 2
    with Engine(server) as engine:
        engine.use_database(create=False)
        assert [tally.name for tally in select.tallies(engine)] == ["shipped.py"]  # nothing was uploaded
        landed = next(iter(engine.rows("SELECT count() FROM otel_traces")))[0]
        assert landed == 2 * len(frames)
    assert len(home.files()) == 1


def test_a_server_that_is_not_there_does_not_hide_the_spool(home):
    recorder = home.recorder()
    recorder.start("local.py").end()
    recorder.close()
    place = SimpleNamespace(spool=home.spool, dsn="clickhouse://127.0.0.1:1/traces")
    with listing.opened(place) as runs:
        assert [tally.name for tally in runs.tallies()] == ["local.py"]
        assert runs.problems[0].startswith("The store at 127.0.0.1:1/traces does not answer (")
    home.files()[0].unlink()
    with pytest.raises(StoreError, match="does not answer"), listing.opened(place):
        pass
