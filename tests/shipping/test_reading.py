"""Recordings that were shipped are read from the store, and what was cut on the way is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from otel_agent_replay.analysis.summary import summarise
from otel_agent_replay.recording.frames import Frame, decode
from otel_agent_replay.store import find, listing, schema
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.ledger import Claim, Origin

BIN = Path(sys.executable).parent

PROGRAM = """
import hashlib
import otel_agent_replay as replay

@replay.boundary("tool", "step")
def step(number, size):
    return "".join(hashlib.sha256(f"{number} {n}".encode()).hexdigest() for n in range(size // 64))

for number in range(3):
    print(step(number, SIZE)[:20])
"""


def land(home, frames: list[Frame]) -> None:
    """Insert what a receiver has taken, as it does, into the store that the home names."""
    with Engine(f"chdb://{home.path / 'store'}") as engine:
        schema.require(engine)
        rows = [piece for frame in frames for piece in landing_row(frame)]
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(rows))


def cut(frame: Frame, length: int = 1 << 60, count: int = 1 << 60) -> Frame:
    """The frame as it is behind a hop that limits attributes."""
    held = list(frame.attributes.items())[:count]
    frame.attributes = {name: value[:length] if isinstance(value, str) else value for name, value in held}
    return frame


def recorded(home, servers, size: int = 9000) -> list[Frame]:
    """Record and ship a program; gives the frames that arrived. The spool is empty then."""
    server = servers("grpc")
    home.to(server, "grpc").environ["OTEL_AGENT_REPLAY_EXIT_WAIT"] = "30"
    home.record(PROGRAM.replace("SIZE", str(size)))
    said = home.command("ship")
    assert said["waiting"] == 0
    assert not home.files()
    return [decode(span.SerializeToString()) for span in server.inbox.spans]


def replay(home) -> subprocess.CompletedProcess[str]:
    line = [BIN / "agent-replay", "replay", "latest"]
    return subprocess.run(line, env=home.env, cwd=home.path.parent, capture_output=True, text=True, timeout=90)


def test_a_shipped_run_is_listed_shown_and_replayed_from_the_store(home, servers) -> None:
    land(home, recorded(home, servers))
    (row,) = home.command("runs")
    assert (row["complete"], row["crossings"], row["status"]) == (True, 3, "ok")
    assert row["run_id"] in json.dumps(home.command("show", "latest"))
    done = replay(home)
    assert done.returncode == 0, done.stderr


def test_a_run_is_put_together_from_the_spool_and_the_store(home, servers) -> None:
    """A file of the run was shipped and removed, another is still there."""
    server = servers("grpc")
    home.to(server, "grpc")
    recorder = home.recorder()
    run = recorder.start()
    run.call("tool:t", "from the first file")
    recorder.writer.close()
    home.ship()
    assert not home.files()
    run.call("tool:t", "from the second file")
    run.end()
    recorder.close()
    land(home, [decode(span.SerializeToString()) for span in server.inbox.spans])

    class Place:
        spool = home.path / "spool"
        dsn = f"chdb://{home.path / 'store'}"

    recording = find.load(Place(), run.run_id)
    assert not recording.missing
    assert [each.outcome for each in recording.crossings] == ["from the first file", "from the second file"]
    assert find.find_run(Place(), "latest") == run.run_id


@pytest.mark.parametrize("dsn", ["chdb://{home}/nothing", "clickhouse://127.0.0.1:9/none"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_of_which_a_part_is_not_here_is_not_shown_as_whole(home, servers, dsn: str, restarted: bool) -> None:
    server = servers("grpc")
    to = destination.read(home.to(server, "grpc").environ)
    recorder = home.recorder()
    run = recorder.start()
    run.call("tool:t", "here")
    recorder.writer.close()
    (first,) = home.files()
    run.call("tool:t", "there")
    claim = Claim.take(home.ledger, first, to.name)
    with claim:
        if restarted:
            home.ship()  # who ships the rest has not seen this
            other = recorder.start()
            other.end()
        else:
            run.end()
        recorder.close()
        home.ship()
    assert home.files() == [first]

    class Place:
        spool = home.path / "spool"

    Place.dsn = dsn.format(home=home.path)
    recording = find.load(Place(), run.run_id)
    assert "part of this run was shipped" in " ".join(recording.missing)
    if not dsn.startswith("chdb"):
        with listing.opened(Place()) as runs:
            assert not next(summarise(each) for each in runs.tallies() if each.run_id == run.run_id).complete


@pytest.mark.parametrize("size", [9000, 200])
@pytest.mark.parametrize("limits", [{"length": 4096}, {"length": 50}, {"count": 9}])
def test_a_hop_that_cuts_makes_the_run_incomplete_and_says_why(home, servers, size: int, limits) -> None:
    frames = [cut(frame, **limits) for frame in recorded(home, servers, size)]
    land(home, frames)
    whole = size == 200 and limits == {"length": 4096}
    done = replay(home)
    said = json.dumps(home.command("show", "latest"))
    if whole:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode in (125, 128), (done.returncode, done.stdout, done.stderr)
    assert any(word in said + done.stderr for word in ("is damaged", "is not there", "bytes of its payload")), said
    if "count" in limits:
        return
    (row,) = home.command("runs")
    assert row["complete"] is False


def test_limits_on_attributes_here_do_not_touch_what_is_shipped(home, servers) -> None:
    home.environ = {}
    server = servers("http/protobuf")
    home.to(server, "http/protobuf").environ |= {
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "50",
        "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "50",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "2",
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "2",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_AGENT_REPLAY_EXIT_WAIT": "30",
    }
    home.record(PROGRAM.replace("SIZE", "9000"))
    home.command("ship")
    frames = []
    for span in server.inbox.spans:
        if any(a.key == "agent_replay.frame" for a in span.attributes):
            frames.append(decode(span.SerializeToString()))
    land(home, frames)
    assert replay(home).returncode == 0


def test_runs_are_listed_while_files_vanish(home, servers) -> None:
    for number in range(30):
        recorder = home.recorder()
        run = recorder.start(f"agent-{number}.py")
        run.call("tool:t", "x" * 1000)
        run.end()
        recorder.close()
    server = servers("grpc")
    home.to(server, "grpc")
    shipping = threading.Thread(target=home.ship)
    shipping.start()
    for _ in range(3):
        assert isinstance(home.command("runs"), list)
    shipping.join()
    assert not home.files()


def test_the_commands_say_what_is_wrong(home, servers) -> None:
    done = home.run(BIN / "agent-replay", "ship", code=2)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in done.stderr
    server = servers("grpc")
    home.to(server, "grpc", protocol="smoke")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" in home.run(BIN / "agent-replay", "ship", code=2).stderr
    home.to(server, "grpc")
    assert home.command("status")["recorded"] == 0
    recorder = home.recorder()
    run = recorder.start()
    run.call("tool:t", "x")
    run.end()
    recorder.close()
    server.close()
    done = home.run(BIN / "agent-replay", "ship", "--wait", "0.3", code=1)
    assert "nothing gets through" in done.stderr
    status = home.command("status", code=1)
    assert status["waiting"] == status["recorded"] > 0
    assert status["failing"]
    (row,) = status["files"]
    assert row["waiting"] == status["waiting"]
    assert "nothing gets through" in home.run(BIN / "agent-replay", "status", code=1).stderr


@pytest.mark.parametrize("claimed", [False, True])
def test_what_was_refused_can_be_sent_again(home, servers, lib, claimed: bool) -> None:
    recorder = home.recorder()
    run = recorder.start()
    for number in range(6):
        run.call("tool:picky" if number == 3 else "tool:fine", str(number))
    run.end()
    recorder.close()
    picky = [True]

    def judge(request, _number):
        bad = picky and any(map(lib.rejected, lib.spans_of(request)))
        return lib.Said(400, "not that one") if bad else None

    server = servers("grpc", judge=judge)
    home.to(server, "grpc")
    (file,) = home.files()
    home.ledger.describe(file.name, Origin({"service.name": "shop"}, ""))
    assert home.command("ship", code=1)["refused"] == 1
    status = home.command("status", code=1)
    assert (status["refused"], status["waiting"]) == (1, 0)
    if claimed:  # somebody ships the file and may set more of it aside
        file.touch()
        with Claim.take(home.ledger, file, ""):
            assert home.ledger.take_back() == 0
        file.unlink()
    recorded_frames = status["recorded"]
    picky.clear()
    assert home.command("ship", "--refused")["refused"] == 0
    status = home.command("status")
    assert (status["refused"], status["waiting"], status["recorded"]) == (0, 0, recorded_frames)
    assert len([span for span in server.inbox.spans if lib.rejected(span)]) == 1
    named = [
        a.value.string_value
        for one in server.inbox.requests
        for each in one.resource_spans
        for a in each.resource.attributes
    ]
    assert set(named) == {"shop"}
    assert not [*home.ledger.refused.iterdir()]


def test_what_is_wrong_with_a_destination_that_nothing_waits_for_is_not_told(home, servers) -> None:
    server = servers("grpc")
    home.to(server, "grpc")
    recorder = home.recorder()
    recorder.start().end()
    recorder.close()
    server.close()
    home.run(BIN / "agent-replay", "ship", "--wait", "0.3", code=1)
    assert home.command("status", code=1)["failing"]
    other = servers("grpc")
    home.to(other, "grpc")
    assert home.command("ship")["waiting"] == 0
    assert not home.command("status")["failing"]
    (stale,) = home.ledger.folder.glob("*.failing")
    home.ledger.sweep()
    assert stale.exists(), "it is young"
    os.utime(stale, (1, 1))
    home.ledger.sweep()
    assert not stale.exists()
