"""The schema of a server, rewritten for a cluster.

Every table becomes two: `NAME_local` on each server, and `NAME`, which is distributed over them. The key by which
rows are spread is the trace, so that a run lies whole on one shard: views, and the removal of duplicates, need to
look at no other. Views read the local landing table and write local tables.

What is little and asked for everywhere (which files are applied, holds, what has expired) is the same on all servers
where tables are replicated, and lies on the first shard where they are not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_agent_replay.errors import UsageError
from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import DATABASE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.store.clickhouse import Engine

SPREAD = {
    "otel_traces": "cityHash64(TraceId)",
    "frames": "cityHash64(substring(run_id, 1, 32))",
    "spans": "cityHash64(trace_id)",
    "crossings": "cityHash64(substring(run_id, 1, 32))",
    "contents": "cityHash64(substring(run_id, 1, 32))",
    "runs": "cityHash64(substring(run_id, 1, 32))",
    "readings": "cityHash64(substring(run_id, 1, 32))",
}
"""By what each table is spread over the shards."""

EVERYWHERE = ("schema_versions", "holds", "expired")
"""Tables that are not spread."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\n")
_VIEW = re.compile(r"CREATE MATERIALIZED VIEW IF NOT EXISTS (\w+) TO (\w+) AS\n")
_PLAIN_VIEW = re.compile(r"CREATE VIEW IF NOT EXISTS (\w+) AS\n")
_QUERY = re.compile(r"ALTER TABLE (\w+) MODIFY QUERY\n")
_ALTER = re.compile(r"ALTER TABLE (\w+) (?=(?:ADD|DROP) COLUMN )")
_DROP = re.compile(r"DROP TABLE IF EXISTS (\w+)")
_COPY = re.compile(r"INSERT INTO (\w+) \(")
_FROM = re.compile(r"FROM (\w+)")
_ENGINE = re.compile(r"ENGINE = (\w*MergeTree)(?:\((\w+)\))?")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the tables are made for."""

    name: str
    database: str = DATABASE
    replicated: bool = False
    """Whether each shard has replicas, which the servers' macros `shard` and `replica` name."""

    def __post_init__(self) -> None:
        """Raises UsageError where a name cannot stand in a statement."""
        for what, value in (("cluster", self.name), ("database", self.database)):
            if not _NAME.fullmatch(value):
                raise UsageError(f"The {what} {value!r} has no usable name; give letters, digits, '_', '.' and '-'.")


def statements(cluster: Cluster, *, applied: frozenset[int] = frozenset()) -> Iterator[str]:
    """The statements, in order; each can be repeated.

    Args:
        cluster: what for.
        applied: versions that are left out.
    """
    yield f"CREATE DATABASE IF NOT EXISTS `{cluster.database}` ON CLUSTER '{cluster.name}'"
    for migration in schema.migrations(embedded=False):
        if migration.version in applied:
            continue
        for statement in migration.statements():
            yield from _rewritten(statement, cluster)
        if migration.version:
            yield (
                f"INSERT INTO `{cluster.database}`.schema_versions SELECT {migration.version}, "
                f"'{migration.name}', '{migration.digest}', now64(3)"
            )


def apply(engine: Engine, cluster: Cluster) -> list[schema.Applied]:
    """Apply what is pending on every server of a cluster; gives what was applied. Raises StoreTooNew, StoreError."""
    if engine.embedded:
        raise UsageError("An embedded store is no cluster; name a server of it in OTEL_AGENT_REPLAY_DSN.")
    found = schema.status(engine)
    pending = [each for each in found if each.state == "pending"]
    if pending:
        applied = frozenset(each.version for each in found if each.state != "pending")
        for statement in statements(cluster, applied=applied):
            engine.command(statement)
    return [schema.Applied(each.version, each.name, "applied") for each in pending]


def _rewritten(statement: str, cluster: Cluster) -> Iterator[str]:
    where = f" ON CLUSTER '{cluster.name}'"
    if view := _VIEW.match(statement):
        name, target = view.groups()
        select = statement[view.end() :].replace("FROM otel_traces", f"FROM {_local(cluster, 'otel_traces')}")
        yield (
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS `{cluster.database}`.{name}{where} "
            f"TO {_local(cluster, target)} AS\n{select}"
        )
    elif table := _TABLE.match(statement):
        name = table[1]
        body = statement[table.end() :]
        single = cluster.replicated and name in EVERYWHERE
        local = f"`{cluster.database}`.{name}" if single else _local(cluster, name)
        if cluster.replicated:
            body = _ENGINE.sub(lambda found: _replicated(found[1], found[2], name), body)
        yield f"CREATE TABLE IF NOT EXISTS {local}{where}\n{body}"
        if not single:
            spread = f"Distributed('{cluster.name}', '{cluster.database}', '{name}_local', {SPREAD.get(name, '0')})"
            # Rows wait on the disk of the server that took them until their shard has them: on disk, not in its cache.
            yield (
                f"CREATE TABLE IF NOT EXISTS `{cluster.database}`.{name}{where} AS {local}\n"
                f"ENGINE = {spread}\nSETTINGS fsync_after_insert = 1, fsync_directories = 1"
            )
    elif table := _DROP.fullmatch(statement):
        for name in (table[1], f"{table[1]}_local") if table[1] in SPREAD else (table[1],):
            yield f"DROP TABLE IF EXISTS `{cluster.database}`.{name}{where}"
    else:
        yield from _changed(statement, cluster, where)


def _changed(statement: str, cluster: Cluster, where: str) -> Iterator[str]:
    """The forms of statements that change what an earlier file made."""
    if view := _QUERY.match(statement):
        select = statement[view.end() :].replace("FROM otel_traces", f"FROM {_local(cluster, 'otel_traces')}")
        yield f"ALTER TABLE `{cluster.database}`.{view[1]}{where} MODIFY QUERY\n{select}"
    elif table := _ALTER.match(statement):
        for name in (f"{table[1]}_local", table[1]):
            yield f"ALTER TABLE `{cluster.database}`.{name}{where} {statement[table.end() :]}"
    elif view := _PLAIN_VIEW.match(statement):
        select = _FROM.sub(rf"FROM `{cluster.database}`.\1", statement[view.end() :])
        yield f"CREATE VIEW IF NOT EXISTS `{cluster.database}`.{view[1]}{where} AS\n{select}"
    elif table := _COPY.match(statement):
        # Done by one server for all, and over only when every shard has its rows: what they were copied from goes next.
        rest = _FROM.sub(rf"FROM `{cluster.database}`.\1", statement[table.end(1) :])
        yield f"INSERT INTO `{cluster.database}`.{table[1]}{rest}\nSETTINGS insert_distributed_sync = 1"
    else:
        raise AssertionError(f"a statement of the schema is of a kind that has no form on a cluster: {statement[:80]}")


def _replicated(engine: str, version: str | None, name: str) -> str:
    """The engine with its path: of its own on each shard, or one for all."""
    path, replica = "/clickhouse/tables/{shard}/{database}/{table}", "{replica}"
    if name in EVERYWHERE:
        path, replica = "/clickhouse/tables/all/{database}/{table}", "{shard}-{replica}"
    rest = f", {version}" if version else ""
    return f"ENGINE = Replicated{engine}('{path}', '{replica}'{rest})"


def _local(cluster: Cluster, name: str) -> str:
    return f"`{cluster.database}`.{name}_local"
