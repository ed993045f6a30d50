"""Finding runs by what a person types, in the spool and behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from otel_agent_replay.errors import AmbiguousRun, StoreMissing, UnknownRun, UnreadableRecording
from otel_agent_replay.recording import layout, names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.store import find

WITHOUT_ENGINE = "import sys; sys.modules['chdb'] = None; sys.modules['clickhouse_connect'] = None\n"


def record(home, name: str = "agent.py", crossings: int = 2, **over):
    """One run in a file of its own, written and closed."""
    recorder = home.recorder()
    run = recorder.start(name, **over)
    for ordinal in range(crossings):
        run.model(ordinal)
    run.end()
    recorder.close()
    return run


def move_to_store(home) -> None:
    """What happens to the files of old runs."""
    home.load()
    shutil.rmtree(home.spool)


def test_latest_is_the_run_that_began_last_and_is_no_replay(home):
    recorder = home.recorder()
    server = recorder.start("server.py")
    record(home, "between.py")
    request = recorder.start("GET /ask", entry={"kind": "asgi", "within": {"run": server.run_id}})
    record(home, "replay.py", entry={"kind": "process", "origin": request.run_id})
    assert find.find_run(home, "latest") == request.run_id
    recorder.close()
    move_to_store(home)
    assert find.find_run(home, " LATEST ") == request.run_id


def test_latest_reads_no_file_that_cannot_hold_it(home):
    old = record(home, "old.py")
    new = record(home, "new.py")
    first, second = home.files()
    os.utime(first, ns=(1, 1))
    first.write_bytes(b"cannot be read")
    os.utime(first, ns=(1, 1))
    assert find.find_run(home, "latest") == new.run_id
    second.unlink()
    with pytest.raises(UnreadableRecording, match="not a spool file"):
        find.find_run(home, "latest")
    assert old


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_is_found_by_its_id_its_trace_and_a_unique_beginning(home, stored):
    run = record(home)
    record(home, "other.py")
    if stored:
        move_to_store(home)
    trace = f"{run.run.trace_id:032x}"
    for wanted in (run.run_id, trace, run.run_id.upper(), trace[:12], trace[:11], run.run_id[:40], f"{trace}-"):
        assert find.find_run(home, wanted) == run.run_id


@pytest.mark.parametrize("stored", [False, True])
def test_a_trace_that_holds_several_runs_lists_them(home, stored):
    first = record(home)
    second = record(home, trace_id=first.run.trace_id, parent_span_id=first.run.span_id)
    if stored:
        move_to_store(home)
    with pytest.raises(AmbiguousRun) as raised:
        find.find_run(home, f"{first.run.trace_id:032x}")
    assert first.run_id in str(raised.value)
    assert second.run_id in str(raised.value)
    assert find.find_run(home, second.run_id) == second.run_id


def test_a_short_beginning_is_unique_only_where_the_store_agrees(home):
    record(home, trace_id=0xABC << 116)
    move_to_store(home)
    fresh = record(home, trace_id=0xABD << 116)
    assert find.find_run(home, "abd") == fresh.run_id
    with pytest.raises(AmbiguousRun, match="names 2 runs"):
        find.find_run(home, "ab")


@pytest.mark.parametrize(
    "wanted", ["0" * 32, "deadbeef", "nonsense", "", "0" * 60, "latest!", "%", "'; DROP TABLE runs"]
)
def test_an_unknown_run_is_said_to_be_unknown(home, wanted):
    run = record(home)
    assert not run.run_id.startswith(wanted or "x")
    with pytest.raises(UnknownRun, match=r"`agent-replay runs` lists"):
        find.find_run(home, wanted)


def test_there_may_be_nothing_at_all(home):
    with pytest.raises(UnknownRun):
        find.find_run(home, "latest")
    with pytest.raises(UnknownRun):
        find.find_run(home, "abcdef123456")
    assert not home.path.exists()


def test_what_the_spool_and_the_store_hold_of_a_run_is_merged(home):
    out, _ = home.process(1, 1, "--fork").communicate(timeout=60)
    run_id = out.split()[1]
    parent, child = home.files()
    expected = find.load(home, run_id)
    assert [str(crossing.position) for crossing in expected.crossings] == [
        "main model:openai.chat #0",
        "main/process:worker#0 model:openai.chat #0",
        "main model:openai.chat #1",
    ]
    home.load()
    parent.unlink()
    assert find.load(home, run_id) == expected
    child.unlink()
    assert find.load(home, run_id) == expected


def test_damage_is_missing_from_the_recording_wherever_it_comes_from(home):
    run = record(home, crossings=3)
    path = home.files()[0]
    data = bytearray(path.read_bytes())
    hit = [item for item in scan(bytes(data)) if isinstance(item, Frame)][3]
    data[hit.offset + 40] ^= 0xFF
    path.write_bytes(data)
    sentence = f"the spool file {path.name}: {hit.size} bytes at {hit.offset} are damaged (a checksum is wrong)"
    assert find.load(home, run.run_id).missing[0] == sentence
    exported = home.path / "run.spool"
    find.export_spool(home, run.run_id, exported)
    again = assemble(scan_frames(exported))[run.run_id]
    assert any(sentence in note.what and note.incomplete for note in again.notes)
    assert not again.complete
    move_to_store(home)
    assert sentence in find.load(home, run.run_id).missing


def test_a_run_of_a_newer_version_is_unreadable_and_not_unknown(home):
    run = record(home)
    path = home.files()[0]
    frames = list(scan_frames(path))
    for frame in frames:
        frame.attributes[names.SCHEMA] = names.SCHEMA_VERSION + 1
    path.write_bytes(b"".join(part for frame in frames for part in layout.encode(frame)))
    for wanted in ("latest", run.run_id):
        with pytest.raises(UnreadableRecording, match=r"newer version .* upgrade otel-agent-replay"):
            find.find_run(home, wanted)


def scan_frames(path):
    return [item for item in scan(path.read_bytes()) if isinstance(item, Frame)]


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_is_exported_with_the_runs_that_belong_to_it(home, stored):
    recorder = home.recorder()
    process = recorder.start("server.py")
    process.model(0)
    requests = [
        recorder.start(
            f"GET /{n}", entry={"kind": "asgi", "within": {"run": process.run_id, "lane": "main", "number": n}}
        )
        for n in range(3)
    ]
    inner = recorder.start(
        "step", entry={"kind": "function", "within": {"run": requests[1].run_id, "lane": "main", "number": 0}}
    )
    for run in (inner, *requests, process):
        run.tool(0, "x")
        run.end()
    recorder.close()
    whole = {run.run_id: find.load(home, run.run_id) for run in (process, *requests, inner)}
    if stored:
        move_to_store(home)
    file = home.path / "out.spool"
    written = find.export_spool(home, requests[1].run_id, file)
    assert set(written) == {requests[1].run_id, process.run_id, inner.run_id}
    assert assemble(scan_frames(file)) == {run_id: whole[run_id] for run_id in written}
    assert set(find.export_spool(home, process.run_id, home.path / "all.spool")) == set(whole)
    with pytest.raises(FileExistsError):
        find.export_spool(home, process.run_id, file)


def test_a_process_that_replays_never_opens_the_engine(home):
    run = record(home)
    old = record(home, "old.py")
    expected = {each.run_id: find.load(home, each.run_id) for each in (run, old)}
    home.load()
    home.files()[1].unlink()
    code = f"""
