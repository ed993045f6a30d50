"""One line of the list of runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from otel_agent_replay.recording.frames import masked_total
from otel_agent_replay.recording.tally import INPUT_TOKENS, OUTPUT_TOKENS, RunTally
from otel_agent_replay.recording.values import End, Kind

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Attribute, Recording


class Status(StrEnum):
    """How a run went."""

    OK = "ok"
    ERROR = "error"
    """It ended with an exception or an exit status other than 0."""
    UNFINISHED = "unfinished"
    """Its end was never recorded: its process was killed, or still runs (then it is `live`)."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What `runs` says of a run."""

    run_id: str
    trace_id: str
    name: str
    entry: str
    """Kind of the entry: process, function, asgi, wsgi; empty where the beginning of the run was lost."""
    within: str | None
    """Id of the run that this one began in; that one is, in turn, the prelude of this one."""
    replay_of: str | None
    started_ns: int
    duration_s: float | None
    """None where the end was not recorded."""
    status: Status
    end: str
    complete: bool
    """Nothing is known to be lacking: it ended, no frame was lost or cut, nothing uncaptured was noted. Whether
    every frame of content arrived at all is looked at when the run is loaded, not here."""
    live: bool
    crossings: int
    model_calls: int
    input_tokens: int
    output_tokens: int
    notes: int
    masked: int
    """Different values that were masked before anything was written; 0 too where its end was not recorded."""


def summarise(tally: RunTally) -> RunSummary:
    """Say what the counts of a run mean."""
    ended = tally.end is not End.UNFINISHED and tally.ended_ns > 0
    return RunSummary(
        run_id=tally.run_id,
        trace_id=tally.run_id.partition("-")[0],
        name=tally.name,
        entry=tally.entry,
        within=tally.within or None,
        replay_of=tally.origin or None,
        started_ns=tally.started_ns,
        duration_s=(tally.ended_ns - tally.started_ns) / 1e9 if ended else None,
        status=_status(tally, ended=ended),
        end=str(tally.end if ended else End.UNFINISHED),
        complete=ended and not tally.flaws,
        live=tally.live and not ended,
        crossings=tally.crossings,
        model_calls=tally.model_calls,
        input_tokens=tally.input_tokens,
        output_tokens=tally.output_tokens,
        notes=tally.notes,
        masked=tally.masked,
    )


def tally_of(recording: Recording, *, live: bool = False) -> RunTally:
    """Count a recording that has been loaded whole."""
    run = recording.run
    entry = run.entry.get("kind")
    within = run.entry.get("within")
    status = run.outcome.get("exit_status")
    return RunTally(
        run_id=run.run_id,
        name=run.name,
        entry=entry if isinstance(entry, str) else "",
        within=str(within.get("run") or "") if isinstance(within, dict) else "",
        origin=str(run.entry.get("origin") or ""),
        started_ns=run.started_ns,
        ended_ns=run.ended_ns,
        end=run.end,
        failed=run.end is End.RAISED or status not in (None, 0),
        crossings=len(recording.crossings),
        model_calls=sum(crossing.kind is Kind.MODEL for crossing in recording.crossings),
        input_tokens=sum(_count(crossing.attributes, INPUT_TOKENS) for crossing in recording.crossings),
        output_tokens=sum(_count(crossing.attributes, OUTPUT_TOKENS) for crossing in recording.crossings),
        notes=len(recording.notes),
        flaws=len(recording.missing) + sum(note.incomplete for note in recording.notes),
        masked=masked_total(run.outcome),
        live=live,
    )


def _status(tally: RunTally, *, ended: bool) -> Status:
    if not ended:
        return Status.UNFINISHED
    return Status.ERROR if tally.failed or tally.end is End.RAISED else Status.OK


def _count(attributes: dict[str, Attribute], name: str) -> int:
    value = attributes.get(name, 0)
    return value if isinstance(value, int) else 0
