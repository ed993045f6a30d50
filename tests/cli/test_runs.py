"""`agent-replay runs`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from otel_agent_replay.errors import StoreMissing
from otel_agent_replay.recording.values import End
from otel_agent_replay.store import schema

KEYS = {
    **dict.fromkeys(("run_id", "trace_id", "name", "started_at", "status", "entry", "end"), str),
    **dict.fromkeys(("crossings", "model_calls", "input_tokens", "output_tokens", "notes"), int),
    **dict.fromkeys(("complete", "live"), bool),
    "duration_s": float,
}


@pytest.fixture(params=["engine", "no engine"])
def engine(request) -> bool:
    return request.param == "engine"


def test_runs_are_listed_newest_first_with_what_they_did(home, engine):
    first = home.record("first.py", crossings=3)
    second = home.record("second.py", crossings=1)
    rows = home.json("runs", engine=engine)
    assert [row["run_id"] for row in rows] == [second.run_id, first.run_id]
    row = rows[1]
    for key, kind in KEYS.items():
        assert type(row[key]) is kind, key
    started = datetime.fromisoformat(row["started_at"])
    assert started.utcoffset() == timedelta(0)
    assert row["started_at"].endswith("+00:00")
    assert len(row["started_at"].split(".")[1]) == len("123456+00:00")
    assert round(started.timestamp() * 1e6) == first.run.started_ns // 1000
    assert row["trace_id"] == f"{first.run.trace_id:032x}"
    assert row["run_id"].startswith(row["trace_id"])
    assert row["duration_s"] == (first.run.ended_ns - first.run.started_ns) / 1e9
    expected = {
        "name": "first.py",
        "status": "ok",
        "complete": True,
        "crossings": 3,
        "model_calls": 3,
        "input_tokens": 15,
        "output_tokens": 21,
    }
    assert expected.items() <= row.items()
    assert {
        "entry": "process",
        "end": "returned",
        "live": False,
        "notes": 0,
        "within": None,
        "replay_of": None,
    }.items() <= row.items()


def test_how_a_run_went(home, engine):
    recorder = home.recorder()
    for name, end, outcome in (
        ("ok.py", End.RETURNED, {"exit_status": 0}),
        ("status.py", End.RETURNED, {"exit_status": 4}),
        ("raised.py", End.RAISED, {"exit_status": 1}),
    ):
        recorder.start(name).end(end, **outcome)
    noted = recorder.start("noted.py")
    noted.note(incomplete=False)
    noted.end()
    flawed = recorder.start("flawed.py")
    flawed.note(incomplete=True)
    flawed.end()
    recorder.start("killed.py")
    recorder.close()
    living = home.recorder()
    living.start("living.py").model(0, finish=False)
    rows = {
        row["name"]: (row["status"], row["complete"], row["live"], row["notes"])
        for row in home.json("runs", engine=engine)
    }
    assert rows == {
        "ok.py": ("ok", True, False, 0),
        "status.py": ("error", True, False, 0),
        "raised.py": ("error", True, False, 0),
        "noted.py": ("ok", True, False, 1),
        "flawed.py": ("ok", False, False, 1),
        "killed.py": ("unfinished", False, False, 0),
        "living.py": ("unfinished", False, True, 0),
    }
    unfinished = [row for row in home.json("runs", engine=engine) if row["status"] == "unfinished"]
    assert {(row["duration_s"], row["end"]) for row in unfinished} == {(None, "unfinished")}
    living.close()


def test_readings_and_embeddings_are_no_model_calls(home, engine):
    recorder = home.recorder()
    run = recorder.start()
    run.readings(list(range(100)))
    run.tool(0, {"q": 1})
    run.model(0)
    run.end()
    recorder.close()
    (row,) = home.json("runs", engine=engine)
    assert (row["crossings"], row["model_calls"]) == (2, 1)


def test_replays_are_left_out_unless_asked_for(home, engine):
    run = home.record()
    home.record("replay", entry={"kind": "process", "origin": run.run_id})
    assert [row["replay_of"] for row in home.json("runs", engine=engine)] == [None]
    assert [row["replay_of"] for row in home.json("runs", "--all", engine=engine)] == [run.run_id, None]


def test_a_run_says_which_run_it_began_in(home, engine):
    recorder = home.recorder()
    process = recorder.start("server.py")
    request = recorder.start("GET /", entry={"kind": "asgi", "within": {"run": process.run_id}})
    request.end()
    recorder.close()
    found = {row["run_id"]: (row["entry"], row["within"]) for row in home.json("runs", engine=engine)}
    assert found == {process.run_id: ("process", None), request.run_id: ("asgi", process.run_id)}


def test_a_run_whose_beginning_was_lost_is_listed(home, engine):
    run = home.record(crossings=2)
    (path,) = home.spool.glob("*.spool")
    data = bytearray(path.read_bytes())
    data[30] ^= 0xFF
    path.write_bytes(data[:-300])
    done = home.command("runs", "--json", engine=engine)
    (row,) = json.loads(done.stdout)
    assert row["run_id"] == run.run_id
    assert (row["name"], row["entry"], row["status"], row["complete"]) == ("", "", "unfinished", False)
    assert row["started_at"] > "2020"
    assert done.stderr.startswith(f"agent-replay: {path} is damaged: ")


def test_no_runs(home, engine):
    assert home.json("runs", engine=engine) == []
    done = home.command("runs", engine=engine)
    assert (done.returncode, done.stdout) == (0, f"No runs in {home.path}.\n")
    assert not home.path.exists()


def test_a_limit_says_what_it_leaves_out(home, engine):
    for number in range(4):
        home.record(f"agent-{number}.py", crossings=0)
    assert [row["name"] for row in home.json("runs", "--limit", "2", engine=engine)] == ["agent-3.py", "agent-2.py"]
    assert len(home.json("runs", "--limit", "0", engine=engine)) == 4
    done = home.command("runs", "--limit", "3", engine=engine)
    assert len(done.stdout.splitlines()) == 4
    assert done.stderr == "… and 1 older runs; --limit 0 shows all.\n"


def test_the_table_is_plain_where_there_is_no_terminal(home):
    run = home.record("näme\x1b[31m.py")
    done = home.command("runs")
    heading, row = done.stdout.splitlines()
    assert heading.split()[:6] == ["STARTED", "RUN", "NAME", "ENTRY", "STATUS", "COMPLETE"]
    assert run.run_id in row
    assert "näme\\x1b[31m.py" in row
    assert "\x1b" not in done.stdout


def test_the_table_on_a_terminal(home):
    import pexpect

    run = home.record("agent.py")
    command = "from otel_agent_replay.cli import main; main()"
    child = pexpect.spawn(
        sys.executable,
        ["-c", command, "runs"],
        env={**home.env(), "TERM": "xterm", "COLUMNS": "160"},
        encoding="utf-8",
        use_poll=True,
        timeout=60,
        dimensions=(40, 160),
    )
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert f" {run.run_id[:8]} " in child.before
    assert run.run_id not in child.before
    assert "\x1b[32mok" in child.before


def test_old_runs_are_listed_from_the_store(home):
    old = home.record("old.py")
    home.json("runs")
    shutil.rmtree(home.spool)
    new = home.record("new.py")
    assert [row["run_id"] for row in home.json("runs")] == [new.run_id, old.run_id]
    assert home.command("show", "latest", "--json").stdout != home.command("show", old.run_id, "--json").stdout


def test_without_an_engine_the_spool_is_listed_and_older_runs_are_mentioned_where_there_are_any(home):
    home.record("old.py")
    assert home.command("runs", "--json", engine=False).stderr == ""
    home.json("runs")
    shutil.rmtree(home.spool)
    new = home.record("new.py")
    done = home.command("runs", "--json", engine=False)
    assert [row["run_id"] for row in json.loads(done.stdout)] == [new.run_id]
    assert done.stderr == f"agent-replay: {StoreMissing()} Only the runs of the spool are listed.\n"


def test_many_readers_queue_and_all_are_answered(home):
    home.prepare()
    home.record(crossings=20)
    command = [sys.executable, "-c", "from otel_agent_replay.cli import main; main()", "runs", "--json"]
    readers = [
        subprocess.Popen(command, env=home.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for reader in readers:
        out, error = reader.communicate(timeout=120)
        assert error == ""
        (row,) = json.loads(out)
        assert row["crossings"] == 20


def test_a_store_of_a_newer_schema_is_refused_whole(home):
    from otel_agent_replay.store.clickhouse import Engine

    home.prepare()
    home.record()
    with Engine(home.dsn) as engine:
        engine.use_database(create=False)
        engine.command("INSERT INTO schema_versions VALUES (999, 'later', '', now64(3))")
    for arguments in (["runs"], ["runs", "--json"], ["schema", "status"], ["schema", "apply"]):
        done = home.command(*arguments)
        assert (done.returncode, done.stdout) == (128, "")
        known = schema.known_version()
        said = f"has schema 999, this version knows up to {known}; upgrade otel-agent-replay."
        assert done.stderr == f"agent-replay: The store {home.path / 'store'} {said}\n"
    assert home.command("show", "latest").returncode == 0  # it is in the spool


def test_a_store_that_cannot_be_read_does_not_hide_the_spool(home):
    run = home.record()
    (home.path / "store").write_text("this is a file")
    done = home.command("runs", "--json")
    assert [row["run_id"] for row in json.loads(done.stdout)] == [run.run_id]
    assert done.stderr.startswith(f"agent-replay: The embedded store {home.path / 'store'} cannot be opened (")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("loaded", [False, True])
def test_a_home_that_cannot_be_written_is_read(home, loaded):
    run = home.record()
    if loaded:
        home.json("runs")
    before = {path: path.stat().st_mtime_ns for path in home.path.rglob("*")}
    paths = [home.path, *(path for path in home.path.rglob("*") if not path.is_symlink())]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = home.command("runs", "--json", plain_user=True)
    shown = home.command("show", "latest", plain_user=True)
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.returncode == 0, done.stderr
    assert [row["run_id"] for row in json.loads(done.stdout)] == [run.run_id]
    assert done.stderr.count("\n") == 1
    assert f"{home.path / 'store.lock'} cannot be opened (Permission denied)" in done.stderr
    assert (shown.returncode, shown.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in home.path.rglob("*")} == before