import sys
from types import SimpleNamespace
from pathlib import Path
from otel_agent_replay.errors import UnknownRun
from otel_agent_replay.store import find
place = SimpleNamespace(spool=Path({str(home.spool)!r}), dsn={home.dsn!r})
for wanted in ({run.run_id!r}, {old.run_id!r}):
    loaded = find.load_for_replay(place, wanted)
    print(loaded.run_id, len(loaded.recordings[wanted].crossings))
try:
    find.load_for_replay(place, "0" * 32)
except UnknownRun as error:
    print(error)
print([name for name in sys.modules if name.startswith(("chdb", "clickhouse"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        f"{run.run_id} 2",
        f"{old.run_id} 2",
        f"No run '{'0' * 32}' in {home.path}; `agent-replay runs` lists the runs that are there.",
        "[]",
    ], done.stderr
    assert find.load_for_replay(home, old.run_id).recordings == {old.run_id: expected[old.run_id]}


def test_the_spool_answers_where_no_engine_is_installed(home):
    old = record(home, "old.py")
    move_to_store(home)
    run = record(home)
    code = (
        WITHOUT_ENGINE
        + f"""
from types import SimpleNamespace
from pathlib import Path
from otel_agent_replay.errors import StoreMissing
from otel_agent_replay.store import find
place = SimpleNamespace(spool=Path({str(home.spool)!r}), dsn={home.dsn!r})
print(find.find_run(place, "latest"), len(find.load(place, {run.run_id!r}).crossings))
print(find.find_run(place, {run.run_id[:6]!r}))
try:
    find.find_run(place, {old.run_id!r})
except StoreMissing as error:
    print(error)
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [f"{run.run_id} 2", run.run_id, str(StoreMissing())], done.stderr


def test_a_fresh_run_is_found_and_loaded_without_the_engine_ever_being_imported(home):
    run = record(home, crossings=100)
    home.load()
    code = f"""
import sys
from types import SimpleNamespace
from pathlib import Path
from otel_agent_replay.store import find
place = SimpleNamespace(spool=Path({str(home.spool)!r}), dsn={home.dsn!r})
assert len(find.load(place, find.find_run(place, "latest")).crossings) == 100
assert find.find_run(place, {run.run_id[:32]!r}) == {run.run_id!r}
print([name for name in sys.modules if name.startswith(("chdb", "clickhouse", "opentelemetry"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
