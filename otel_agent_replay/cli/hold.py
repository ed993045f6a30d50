"""`agent-replay hold`: keep a run whatever its age."""

from __future__ import annotations

import click

from otel_agent_replay import settings
from otel_agent_replay.cli._output import emit_json, emit_table, iso
from otel_agent_replay.errors import UsageError
from otel_agent_replay.store import expiry, find, holds


@click.command()
@click.argument("run", required=False)
@click.option("--reason", default="", metavar="TEXT", help="Why it is held; `hold` without a run prints it.")
@click.option("--json", "as_json", is_flag=True, help="Print what is held as JSON.")
def command(run: str | None, reason: str, as_json: bool) -> None:  # noqa: FBT001 (click gives them by name)
    """Keep RUN, and what it needs to be replayed, until it is released.

    Without RUN, list what is held.
    """
    if run is None and reason:
        raise UsageError("--reason needs a run to hold; give its id, or `latest`.")
    place = settings.read()
    run_id = find.find_run(place, run) if run is not None else None
    with expiry.opened(place) as engine:
        if run_id is not None:
            holds.hold(engine, run_id, reason)
        held = list(holds.held_runs(engine).values())
    if as_json:
        emit_json([{"run_id": each.run_id, "since": iso(each.since_ns), "reason": each.reason} for each in held])
    elif run_id is not None:
        click.echo(f"Run {run_id} is held; `agent-replay release {run_id}` lets it go.")
    elif held:
        emit_table(("run", "since", "reason"), [(each.run_id, iso(each.since_ns), each.reason) for each in held])
    else:
        click.echo("No run is held.")
