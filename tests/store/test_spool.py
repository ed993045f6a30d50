"""Reading spool files that are being written, were cut, or are not ours."""

from __future__ import annotations

import os
import shutil

import pytest

from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.recording import layout, names
from otel_agent_replay.recording.frames import Damage, Frame, Harm, scan
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.store import spool as spool_module
from otel_agent_replay.store.spool import Spool, index


def recorded(home, runs: int = 1, crossings: int = 4) -> list[str]:
    """Runs in one file, written and closed; their ids."""
    recorder = home.recorder()
    ids = []
    for number in range(runs):
        run = recorder.start(f"agent-{number}.py")
        for ordinal in range(crossings):
            run.model(ordinal)
        run.end()
        ids.append(run.run_id)
    recorder.close()
    return ids


def only_file(home):
    (file,) = Spool(home.spool).files()
    return file


def test_there_may_be_no_spool(home):
    assert Spool(home.spool).files() == []


def test_a_file_is_live_as_long_as_its_writer_is(home):
    recorder = home.recorder()
    run = recorder.start()
    assert is_held(home.files()[0])
    assert index(only_file(home)).runs[run.run_id].tally.live
    run.end()
    recorder.close()
    assert not is_held(home.files()[0])
    assert not index(only_file(home)).runs[run.run_id].tally.live


def test_counts_are_those_of_what_was_recorded(home):
    recorder = home.recorder()
    run = recorder.start("counts.py")
    for ordinal in range(3):
        run.model(ordinal)
    run.model(3, finish=False)
    run.tool(0, {"q": "x"})
    run.readings([1, 2, 3])
    run.note(incomplete=False)
    run.note(incomplete=True)
    run.end(exit_status=3)
    recorder.close()
    tally = index(only_file(home)).runs[run.run_id].tally
    assert (tally.name, tally.entry, tally.crossings, tally.model_calls) == ("counts.py", "process", 5, 4)
    assert (tally.input_tokens, tally.output_tokens, tally.notes, tally.flaws) == (15, 21, 2, 1)
    assert tally.failed
    assert tally.started_ns == run.run.started_ns
    assert tally.ended_ns == run.run.ended_ns


@pytest.mark.parametrize("window", [1, 7, 64, 1000, 1 << 20])
def test_a_window_of_any_size_gives_the_same_frames(home, monkeypatch, window):
    recorded(home, runs=2)
    path = home.files()[0]
    data = bytearray(path.read_bytes())
    middle = [item for item in scan(bytes(data)) if isinstance(item, Frame)][7]
    data[middle.offset + 20] ^= 0xFF
    data += b"\x80\x01torn"
    path.write_bytes(data)
    monkeypatch.setattr(spool_module, "WINDOW", window)
    expected, found = list(scan(bytes(data))), list(only_file(home).scan())
    assert [(type(i), i.offset) for i in found] == [(type(i), i.offset) for i in expected]
    assert [i for i in found if isinstance(i, Frame)] == [i for i in expected if isinstance(i, Frame)]
    assert [i.harm for i in found if isinstance(i, Damage)] == [i.harm for i in expected if isinstance(i, Damage)]
    assert str(middle.offset) in next(i.why for i in found if isinstance(i, Damage))


def test_reading_goes_on_where_it_ended(home):
    recorder = home.recorder()
    run = recorder.start()
    run.model(0)
    before = only_file(home)
    run.model(1)
    run.end()
    recorder.close()
    after = only_file(home)
    whole = list(after.scan())
    assert [*before.scan(), *after.scan(before.size)] == whole


def test_a_torn_tail_is_not_yet_while_its_writer_lives(home):
    recorder = home.recorder()
    run = recorder.start()
    run.model(0)
    path = home.files()[0]
    with path.open("ab") as file:
        file.write(b"\xff\x7f" + layout.MARK + b"half")
    found = index(only_file(home))
    assert found.problems == []
    assert found.hurt == {}
    recorder.close()
    found = index(only_file(home))
    assert [damage.harm for damage in found.damages] == [Harm.TORN]
    assert list(found.hurt) == [run.run_id]


