"""`agent-replay schema`: the tables of the store."""

from __future__ import annotations

import click

from otel_agent_replay import settings
from otel_agent_replay.cli._output import emit_json, emit_table
from otel_agent_replay.errors import UsageError
from otel_agent_replay.store import cluster as clusters
from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import DATABASE, Engine


@click.group()
def command() -> None:
    """Apply the schema of the store, or say what is applied.

    The store is the one that OTEL_AGENT_REPLAY_DSN names. An embedded one is brought up to date by whatever reads
    it; a server is changed by `apply` only.
    """


@command.command()
@click.option("--cluster", metavar="NAME", help="Make the tables on every server of this cluster.")
@click.option("--replicated", is_flag=True, help="With --cluster: each shard has replicas.")
@click.option("--json", "as_json", is_flag=True, help="Print what was applied as JSON.")
def apply(cluster: str | None, replicated: bool, as_json: bool) -> None:  # noqa: FBT001 (click gives them by name)
    """Apply what is pending. What is applied already is left alone."""
    if replicated and cluster is None:
        raise UsageError("--replicated is for a cluster; add --cluster NAME.")
    with Engine(settings.read().dsn) as engine:
        if cluster is None:
            applied = schema.apply(engine)
        else:
            applied = clusters.apply(engine, clusters.Cluster(cluster, engine.database, replicated))
        where = engine.where
    if as_json:
        emit_json({"store": where, "applied": [_row(each) for each in applied]})
    elif applied:
        _table(applied)
    else:
        click.echo(f"The schema of {where} is up to date.")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def status(as_json: bool) -> None:  # noqa: FBT001 (click gives it by name)
    """Say which versions are applied. Exits with 1 where some are not."""
    with Engine(settings.read().dsn) as engine:
        found = schema.status(engine)
        where = engine.where
    if as_json:
        emit_json({"store": where, "versions": [_row(each) for each in found]})
    else:
        _table(found)
    if any(each.state != "applied" for each in found):
        raise SystemExit(1)


@command.command()
@click.option("--cluster", required=True, metavar="NAME", help="Name of the cluster, as its servers know it.")
@click.option("--database", default=DATABASE, show_default=True, help="Name of the database.")
@click.option("--replicated", is_flag=True, help="Each shard has replicas; macros `shard` and `replica` name them.")
def render(cluster: str, database: str, replicated: bool) -> None:  # noqa: FBT001 (click gives them by name)
    """Print the SQL that makes the tables on a cluster, and change nothing."""
    for statement in clusters.statements(clusters.Cluster(cluster, database, replicated)):
        click.echo(f"{statement};\n")


def _table(rows: list[schema.Applied]) -> None:
    emit_table(
        ("version", "name", "state"), [(str(each.version), each.name, each.state) for each in rows], ("version",)
    )


def _row(each: schema.Applied) -> dict[str, object]:
    return {"version": each.version, "name": each.name, "state": each.state}
