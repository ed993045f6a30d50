"""`agent-replay release`: let retention have a run again."""

from __future__ import annotations

import click

from otel_agent_replay import settings
from otel_agent_replay.store import expiry, find, holds


@click.command()
@click.argument("run")
def command(run: str) -> None:
    """Let retention have RUN again."""
    place = settings.read()
    run_id = find.find_run(place, run)
    with expiry.opened(place) as engine:
        released = holds.release(engine, run_id)
    click.echo(f"Run {run_id} is released." if released else f"Run {run_id} was not held.")
