"""The schema on a cluster: every statement parses, and a cluster of one server gives what a server gives.

A cluster of several servers, `ON CLUSTER` and replicated tables need ClickHouse Keeper, which is not run here: of
those only the syntax is checked.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from otel_agent_replay.cli import main
from otel_agent_replay.errors import UsageError
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.store import cluster, find, holds, listing, retention, schema
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row

SCRIPT = Path(__file__).with_name("clickhouse_server.py")
CONFIGURATION = """
<clickhouse>
    <tcp_port>9000</tcp_port>
    <remote_servers><one><shard><replica><host>127.0.0.1</host><port>9000</port></replica></shard></one></remote_servers>
</clickhouse>
"""


@pytest.mark.parametrize("replicated", [False, True])
def test_every_statement_is_one_that_clickhouse_parses(home, replicated):
    made = list(cluster.statements(cluster.Cluster("the-cluster", "traces", replicated)))
    with home.engine() as engine:
        for statement in made:
            again = next(iter(engine.rows("SELECT formatQuery({sql:String})", {"sql": statement})))[0]
            assert ("ON CLUSTER" in again) == (not statement.startswith("INSERT"))
    tables = {name for name in schema_tables() if name not in cluster.EVERYWHERE}
    assert tables == set(cluster.SPREAD)
    text = "\n".join(made)
    for table in tables:
        assert f"'{table}_local', {cluster.SPREAD[table]})" in text
    assert (
        "ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}', version)"
        in text
    ) == replicated
    assert ("ENGINE = ReplacingMergeTree(version)" in text) != replicated


def schema_tables() -> set[str]:
    sql = [each for migration in schema.migrations(embedded=False) for each in migration.statements()]
    return {each.split()[5] for each in sql if each.startswith("CREATE TABLE")}


def test_the_command_prints_what_is_run():
    done = CliRunner().invoke(main, ["schema", "render", "--cluster", "c", "--database", "d", "--replicated"])
    expected = cluster.statements(cluster.Cluster("c", "d", replicated=True))
    assert done.output == "".join(f"{each};\n\n" for each in expected)


@pytest.mark.parametrize("name", ["a'b", "", "a b", "a`b"])
def test_a_name_that_cannot_stand_in_a_statement_is_wrong_usage(name):
    with pytest.raises(UsageError, match="no usable name"):
        cluster.Cluster(name)
    with pytest.raises(UsageError, match="no usable name"):
        cluster.Cluster("c", name)


def test_an_embedded_store_is_no_cluster(home):
    with home.engine() as engine, pytest.raises(UsageError, match="no cluster"):
        cluster.apply(engine, cluster.Cluster("c"))


def test_a_cluster_of_one_server_is_read_as_a_server_is(home, tmp_path):
    (tmp_path / "c.xml").write_text(CONFIGURATION)
    path = f"{tmp_path / 'server'}?config-file={tmp_path / 'c.xml'}"
    process = subprocess.Popen([sys.executable, SCRIPT, path], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        dsn = f"clickhouse://127.0.0.1:{process.stdout.readline().strip()}/traces"
        try:
            check(home, dsn)
        finally:
            process.kill()
            process.wait()


def check(home, dsn: str) -> None:
    with Engine(dsn) as engine:
        for statement in cluster.statements(cluster.Cluster("one", "traces")):
            engine.command(statement.replace(" ON CLUSTER 'one'", ""))  # which takes a Keeper
        assert {each.state for each in schema.status(engine)} == {"applied"}
        assert cluster.apply(engine, cluster.Cluster("one", "traces")) == []
    recorder = home.recorder()
    run = recorder.start("spread.py")
    run.model(0, b'{"messages":[{"content":"once upon a time, in a shard"}]}' * 10)
    run.tool(0, "x" * 1000)
    run.end()
    recorder.close()
    frames = [item for item in scan(home.files()[0].read_bytes()) if isinstance(item, Frame)]
    home.files()[0].unlink()
    with Engine(dsn) as engine:
        engine.use_database(create=False)
        for _ in range(2):
            body = b"".join(piece for frame in frames for piece in landing_row(frame))
            engine.insert(LANDING, LANDING_COLUMNS, body)
        assert next(iter(engine.rows("SELECT count() FROM frames_local FINAL WHERE frame = 'crossing'")))[0] == 2
        holds.hold(engine, run.run_id)
        assert list(holds.held_runs(engine)) == [run.run_id]
        holds.release(engine, run.run_id)
        made = retention.plan(engine, retention.Policy(0, 0), set(), now_ns=run.run.ended_ns + 1)
        assert set(made.doomed) == {run.run_id}
        assert retention.local_tables(engine, ["runs"]) == {"runs": "`traces`.`runs_local` ON CLUSTER 'one'"}
    place = SimpleNamespace(spool=home.spool, dsn=dsn)
    assert find.load(place, find.find_run(place, run.run_id[:32])) == assemble(frames)[run.run_id]
    with listing.opened(place) as runs:
        assert [(tally.name, tally.crossings) for tally in runs.tallies(limit=5)] == [("spread.py", 2)]
        assert [tally.name for tally in runs.tallies()] == ["spread.py"]
