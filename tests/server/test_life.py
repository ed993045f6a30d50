"""Starting, stopping, dying, and the commands of the same home while it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

from otel_agent_replay.errors import StoreError
from otel_agent_replay.store import find
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.lock import EngineLock

PROGRAM = """
from otel_agent_replay import boundary

@boundary("tool", "add")
def add(a, b):
    return a + b

print(add(1, 2))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_and_frees_the_store(serve, otlp, number):
    served = serve()
    assert served.traces(otlp.export(otlp.span(), service="kept")).status == 200
    store = served.said["store"]
    assert served.stop(number) == 0
    assert served.errors == ""
    with Engine(f"chdb://{store}", patience=0) as engine:
        assert engine.rows("SELECT 1 WHERE 0") is not None
        assert [row[0] for row in engine.rows("SELECT count() FROM otel.spans WHERE service = 'kept'")] == [1]


def test_a_kill_loses_nothing_that_was_acknowledged(serve, otlp):
    served = serve()
    acknowledged = 0
    stopped = threading.Event()

    def send(first: int) -> None:
        nonlocal acknowledged
        number = first
        while not stopped.is_set():
            number += 1
            try:
                answer = served.traces(otlp.export(otlp.span(number), service="acknowledged"))
            except OSError:
                return
            if answer.status == 200:
                acknowledged += 1
            if acknowledged >= 60:
                stopped.set()

    threads = [threading.Thread(target=send, args=(10_000 * (n + 1),)) for n in range(3)]
    for thread in threads:
        thread.start()
    stopped.wait(60)
    served.stop(signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    again = serve()
    (count,) = again.rows("SELECT count() FROM otel.spans FINAL WHERE service = 'acknowledged'")
    assert acknowledged >= 60
    # A request that was stored and not answered any more counts too: at most one for each sender.
    assert acknowledged <= int(count[0]) <= acknowledged + 3
    assert again.token == served.token


def test_commands_of_the_same_home_use_it(serve, recorded, tmp_path):
    home = tmp_path / "home"
    old = recorded(home, "old.py", crossings=3)
    served = serve(home=home)
    (row,) = json.loads(served.command("runs", "--json").stdout)
    assert (row["run_id"], row["crossings"]) == (old.run_id, 3)
    for file in (home / "spool").iterdir():
        file.unlink()
    new = recorded(home, "new.py", crossings=2)
    listed = served.command("runs", "--json")
    assert listed.stderr == ""
    assert [row["run_id"] for row in json.loads(listed.stdout)] == [new.run_id, old.run_id]
    shown = served.command("show", old.run_id, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(served.command("schema", "status", "--json").stdout)["versions"]
    assert served.process.poll() is None


def test_what_another_program_reads_at_once(serve, recorded, tmp_path):
    home = tmp_path / "home"
    recorded(home, crossings=20)
    served = serve(home=home)
    command = [sys.executable, "-c", "from otel_agent_replay.cli import main; main()", "runs", "--json"]
    readers = [
        subprocess.Popen(command, env=served.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for reader in readers:
        out, error = reader.communicate(timeout=120)
        assert error == ""
        assert [row["crossings"] for row in json.loads(out)] == [20]


def test_a_program_is_recorded_stored_and_replayed_while_it_runs(serve, tmp_path):
    served = serve()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launcher = Path(sys.executable).parent / "opentelemetry-instrument"
    env = served.env | {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    done = subprocess.run([launcher, sys.executable, program], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "3\n", done.stderr
    (row,) = json.loads(served.command("runs", "--json").stdout)
    for file in (served.home / "spool").iterdir():
        file.unlink()  # so that only the store has it
    replayed = served.command("replay", row["run_id"])
    assert (replayed.returncode, replayed.stdout) == (0, "3\n"), replayed.stderr
    code = f"import json; from otel_agent_replay import replay\nwith replay({row['run_id']!r}): print('inside')"
    inside = subprocess.run([sys.executable, "-c", code], env=served.env, capture_output=True, text=True, timeout=120)
    assert "inside" in inside.stdout, inside.stderr


def test_a_run_that_came_by_otlp_is_loaded_whole(serve, otlp, recorded, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run = recorded(elsewhere, "sent.py", crossings=4)
    frames = [item for file in find.Recordings(elsewhere / "spool", "chdb:///nowhere").files() for item in file.scan()]
    served = serve()
    assert served.traces(otlp.frames(frames)).status == 200

    class Place:
        spool = served.home / "spool"
        dsn = f"chdb://{served.home / 'store'}"

    loaded = find.load_for_replay(Place, run.run_id).recordings[run.run_id]
    assert len(loaded.crossings) == 4
    assert loaded.missing == []


def test_two_servers_of_one_home_are_one_too_many(serve):
    served = serve()
    second = served.command("serve", *served.ports())
    assert second.returncode == 128
    assert second.stderr.startswith("agent-replay: The embedded store is served at http://127.0.0.1:")
    assert second.stderr.count("\n") == 1


def test_a_command_whose_server_is_gone_opens_the_store_itself(serve, recorded, tmp_path):
    home = tmp_path / "home"
    recorded(home)
    served = serve(home=home)
    served.stop(signal.SIGKILL)
    assert json.loads((home / "store.lock").read_bytes())["serve"]
    assert len(json.loads(served.command("runs", "--json").stdout)) == 1


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag in ("--grpc-port", "--http-port", "--sql-port"):
            ports = {"--grpc-port": "0", "--http-port": "0", "--sql-port": "0", flag: port}
            command = [Path(sys.executable).parent / "agent-replay", "serve", "--home", tmp_path / "home"]
            command += [word for pair in ports.items() for word in pair]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert (done.returncode, done.stdout) == (128, "")
            assert f"127.0.0.1:{port}" in done.stderr
            assert flag in done.stderr
    with Engine(f"chdb://{tmp_path / 'home' / 'store'}", patience=0):
        pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "give a token"),
        (["--host", "0.0.0.0", "--read-token", "x"], "give a token"),
        (["--token", "with space"], "printable ASCII"),
        (["--dsn", "clickhouse://somewhere/otel"], "Only the embedded store is served"),
        (["--sql-port", "70000"], "70000"),
    ],
)
def test_wrong_usage_exits_with_2(tmp_path, options, said):
    command = [Path(sys.executable).parent / "agent-replay", "serve", "--home", tmp_path / "home", *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert said in done.stderr


def test_beyond_loopback_every_request_needs_a_token(serve, otlp):
    """0.0.0.0 is listened on, and reached by loopback: the address that counts is the one that is listened on."""
    served = serve(
        "--host", "0.0.0.0", OTEL_AGENT_REPLAY_SERVE_TOKEN="write-it", OTEL_AGENT_REPLAY_SERVE_READ_TOKEN="read-it"
    )
    for name in ("otlp_http", "sql"):
        served.said[name] = served.said[name].replace("0.0.0.0", "127.0.0.1")
    assert served.traces(otlp.export(otlp.span())).status == 401
    assert served.traces(otlp.export(otlp.span()), Authorization="Bearer read-it").status == 401
    assert served.traces(otlp.export(otlp.span()), Authorization="Bearer write-it").status == 200
    assert served.sql("SELECT 1").status == 401
    assert served.sql("SELECT 1", headers={"X-ClickHouse-Key": "read-it"}).text == "1\n"
    denied = served.sql("CREATE TABLE otel.x (a Int8) ENGINE = Memory", headers={"X-ClickHouse-Key": "read-it"})
    assert denied.headers["X-ClickHouse-Exception-Code"] == "164"
    assert served.sql("CREATE TABLE otel.x (a Int8) ENGINE = Memory", writer=True).status == 200
    assert served.token == "write-it"
    assert served.health()["status"] == "ok"
    assert json.loads(served.command("runs", "--json").stdout) == []


def test_it_says_what_to_set(tmp_path):
    command = [Path(sys.executable).parent / "agent-replay", "serve", "--home", str(tmp_path / "home")]
    command += ["--grpc-port", "0", "--http-port", "0", "--sql-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = [process.stdout.readline() for _ in range(6)]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    port = urllib.parse.urlsplit(said[1].split()[-1]).port
    assert f"export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{port} " in said[5]


def test_the_lock_names_the_server(tmp_path):
    lock = EngineLock(tmp_path / "store.lock")
    lock.acquire()
    other = EngineLock(tmp_path / "store.lock")
    with pytest.raises(StoreError, match="in use by process"):
        other.acquire_or_find(0)
    from otel_agent_replay.store.lock import Serving

    lock.announce(Serving("http://127.0.0.1:1", "/nowhere"))
    assert other.acquire_or_find(0) == Serving("http://127.0.0.1:1", "/nowhere")
    with pytest.raises(StoreError, match=r"served at http://127\.0\.0\.1:1"):
        other.acquire(0)
    lock.release()
    assert other.acquire_or_find(0) is None
    other.release()


def test_a_result_of_64_mb_is_stored_and_read_in_bounded_memory(serve, recorder, tmp_path):
    home = tmp_path / "home"
    writer = recorder(home)
    run = writer.start("large.py")
    run.tool(0, "small", outcome="x" * (64 << 20))
    run.end()
    writer.close()
    served = serve(home=home)
    (row,) = json.loads(served.command("runs", "--json").stdout)
    assert (row["run_id"], row["complete"]) == (run.run_id, True)
    for file in (home / "spool").iterdir():
        file.unlink()

    class Place:
        spool = home / "spool"
        dsn = f"chdb://{home / 'store'}"

    loaded = find.load(Place, run.run_id)
    assert loaded.missing == []
    assert len(loaded.crossings[0].outcome) == 64 << 20
    assert served.resident(peak=True) < 1500 << 20


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_agent_of_another_home_ships_here_and_is_replayed_here(serve, tmp_path, protocol: str):
    served = serve()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("a + b", "'x' * 6_000_000").replace("add(1, 2)", "len(add(1, 2))"))
    launcher = Path(sys.executable).parent / "opentelemetry-instrument"
    endpoint = served.said["otlp_grpc" if protocol == "grpc" else "otlp_http"]
    env = served.env | {
        "OTEL_AGENT_REPLAY_HOME": str(tmp_path / "elsewhere"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    done = subprocess.run([launcher, sys.executable, program], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "6000000\n", done.stderr
    shipped = subprocess.run(
        [Path(sys.executable).parent / "agent-replay", "ship"], env=env, capture_output=True, text=True, timeout=120
    )
    assert shipped.returncode == 0, shipped.stderr
    (row,) = json.loads(served.command("runs", "--json").stdout)
    assert (row["crossings"], row["complete"]) == (1, True)
    replayed = served.command("replay", row["run_id"], "--trust")
    assert (replayed.returncode, replayed.stdout) == (0, "6000000\n"), replayed.stderr
