"""`agent-replay status`: how much is recorded, shipped, waiting and refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from otel_agent_replay import settings
from otel_agent_replay.cli._output import emit_json, emit_table, warn
from otel_agent_replay.errors import EXIT_FAILS
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.standing import standing

if TYPE_CHECKING:
    from otel_agent_replay.telemetry.shipping.standing import FileStanding, Standing


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(as_json: bool) -> None:  # noqa: FBT001 (click gives it by name)
    """Say how many frames are recorded, shipped, waiting and refused, by file and in all.

    Exits with 1 where frames were refused, or wait for a receiver that nothing gets through to.
    """
    wanted = settings.read()
    to = destination.read(os.environ) if wanted.ship else None
    found = standing(wanted.home)
    failing = found.failing if found.waiting_bytes else {}
    if as_json:
        emit_json(
            {
                "endpoint": to.where if to is not None else None,
                "home": str(wanted.home),
                "store": wanted.dsn.rpartition("@")[2],
                **_totals(found),
                "failing": [*failing.values()],
                "files": [_row(each) for each in found.files],
            }
        )
    else:
        _print(found)
        if to is None:
            click.echo("No receiver is named (OTEL_EXPORTER_OTLP_ENDPOINT): the spool is where recordings stay.")
        else:
            click.echo(f"Receiver: {to.where}")
        for why in failing.values():
            warn(f"nothing gets through: {why}")
        if found.refused:
            warn(f"what was refused is in {wanted.home / 'refused'}, with the reasons; `agent-replay ship --refused`.")
    if found.refused or failing:
        raise SystemExit(EXIT_FAILS)


def _totals(found: Standing) -> dict[str, object]:
    shipped = found.shipped
    return {
        "recorded": found.recorded,
        "shipped": shipped.frames,
        "shipped_bytes": shipped.bytes,
        "spans": shipped.spans,
        "waiting": found.waiting,
        "waiting_bytes": found.waiting_bytes,
        "refused": found.refused,
        "refused_bytes": sum(size for _, size in found.aside.values()),
        "removed_files": found.gone.frames,
    }


def _row(each: FileStanding) -> dict[str, object]:
    return {
        "file": each.name,
        "live": each.live,
        "bytes": each.size,
        "recorded": each.shipped.frames + each.refused + each.waiting,
        "shipped": each.shipped.frames,
        "waiting": each.waiting,
        "waiting_bytes": each.waiting_bytes,
        "refused": each.refused,
        "ships": bool(each.destination),
    }


def _print(found: Standing) -> None:
    numbers = ["recorded", "shipped", "waiting", "refused", "bytes waiting"]
    rows = [
        (
            each.name,
            "live" if each.live else "ended",
            *_cells(each.shipped.frames, each.refused, each.waiting, each.waiting_bytes),
        )
        for each in found.files
    ]
    here = {each.name for each in found.files}
    aside = sum(count for name, (count, _) in found.aside.items() if name not in here)
    if found.gone.frames or aside:
        rows.append(("(removed)", "ended", *_cells(found.gone.frames, aside, 0, 0)))
    shipped = found.shipped
    rows.append(("in all", "", *_cells(shipped.frames, found.refused, found.waiting, found.waiting_bytes)))
    emit_table(("file", "process", *numbers), rows, right=numbers, folded=("file",))


def _cells(shipped: int, refused: int, waiting: int, waiting_bytes: int) -> tuple[str, ...]:
    return tuple(f"{n:,}" for n in (shipped + refused + waiting, shipped, waiting, refused, waiting_bytes))
