"""The numbered SQL: applied once each, in order, and never over a newer one."""

from __future__ import annotations

import pytest

from otel_agent_replay.errors import StoreError, StoreTooNew, UsageError
from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import Engine, embedded_path


def test_versions_are_numbered_without_gaps_for_every_kind_of_store():
    for embedded in (True, False):
        versions = [each.version for each in schema.migrations(embedded=embedded)]
        assert versions == sorted(set(versions))
    every = {each.version for embedded in (True, False) for each in schema.migrations(embedded=embedded)}
    assert every == set(range(schema.known_version() + 1))


def test_applying_twice_changes_nothing(home):
    with Engine(home.dsn) as engine:
        assert {each.state for each in schema.status(engine)} == {"pending"}
        first = schema.apply(engine)
        assert [each.version for each in first] == [each.version for each in schema.status(engine)]
        assert schema.apply(engine) == []
        assert {each.state for each in schema.status(engine)} == {"applied"}


def test_an_apply_that_was_killed_is_finished_by_the_next(home):
    with Engine(home.dsn) as engine:
        engine.use_database(create=True)
        files = schema.migrations(embedded=True)
        for migration in files[:3]:
            for statement in migration.statements():
                engine.command(statement)  # and killed before the versions were written
        schema.apply(engine)
        assert {each.state for each in schema.status(engine)} == {"applied"}


def test_a_store_of_a_newer_schema_is_refused_and_left_alone(home):
    with home.engine() as engine:
        engine.command("INSERT INTO schema_versions VALUES (999, 'later', '', now64(3))")
    with Engine(home.dsn) as engine:
        for ask in (schema.status, schema.apply, schema.require):
            with pytest.raises(StoreTooNew, match=r"schema 999, this version knows up to \d+; upgrade"):
                ask(engine)


def test_a_file_that_was_changed_after_it_was_applied_is_said_to_be(home):
    with home.engine() as engine:
        engine.command("INSERT INTO schema_versions VALUES (3, 'crossings', 'other', now64(3) + 1)")
        assert [each.version for each in schema.status(engine) if each.state == "changed"] == [3]


def test_the_tables_of_a_server_are_valid_too(home):
    with Engine(home.dsn) as engine:
        engine.use_database(create=True)
        for migration in schema.migrations(embedded=False):
            for statement in migration.statements():
                engine.command(statement)
        engines = dict(engine.rows("SELECT name, engine FROM system.tables WHERE database = 'otel'"))
    assert engines["otel_traces"] == "MergeTree"
    assert engines["frames_view"] == "MaterializedView"


@pytest.mark.parametrize("dsn", ["postgres://x/y", "store", "chdb://", "chdb://memory"])
def test_a_store_of_no_known_kind_is_wrong_usage(dsn):
    with pytest.raises(UsageError, match="OTEL_AGENT_REPLAY_DSN"):
        Engine(dsn)


def test_a_server_that_does_not_answer_is_named_without_its_password():
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/traces does not answer") as raised:
        Engine("clickhouse://user:secret@127.0.0.1:1/traces")
    assert "secret" not in str(raised.value)


def test_the_path_of_an_embedded_store_is_absolute(tmp_path):
    assert embedded_path(f"chdb://{tmp_path}/a%20b") == tmp_path / "a b"
