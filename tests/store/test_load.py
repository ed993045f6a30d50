"""Loading: nothing is lost, nothing counted twice, and what comes out is what went in."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from base64 import b64encode

import pytest

from otel_agent_replay.recording import codec, names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import NoteKind
from otel_agent_replay.store import select
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row
from otel_agent_replay.store.spool import Spool, index

TOTALS = {
    "crossings": "SELECT count() FROM crossings",
    "contents": "SELECT count() FROM contents",
    "readings": "SELECT count() FROM readings",
    "runs": "SELECT count() FROM runs FINAL",
    "spans": "SELECT count() FROM spans FINAL",
    "tokens": "SELECT sum(input_tokens) FROM crossings",
}


def totals(engine) -> dict[str, int]:
    return {name: int(next(iter(engine.rows(sql)))[0]) for name, sql in TOTALS.items()}


def losses(engine, run_id: str) -> list[str]:
    return [str(item) for item in select.everything(engine, run_id) if isinstance(item, select.Loss)]


def everything(home):
    """A run with every kind of frame; its recorder and itself, still open."""
    recorder = home.recorder()
    run = recorder.start("everything.py")
    long = b'{"model":"m1","messages":[{"role":"user","content":"%s"}]}' % (b"once upon a time " * 200)
    run.model(0, long)
    run.model(1, long.replace(b"}]}", b'},{"role":"user","content":"and then"}]}'))
    run.readings([1.5, 2, "x"])
    run.tool(0, {"q": "x"}, outcome=codec.encode({"found": [1, 2]}))
    run.tool(1, {"q": "y"}, outcome=codec.encode(ValueError("no")), raised=True)
    run.note(NoteKind.UNCAPTURED)
    run.model(2, finish=False)
    return recorder, run


def from_spool(home) -> dict:
    return assemble(item for path in home.files() for item in scan(path.read_bytes()) if isinstance(item, Frame))


def from_store(home, run_id: str):
    with home.engine() as engine:
        return assemble(select.frames(engine, run_id), run_id)[run_id]


def test_what_comes_out_is_what_went_in(home):
    recorder, run = everything(home)
    run.end(exit_status=3, exception={"type": "builtins:ValueError", "message": "no"})
    recorder.close()
    assert home.load().problems == []
    stored, expected = from_store(home, run.run_id), from_spool(home)[run.run_id]
    assert stored == expected
    assert len(stored.crossings) == 5
    assert stored.run.ended_ns == run.run.ended_ns


def test_counts_from_the_store_are_those_from_the_spool(home):
    recorder, run = everything(home)
    run.end()
    unfinished = recorder.start("unfinished.py", entry={"kind": "function", "within": {"run": run.run_id}})
    unfinished.model(0)
    recorder.start("replay.py", entry={"kind": "process", "origin": run.run_id}).end()
    recorder.close()
    home.load()
    (file,) = Spool(home.spool).files()
    expected = {run_id: counter.tally for run_id, counter in index(file).runs.items()}
    with home.engine() as engine:
        stored = list(select.tallies(engine, replays=True))
        assert {tally.run_id: tally for tally in stored} == expected
        assert [tally.started_ns for tally in stored] == sorted((t.started_ns for t in stored), reverse=True)
        assert [tally.name for tally in select.tallies(engine)] == ["unfinished.py", "everything.py"]
        assert [tally.name for tally in select.tallies(engine, limit=1)] == ["unfinished.py"]
        assert select.count(engine) == 2
        assert select.within(engine, run.run_id) == [unfinished.run_id]


def test_loading_twice_and_delivering_twice_change_no_count(home):
    recorder, run = everything(home)
    run.end()
    recorder.close()
    first = home.load()
    assert first.frames > 10
    assert home.load().frames == 0
    with home.engine() as engine:
        before = totals(engine)
        engine.command("TRUNCATE TABLE loaded")  # as if the process had been killed before it wrote how far it was
        again = load_spool(engine, Spool(home.spool))
        assert again.frames == first.frames
        assert totals(engine) == before
        assert next(iter(select.tallies(engine))).input_tokens == 10


def test_a_beginning_that_arrives_late_never_replaces_its_end(home):
    recorder, run = everything(home)
    run.end()
    recorder.close()
    frames = [item for item in scan(home.files()[0].read_bytes()) if isinstance(item, Frame)]
    with home.engine() as engine:
        for frame in [*(f for f in frames if f.ended_ns), *(f for f in frames if not f.ended_ns)]:
            engine.insert(LANDING, LANDING_COLUMNS, b"".join(landing_row(frame)))
        engine.command("OPTIMIZE TABLE frames FINAL")
        assert assemble(select.frames(engine, run.run_id))[run.run_id] == from_spool(home)[run.run_id]
        assert next(iter(engine.rows("SELECT countIf(form = 0) FROM spans FINAL")))[0] == 1  # what never ended


def test_a_payload_that_a_hop_cut_gives_way_to_the_whole_one(home):
    recorder, run = everything(home)
    run.end()
    recorder.close()
    frames = [item for item in scan(home.files()[0].read_bytes()) if isinstance(item, Frame)]
    cut = []
    for frame in frames:
        attributes = dict(frame.attributes)
        for name, value in attributes.items():
            if name == names.PAYLOAD or name.startswith(names.CONTENT_PREFIX):
                attributes[name] = value[: len(value) // 2]
        cut.append(
            Frame(
                frame.kind,
                frame.trace_id,
                frame.span_id,
                frame.parent_span_id,
                frame.name,
                frame.started_ns,
                frame.ended_ns,
                attributes,
            )
        )
    with home.engine() as engine:
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in cut for piece in landing_row(frame)))
        (tally,) = select.tallies(engine)
        assert tally.flaws > 1
        assert assemble(select.frames(engine, run.run_id))[run.run_id].missing
        for order in (frames, cut):  # and the cut ones once more, last
            engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in order for piece in landing_row(frame)))
        assert assemble(select.frames(engine, run.run_id))[run.run_id] == from_spool(home)[run.run_id]
        (tally,) = select.tallies(engine)
        assert tally.flaws == 1  # the note


def test_payloads_are_exact(home):
    recorder = home.recorder()
    run = recorder.start("exact.py")
    image = random.Random(7).randbytes(15 << 20)
    bodies = [
        b'{"messages":[{"content":"' + b64encode(image) + b'"}]}',
        image[: 2 << 20],
        b'{"messages":[{"content":"nul \x00 control \x01\x1f\x7f astral \xf0\x9f\x98\x80 escape \\ud800"}]}',
        b"\xff\xfe not utf-8 \x00",
        bytes(range(256)) * 300,
    ]
    for ordinal, body in enumerate(bodies):
        run.model(ordinal, body, answer=body[:70_000][::-1])
    values = ["\ud800 lone", "nul \0", 2**63, -(2**70), math.nan, math.inf, "😀", {"k": [1.0, 1, True, None]}]
    for ordinal, value in enumerate(values):
        run.tool(ordinal, codec.encode(value), outcome=codec.encode(value))
    run.readings([codec.encode(value) for value in values])
    run.end()
    recorder.close()
    loaded = home.load()
    assert loaded.bytes == home.files()[0].stat().st_size > 20 << 20
    found = from_store(home, run.run_id)
    assert found.missing == []
    assert found.complete
    wire = [crossing for crossing in found.crossings if crossing.wire]
    assert [crossing.attempts[0].request.body for crossing in wire] == bodies
    assert [b"".join(crossing.attempts[0].chunks) for crossing in wire] == [body[:70_000][::-1] for body in bodies]
    tools = [crossing for crossing in found.crossings if not crossing.wire]
    assert repr([codec.decode(crossing.input) for crossing in tools]) == repr(values)
    assert repr([codec.decode(crossing.outcome) for crossing in tools]) == repr(values)
    assert repr([codec.decode(value) for value in found.readings[0].values]) == repr(values)


def test_times_are_exact_to_the_nanosecond(home):
    recorder = home.recorder()
    run = recorder.start("times.py", started_ns=1_795_985_269_123_456_789)
    run.end()
    recorder.close()
    home.load()
    with home.engine() as engine:
        (tally,) = select.tallies(engine)
    assert (tally.started_ns, tally.ended_ns) == (1_795_985_269_123_456_789, run.run.ended_ns)


def test_a_run_is_loaded_while_it_is_still_written(home):
    recorder = home.recorder()
    run = recorder.start("growing.py")
    with home.engine() as engine:
        for ordinal in range(5):
            run.model(ordinal)
            assert load_spool(engine, Spool(home.spool)).frames > 0
            (tally,) = select.tallies(engine)
            assert (tally.crossings, tally.ended_ns) == (ordinal + 1, 0)
        run.end()
        load_spool(engine, Spool(home.spool))
        (tally,) = select.tallies(engine)
        assert (tally.crossings, tally.model_calls, tally.ended_ns) == (5, 5, run.run.ended_ns)
        assert select.runs_of_files(engine, [home.files()[0].name]) == {run.run_id}
    recorder.close()


def test_what_follows_damage_is_kept_and_the_damage_is_told(home):
    recorder, run = everything(home)
    other = recorder.start("other.py")
    run.end()
    other.end()
    later = recorder.start("later.py")
    later.end()
    recorder.close()
    path = home.files()[0]
    data = bytearray(path.read_bytes())
    hit = [item for item in scan(bytes(data)) if isinstance(item, Frame) and item.kind is FrameKind.CROSSING][1]
    data[hit.offset + 40] ^= 0xFF
    path.write_bytes(data)
    (problem,) = home.load().problems
    assert problem.startswith(f"{path} is damaged: ")
    assert home.load().problems == []
    with home.engine() as engine:
        (sentence,) = losses(engine, run.run_id)
        assert (
            sentence
            == f"the spool file {path.name}: {hit.size} bytes at {hit.offset} are damaged (a checksum is wrong)"
        )
        assert losses(engine, later.run_id) == []
        flaws = {tally.name: tally.flaws for tally in select.tallies(engine)}
        assert flaws == {"everything.py": 2, "other.py": 0, "later.py": 0}
        # its input is there all the same, so it is not lost but unfinished
        assert len(assemble(select.frames(engine, run.run_id))[run.run_id].crossings) == 5


def test_a_file_of_a_newer_version_is_loaded_once_this_one_is_upgraded(home):
    recorder, run = everything(home)
    run.end()
    recorder.close()
    path = home.files()[0]
    whole = path.read_bytes()
    frames = [item for item in scan(whole) if isinstance(item, Frame)]
    from otel_agent_replay.recording.layout import encode

    frames[3].attributes[names.SCHEMA] = names.SCHEMA_VERSION + 1
    path.write_bytes(
        whole[: frames[3].offset] + b"".join(encode(frames[3])) + whole[frames[3].offset + frames[3].size :]
    )
    loaded = home.load()
    assert loaded.frames == 3
    assert "newer version" in loaded.problems[0]
    path.write_bytes(whole)  # which is what an upgrade amounts to
    home.load()
    assert from_store(home, run.run_id) == from_spool(home)[run.run_id]


LOADER = """
import sys
from pathlib import Path
from otel_agent_replay.store import load, schema, select
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.spool import Spool
load.BATCH_BYTES = int(sys.argv[2])
home = Path(sys.argv[1])
with Engine(f"chdb://{home / 'store'}", patience=60) as engine:
    schema.require(engine)
    print("opened", flush=True)
    load.load_spool(engine, Spool(home / "spool"))
    print("runs", sum(1 for _ in select.tallies(engine)), flush=True)
