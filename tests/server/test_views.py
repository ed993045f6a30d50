"""A view that fails in the middle of an insert: the batch comes again, and it is as if nothing had been.

The views of one insert are written one after another, so those before the one that fails have their rows already.
"""

from __future__ import annotations

from contextlib import contextmanager

import grpc
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame
from otel_agent_replay.store import find
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row
from otel_agent_replay.store.spool import Spool

TABLES = ("spans", "crossings", "contents", "runs", "readings")
COUNTED = (
    *(f"SELECT count() FROM {table} FINAL WHERE {{where}}" for table in TABLES),
    "SELECT sum(input_tokens), sum(output_tokens) FROM crossings FINAL WHERE {where}",
    "SELECT sum(toUInt64OrZero(attributes['gen_ai.usage.output_tokens'])) FROM spans FINAL WHERE {where}",
)
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def record(recorder, home, name: str) -> tuple[str, list[Frame]]:
    """A run with something for every table."""
    writer = recorder(home)
    run = writer.start(name)
    for number in range(4):
        run.model(number, b'{"messages":[{"role":"user","content":"%d %s"}]}' % (number, b"a long text " * 40))
    run.readings([1, 2])
    run.end()
    writer.close()
    files = Spool(home / "spool").files()
    return run.run_id, [item for file in files for item in file.scan() if isinstance(item, Frame)]


def send(served, otlp, frames: list[Frame], way: str) -> bool:
    """Whether a batch is accepted."""
    if way == "sql":
        rows = b"".join(piece for frame in frames for piece in landing_row(frame))
        with served.client(writer=True, database="otel") as client:
            try:
                client.raw_insert(LANDING, list(LANDING_COLUMNS), rows, fmt="RowBinary")
            except DatabaseError:
                return False
        return True
    body = otlp.frames(frames)
    if way == "http":
        answer = served.traces(body)
        assert answer.status in (200, 503), answer.text
        return answer.status == 200
    with grpc.insecure_channel(served.said["otlp_grpc"].removeprefix("http://")) as channel:
        try:
            channel.unary_unary(TRACES)(body, timeout=60)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
    return True


@contextmanager
def failing(served, table: str, run_id: str):
    """The view of a table fails for the last row of a run that it is given."""
    trace, _, span = run_id.partition("-")
    row = {
        "spans": f"trace_id != '{trace}' OR span_id != '{span}'",
        "crossings": f"run_id != '{run_id}' OR ordinal != 3",
    }.get(table, f"run_id != '{run_id}'")
    with served.client(writer=True, database="otel") as client:
        client.command(f"ALTER TABLE {table} ADD CONSTRAINT broken CHECK {row}")
        try:
            yield
        finally:
            client.command(f"ALTER TABLE {table} DROP CONSTRAINT broken")


def counted(served, run_id: str) -> list[list[tuple]]:
    found = []
    with served.client(database="otel") as client:
        for sql in COUNTED:
            spans = " spans " in sql
            where = f"trace_id = '{run_id[:32]}'" if spans else f"run_id = '{run_id}'"
            found.append(client.query(sql.format(where=where)).result_rows)
    return found


@pytest.mark.parametrize("way", ["grpc", "http", "sql"])
@pytest.mark.parametrize("table", TABLES)
def test_a_view_that_failed_once_changes_no_count(shared, otlp, recorder, tmp_path, way: str, table: str):
    other_id, other = record(recorder, tmp_path / "other", "undisturbed")
    assert send(shared, otlp, other, way)
    run_id, frames = record(recorder, tmp_path / "home", f"{table}-{way}")
    with failing(shared, table, run_id):
        assert not send(shared, otlp, frames, way)
        assert not send(shared, otlp, frames, way)
    for _ in range(2):
        assert send(shared, otlp, frames, way)
    assert counted(shared, run_id) == counted(shared, other_id)
    assert loaded(shared, run_id) == assemble(frames, run_id)[run_id]


def loaded(served, run_id: str):
    class Place:
        spool = served.home / "none"
        dsn = f"chdb://{served.home / 'store'}"

    return find.load(Place(), run_id)


@pytest.mark.parametrize("table", TABLES)
def test_what_one_view_has_written_and_another_has_not_is_completed(shared, otlp, recorder, tmp_path, table: str):
    """As a kill between two of them leaves it; which is written first differs from store to store."""
    run_id, frames = record(recorder, tmp_path / "home", f"half-{table}")
    assert send(shared, otlp, frames, "grpc")
    whole = counted(shared, run_id)
    with shared.client(writer=True, database="otel") as client:
        where = f"trace_id = '{run_id[:32]}'" if table == "spans" else f"run_id = '{run_id}'"
        client.command(f"ALTER TABLE {table} DELETE WHERE {where} SETTINGS mutations_sync = 2")
    assert counted(shared, run_id) != whole
    assert send(shared, otlp, frames, "grpc")
    assert counted(shared, run_id) == whole
    assert loaded(shared, run_id) == assemble(frames, run_id)[run_id]
