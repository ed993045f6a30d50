"""`agent-replay runs`: what has been recorded."""

from __future__ import annotations

from collections import Counter

import click

from otel_agent_replay import settings
from otel_agent_replay.analysis.summary import RunSummary, Status, summarise
from otel_agent_replay.cli._output import (
    buffered_list,
    duration,
    emit_buffered,
    emit_table,
    iso,
    local,
    on_terminal,
    warn,
)
from otel_agent_replay.store import listing

SHOWN = 50
"""Runs in a table, unless asked otherwise. JSON holds all of them."""

SHORT_ID = 8
"""Hex digits of a run's id in a table on a terminal."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, newest first.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=None, help=f"At most so many; 0 for all. A table: {SHOWN}."
)
@click.option(
    "--all", "with_replays", is_flag=True, help="List replays too, and processes that recorded programs started."
)
def command(as_json: bool, limit: int | None, with_replays: bool) -> None:  # noqa: FBT001 (click gives it by name)
    """List the recorded runs, newest first.

    What is in the spool is loaded into the store on the way, where the store is the embedded one.
    """
    if limit is None and not as_json:
        limit = SHOWN
    wanted = limit or None
    with listing.opened(settings.read()) as runs:
        for problem in runs.problems:
            warn(problem)
        found = map(summarise, runs.tallies(limit=wanted, replays=with_replays))
        if as_json:
            text = buffered_list(as_row(summary) for summary in found)
        else:
            rows = _rows(list(found), replays=with_replays)
            more = runs.count(replays=with_replays) - len(rows) if wanted is not None else 0
            where = runs.where
    # The store is free for others by now, however slowly what is printed is read.
    if as_json:
        emit_buffered(text)
    elif rows:
        _table(rows, more, replays=with_replays)
    else:
        click.echo(f"No runs in {where}.")


def as_row(summary: RunSummary) -> dict[str, object]:
    """A summary as `--json` prints it. Keys are only ever added."""
    return {
        "run_id": summary.run_id,
        "trace_id": summary.trace_id,
        "name": summary.name,
        "started_at": iso(summary.started_ns),
        "duration_s": summary.duration_s,
        "status": str(summary.status),
        "complete": summary.complete,
        "crossings": summary.crossings,
        "model_calls": summary.model_calls,
        "input_tokens": summary.input_tokens,
        "output_tokens": summary.output_tokens,
        "entry": summary.entry,
        "end": summary.end,
        "live": summary.live,
        "notes": summary.notes,
        "within": summary.within,
        "replay_of": summary.replay_of,
        "masked": summary.masked,
    }


def _table(rows: list[tuple[str, ...]], more: int, *, replays: bool) -> None:
    facts = ["started", "run", "name", *(["replay of"] if replays else []), "entry", "status", "complete"]
    numbers = ["took", "calls", "model", "in", "out"]
    if on_terminal():
        facts.remove("complete")
    emit_table((*facts, *numbers), rows, right=numbers, folded=("name", "entry"))
    if more > 0:
        click.echo(f"… and {more:,} older runs; --limit 0 shows all.", err=True)


def _rows(summaries: list[RunSummary], *, replays: bool) -> list[tuple[str, ...]]:
    """Cells. On a terminal, which may be narrow, a run is named by the beginning of its id where that is enough."""
    brief = on_terminal()
    ids = Counter(summary.run_id[:SHORT_ID] for summary in summaries)
    return [
        (
            local(each.started_ns, brief=brief),
            each.run_id[:SHORT_ID] if brief and ids[each.run_id[:SHORT_ID]] == 1 else each.run_id,
            each.name or "?",
            *(((each.replay_of or "")[: SHORT_ID if brief else None],) if replays else ()),
            each.entry or "?",
            *_state(each, brief=brief),
            duration(each.duration_s) if each.duration_s is not None else "",
            str(each.crossings),
            str(each.model_calls),
            f"{each.input_tokens:,}",
            f"{each.output_tokens:,}",
        )
        for each in summaries
    ]


def _state(summary: RunSummary, *, brief: bool) -> tuple[str, ...]:
    """Status and completeness, in two cells or in one: what is unfinished is incomplete anyway."""
    status = "live" if summary.live else str(summary.status)
    if not brief:
        return status, "yes" if summary.complete else "no"
    lacks = not summary.complete and summary.status is not Status.UNFINISHED
    return (f"{status}, incomplete" if lacks else status,)
