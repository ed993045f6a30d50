"""A view that fails in the middle of an insert, and a hop that cuts content: nothing is lost, nothing counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_agent_replay.errors import StoreError
from otel_agent_replay.recording import names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, FrameKind, scan
from otel_agent_replay.store import schema, select
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row
from otel_agent_replay.store.spool import Spool

TABLES = ("spans", "crossings", "contents", "runs", "readings")


@pytest.fixture(params=["embedded", "server"])
def engine(request, home):
    if request.param == "embedded":
        with home.engine() as engine:
            yield engine
        return
    with Engine(request.getfixturevalue("server")) as engine:
        schema.apply(engine)
        yield engine


def record(home) -> tuple[str, list[Frame]]:
    recorder = home.recorder()
    run = recorder.start("agent.py")
    for number in range(4):
        run.model(number, b'{"messages":[{"role":"user","content":"%d %s"}]}' % (number, b"a long text " * 40))
    run.readings([1, 2])
    run.end()
    recorder.close()
    return run.run_id, [item for item in scan(home.files()[-1].read_bytes()) if isinstance(item, Frame)]


def land(engine: Engine, frames: list[Frame]) -> None:
    engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in frames for piece in landing_row(frame)))


def counted(engine: Engine) -> list[list[tuple]]:
    asked = [f"SELECT count() FROM {table} FINAL" for table in TABLES]
    asked.append("SELECT sum(input_tokens), sum(output_tokens) FROM crossings FINAL")
    asked.append("SELECT sum(toUInt64OrZero(attributes['gen_ai.usage.output_tokens'])) FROM spans FINAL")
    return [[tuple(row) for row in engine.rows(sql)] for sql in asked]


@pytest.mark.parametrize("table", TABLES)
def test_a_view_that_failed_once_changes_no_count(home, engine, table: str):
    run_id, frames = record(home)
    engine.command(
        f"ALTER TABLE {table} ADD CONSTRAINT broken CHECK {'trace_id' if table == 'spans' else 'run_id'} = ''"
    )
    for _ in range(2):
        with pytest.raises(StoreError, match="broken"):
            land(engine, frames)
    engine.command(f"ALTER TABLE {table} DROP CONSTRAINT broken")
    land(engine, frames)
    once = counted(engine)
    assert once[TABLES.index("crossings")] == [(4,)]
    assert once[-2:] == [[(20, 28)], [(28,)]]
    land(engine, frames)
    assert counted(engine) == once
    assert assemble(select.frames(engine, run_id), run_id)[run_id] == assemble(frames, run_id)[run_id]


def test_a_spool_file_whose_load_failed_is_loaded_again(home):
    run_id, frames = record(home)
    with home.engine() as engine:
        engine.command("ALTER TABLE crossings ADD CONSTRAINT broken CHECK ordinal != 2")
        with pytest.raises(StoreError, match="broken"):
            load_spool(engine, Spool(home.spool))
        assert home.files()
        engine.command("ALTER TABLE crossings DROP CONSTRAINT broken")
        for _ in range(2):
            load_spool(engine, Spool(home.spool))
            assert counted(engine)[TABLES.index("crossings")] == [(4,)]
        assert assemble(select.frames(engine, run_id), run_id)[run_id] == assemble(frames, run_id)[run_id]


def cut(frame: Frame) -> Frame:
    """As behind a hop that limits the length of attributes."""
    held = {name: value[:50] if isinstance(value, str) else value for name, value in frame.attributes.items()}
    return replace(frame, attributes=held)


def flaws(engine: Engine) -> list[int]:
    """By the list of some runs, and by the list of all."""
    return [next(iter(select.tallies(engine, limit=limit))).flaws for limit in (9, None)]


def test_content_that_was_cut_is_told_by_the_list_until_it_comes_whole(home, engine):
    _, frames = record(home)
    contents = [frame for frame in frames if frame.kind is FrameKind.CONTENTS]
    others = [frame for frame in frames if frame.kind is not FrameKind.CONTENTS]
    assert contents
    land(engine, others)
    land(engine, contents[:1])
    assert flaws(engine) == [0, 0]
    land(engine, [cut(frame) for frame in contents])
    assert flaws(engine) == [len(contents) - 1] * 2
    for frame in contents:
        engine.command("OPTIMIZE TABLE contents FINAL")
        land(engine, [frame])
    assert flaws(engine) == [0, 0]
    land(engine, [cut(contents[0])])  # a late duplicate
    engine.command("OPTIMIZE TABLE contents FINAL")
    assert flaws(engine) == [0, 0]


def test_content_of_which_pieces_were_left_out_is_told_and_what_says_nothing_is_not(home, engine):
    _, frames = record(home)
    for frame in frames:
        if frame.kind is FrameKind.CONTENTS:
            del frame.attributes[names.PAYLOAD_LENGTH]  # as spans that were shipped before there was this
    land(engine, frames)
    assert flaws(engine) == [0, 0]
    frame = next(frame for frame in frames if frame.kind is FrameKind.CONTENTS)
    frame.attributes = {**frame.attributes, names.PAYLOAD_LENGTH: 10_000, names.CONTENT_PREFIX + "f" * 32: "other"}
    land(engine, [frame])
    assert flaws(engine) == [1, 1]
