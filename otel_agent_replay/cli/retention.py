"""`agent-replay retention`: remove the runs whose time is over."""

from __future__ import annotations

import click

from otel_agent_replay import settings
from otel_agent_replay.cli._output import emit_json, emit_table, iso, size, warn
from otel_agent_replay.store import expiry
from otel_agent_replay.store.retention import Policy

SHOWN = 20
"""Runs in a table. JSON holds all of them."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what went as JSON.")
def command(dry_run: bool, as_json: bool) -> None:  # noqa: FBT001 (click gives them by name)
    """Remove the runs whose time is over, whole, from the store and from the spool.

    OTEL_AGENT_REPLAY_KEEP_SUCCEEDED and OTEL_AGENT_REPLAY_KEEP_FAILED say how long runs are kept. What is held
    (`agent-replay hold`), still recorded or needed by a run that stays is left alone.
    """
    place = settings.read()
    result = expiry.expire(place, Policy(place.keep_succeeded_ns, place.keep_failed_ns), dry_run=dry_run)
    for problem in result.problems:
        warn(problem)
    plan = result.plan
    if as_json:
        emit_json(
            {
                "store": result.where,
                "dry_run": dry_run,
                "succeeded": len(plan.doomed) - plan.failed,
                "failed": plan.failed,
                "bytes": plan.bytes,
                "held": plan.held,
                "needed": plan.needed,
                "spool_files": [file.name for file in result.files],
                "spool_bytes": sum(file.size for file in result.files),
                "runs": [
                    {"run_id": run_id, "failed": run.failed, "last": iso(run.last_ns)}
                    for run_id, run in plan.doomed.items()
                ],
            }
        )
        return
    rows = [(run_id, "failed" if run.failed else "succeeded", iso(run.last_ns)) for run_id, run in plan.doomed.items()]
    if rows:
        emit_table(("run", "went", "last"), rows[:SHOWN])
    if len(rows) > SHOWN:
        click.echo(f"… and {len(rows) - SHOWN:,} more; --json lists all.", err=True)
    verb = "would go" if dry_run else "removed"
    click.echo(
        f"{len(rows) - plan.failed:,} succeeded and {plan.failed:,} failed runs {verb}, {size(plan.bytes)} of payload "
        f"and content; {len(result.files):,} spool files, {size(sum(file.size for file in result.files))}."
    )
    if plan.held or plan.needed:
        click.echo(f"Kept beyond their time: {plan.held:,} held, {plan.needed:,} needed by runs that stay.")