"""


def loader(home, batch: int = 1 << 24) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", LOADER, str(home.path), str(batch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_loader_that_is_killed_loses_and_doubles_nothing(home):
    recorder = home.recorder()
    ids = []
    for number in range(30):
        run = recorder.start(f"agent-{number}.py")
        for ordinal in range(6):
            run.model(ordinal)
        run.end()
        ids.append(run.run_id)
    recorder.close()
    chance = random.Random(3)
    killed = 0
    home.prepare()
    for _ in range(4):
        process = loader(home, batch=4000)
        assert process.stdout.readline() == "opened\n"
        time.sleep(chance.uniform(0.0, 0.4))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate(timeout=60)
    assert killed
    home.load()
    with home.engine() as engine:
        assert totals(engine) | {"contents": 0} == {
            "crossings": 180,
            "contents": 0,
            "readings": 0,
            "runs": 30,
            "spans": 210,
            "tokens": 900,
        }
        assert {
            tally.run_id: (tally.crossings, tally.ended_ns > 0) for tally in select.tallies(engine)
        } == dict.fromkeys(ids, (6, True))


def test_several_agents_are_recorded_while_several_readers_load(home):
    agents = [home.process(3, 8, "--pause", "0.01", *(["--die"] if number == 0 else [])) for number in range(3)]
    home.prepare()
    readers = [loader(home) for _ in range(3)]
    printed = [agent.communicate(timeout=60)[0].splitlines() for agent in agents]
    assert [agent.returncode for agent in agents] == [9, 0, 0]
    for reader in readers:
        out, err = reader.communicate(timeout=120)
        assert reader.returncode == 0, err
        assert "runs" in out
    home.load()
    crossings = {tuple(line.split()[1:]) for lines in printed for line in lines if line.startswith("crossing")}
    ended = {line.split()[1] for lines in printed for line in lines if line.startswith("end")}
    assert len(crossings) == 72
    with home.engine() as engine:
        stored = {tuple(row) for row in engine.rows("SELECT run_id, span_id FROM crossings WHERE finished")}
        assert stored == crossings
        assert next(iter(engine.rows("SELECT count() FROM crossings")))[0] == 72
        assert {tally.run_id for tally in select.tallies(engine) if tally.ended_ns} == ended
        assert len(list(select.tallies(engine))) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_the_engine(home):
    with home.engine() as engine:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                list(engine.rows("SELECT 1"))
                os.write(write, b"answered")
            except Exception as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert "opened by another process" in os.read(read, 1000).decode()
        os.close(read)
        assert next(iter(engine.rows("SELECT 1")))[0] == 1