def test_damage_is_laid_to_the_runs_that_were_open_there(home):
    recorder = home.recorder()
    first = recorder.start("first.py")
    first.model(0)
    first.end()
    second, third = recorder.start("second.py"), recorder.start("third.py")
    second.model(0)
    at = home.files()[0].stat().st_size
    second.model(1)
    third.model(0)
    for run in (second, third):
        run.end()
    fourth = recorder.start("fourth.py")
    fourth.end()
    recorder.close()
    path = home.files()[0]
    data = bytearray(path.read_bytes())
    data[at + 30] ^= 0xFF
    path.write_bytes(data)
    found = index(only_file(home))
    assert sorted(found.hurt) == sorted([second.run_id, third.run_id])
    assert set(found.runs) == {first.run_id, second.run_id, third.run_id, fourth.run_id}
    assert found.problems == [f"{path} is damaged: {found.damages[0].why}."]


def test_a_run_whose_beginning_is_lost_is_hurt(home):
    (run_id,) = recorded(home)
    path = home.files()[0]
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)
    # Its end tells all that its beginning did, so without that too nothing is known but its crossings.
    last = [item for item in scan(bytes(data)) if isinstance(item, Frame)][-1]
    assert last.kind is FrameKind.RUN
    path.write_bytes(data[: last.offset])
    found = index(only_file(home))
    assert list(found.hurt) == [run_id]
    tally = found.runs[run_id].tally
    assert (tally.entry, tally.crossings) == ("", 4)
    assert tally.started_ns > 0


@pytest.mark.parametrize("content", [b"", b"hello, this is somebody's notes\n" * 10, bytes(range(256)) * 40])
def test_what_is_not_a_spool_file_is_named_and_left_alone(home, content):
    recorded(home)
    odd = home.spool / "notes.spool"
    odd.write_bytes(content)
    file = next(file for file in Spool(home.spool).files() if file.name == "notes.spool")
    expected = [f"{odd} is not a spool file and is left alone."] if content else []
    assert index(file).problems == expected
    assert odd.read_bytes() == content


def test_a_newer_version_is_said_to_be_one(home):
    recorded(home)
    path = home.files()[0]
    frame = next(item for item in scan(path.read_bytes()) if isinstance(item, Frame))
    frame.attributes[names.SCHEMA] = names.SCHEMA_VERSION + 1
    path.write_bytes(b"".join(layout.encode(frame)))
    (problem,) = index(only_file(home)).problems
    newer = names.SCHEMA_VERSION + 1
    why = f"it was written by a newer version (schema {newer}; this version reads up to {names.SCHEMA_VERSION})"
    assert problem == f"{path} cannot be read: {why}; upgrade otel-agent-replay."


def test_only_regular_files_with_the_name_of_one_are_looked_at(home):
    recorded(home)
    name = home.files()[0].name
    (home.spool / "folder.spool").mkdir()
    os.mkfifo(home.spool / "pipe.spool")
    shutil.copy(home.files()[0], home.spool / f".{name}.new")
    (home.spool / "gone.spool").symlink_to(home.spool / "nowhere")
    assert [file.name for file in Spool(home.spool).files()] == [name]


def test_bytes_are_found_across_the_blocks_of_a_file(home, monkeypatch):
    (run_id,) = recorded(home)
    file = only_file(home)
    for window in (1, 5, 17, 1 << 20):
        monkeypatch.setattr(spool_module, "WINDOW", window)
        assert file.holds(bytes.fromhex(run_id[:32]))
        assert not file.holds(b"nowhere in it")


def test_a_file_that_is_removed_meanwhile_gives_nothing(home):
    recorded(home)
    file = only_file(home)
    file.path.unlink()
    assert list(file.scan()) == []
    assert not file.holds(b"\x0a")
