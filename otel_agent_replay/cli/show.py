"""`agent-replay show`: one run, its crossings by lane."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections import Counter
from typing import TYPE_CHECKING

import click

from otel_agent_replay import settings
from otel_agent_replay.analysis import excerpt
from otel_agent_replay.analysis.summary import RunSummary, summarise, tally_of
from otel_agent_replay.boundary.draws import DRAWN
from otel_agent_replay.cli import _output as output
from otel_agent_replay.cli.runs import as_row
from otel_agent_replay.recording import names
from otel_agent_replay.recording.contents import MissingContent
from otel_agent_replay.recording.values import NoteKind
from otel_agent_replay.store import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_agent_replay.recording.values import Attempt, CrossingRecord, Json, ReadingRecord, Recording

SHORT = 60
"""Characters of an input or outcome in a table."""


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--full", is_flag=True, help="Print inputs and outcomes whole.")
def command(run: str, as_json: bool, full: bool) -> None:  # noqa: FBT001 (click gives it by name)
    """Show RUN: its crossings by lane, with inputs and outcomes, and what is known to be lacking."""
    with find.opened(settings.read()) as recordings:
        run_id = recordings.find(run)
        pile = recordings.gather(run_id)
        live = recordings.is_live(run_id)
    recording = find.recording_of(pile)
    summary = summarise(tally_of(recording, live=live))
    if as_json:
        _emit_json(recording, summary)
        return
    for name, value in _heading(recording, summary):
        click.echo(f"{name:<11} {output.printable(value)}")
    _manifest(recording)
    for lane in _lanes(recording):
        _lane(recording, lane, full=full)


def _heading(recording: Recording, summary: RunSummary) -> Iterator[tuple[str, str]]:
    run, world, outcome = recording.run, recording.run.world, recording.run.outcome
    yield "run", run.run_id
    status = "live" if summary.live else str(summary.status)
    yield "name", f"{run.name}  ({summary.entry or 'its beginning is lost'}, {status}, {_completeness(recording)})"
    took = f", took {output.duration(summary.duration_s)}" if summary.duration_s is not None else ""
    yield "started", f"{output.local(run.started_ns)}{took}"
    if summary.replay_of:
        yield "replay of", summary.replay_of
        yield from _replayed(outcome.get("replay"))
    yield from _entered(run.entry)
    for name in ("directory", "python", "hash_seed", "host"):
        if value := world.get(name):
            yield name.replace("_", " "), str(value)
    git = world.get("git")
    if isinstance(git, dict):
        dirty = {True: ", with changes", False: ""}.get(bool(outcome.get("git_dirty", git.get("dirty"))), "")
        yield "git", f"{git.get('commit')} {git.get('branch') or ''}".strip() + dirty
    packages = outcome.get("packages") or world.get("packages")
    if isinstance(packages, dict) and packages:
        yield "packages", ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    environment = world.get("environment")
    if isinstance(environment, dict):
        for name, value in environment.items():
            yield "environment", f"{name}={value}" if value is not None else f"{name} is not set"
    calls = _number(summary.model_calls, "model call")
    yield "tokens", f"{summary.input_tokens:,} in, {summary.output_tokens:,} out; {calls}"
    if masked := outcome.get("masked"):
        yield "masked", _masked(masked)
    if within := summary.within:
        yield "within", within
    yield from _end(outcome)


def _entered(entry: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """How the run was entered."""
    argv = entry.get("argv")
    if isinstance(argv, list):
        yield "command", shlex.join(map(str, argv))
    elif target := entry.get("target") or entry.get("path"):
        yield "entry", excerpt.plain(target)
    if started_by := entry.get("started_by"):
        yield "started by", excerpt.plain(started_by)


def _replayed(result: Json) -> Iterator[tuple[str, str]]:
    """What came of a replay."""
    if not isinstance(result, dict):
        return
    reasons = result.get("reasons")
    why = f" ({'; '.join(map(str, reasons))})" if isinstance(reasons, list) and reasons else ""
    answered = f"{result.get('answered')} of {result.get('crossings')} calls answered"
    yield "verdict", f"{result.get('verdict')}{why}; {answered}, exit code {result.get('exit_code')}"


def _masked(kinds: Json) -> str:
    """How many values were masked, and what found them."""
    counts = {kind: count for kind, count in kinds.items() if type(count) is int} if isinstance(kinds, dict) else {}
    each = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return f"{_number(sum(counts.values()), 'value')} ({each})"


def _end(outcome: dict[str, Json]) -> Iterator[tuple[str, str]]:
    if (status := outcome.get("exit_status")) is not None:
        yield "exit status", str(status)
    exception = outcome.get("exception")
    if isinstance(exception, dict):
        yield "exception", f"{exception.get('type')}: {exception.get('message')}"
    for name in ("declared", "returned"):
        if name in outcome:
            yield name, output.shortened(excerpt.plain(outcome[name]), 500)


def _completeness(recording: Recording) -> str:
    return "complete" if recording.complete else "incomplete"


def _manifest(recording: Recording) -> None:
    """What happened and was not captured, and what is lacking."""
    lines = [f"missing     {sentence}" for sentence in recording.missing]
    for note in recording.notes:
        where = f" ({note.where})" if note.where else ""
        harm = "" if note.incomplete else "; does no harm"
        if note.kind is NoteKind.OBSERVED:
            harm = "; where two of them raced, a replay may depart"
        lines.append(f"{note.kind!s:<11} {note.what}{where}{harm}")
    for line in lines:
        click.echo(output.printable(line))


def _lanes(recording: Recording) -> list[str]:
    """Lanes, in the order in which they first did something; those with readings only after the others."""
    found = dict.fromkeys(crossing.position.lane for crossing in recording.crossings)
    found |= dict.fromkeys(reading.lane for reading in recording.readings)
    return list(found)


def _lane(recording: Recording, lane: str, *, full: bool) -> None:
    crossings = [crossing for crossing in recording.crossings if crossing.position.lane == lane]
    readings = [reading for reading in recording.readings if reading.lane == lane]
    click.echo(f"\n{output.printable(lane) or '(no lane)'}  {_counted(crossings, readings)}")
    if not crossings:
        return
    replay = bool(recording.run.entry.get("origin"))
    if full:
        for crossing in crossings:
            _whole(crossing)
        return
    rows = [
        (
            str(crossing.position.ordinal),
            "" if crossing.seq is None else str(crossing.seq),
            crossing.position.key,
            _took(crossing),
            str(crossing.end),
            *((str(crossing.attributes.get(names.ANSWERED, "")),) if replay else ()),
            excerpt.statuses(crossing),
            output.shortened(excerpt.asked(crossing), SHORT),
            output.shortened(excerpt.answered(crossing), SHORT),
        )
        for crossing in crossings
    ]
    columns = ("#", "order", "key", "took", "end", *(("how",) if replay else ()), "http", "asked", "answered")
    output.emit_table(columns, rows, right=("#", "order", "took"), folded=("key", "http", "asked", "answered"))


def _counted(crossings: list[CrossingRecord], readings: list[ReadingRecord]) -> str:
    parts = [_number(len(crossings), "crossing")] if crossings else []
    counts: Counter[str] = Counter()
    for reading in readings:
        if reading.source.startswith(DRAWN):
            continue  # nothing that the program took in
        counts[reading.source] += len(reading.values)
    if counts:
        each = ", ".join(f"{source} {count}" for source, count in sorted(counts.items()))
        parts.append(f"{_number(counts.total(), 'reading')} ({each})")
    return "; ".join(parts)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _whole(crossing: CrossingRecord) -> None:
    how = str(crossing.attributes.get(names.ANSWERED, ""))
    facts = [str(crossing.end), how, _took(crossing), excerpt.statuses(crossing)]
    click.echo(f"\n  {output.printable(str(crossing.position))}  {', '.join(filter(None, facts))}")
    if not crossing.attempts:
        _block("asked", excerpt.plain(crossing.input))
    for attempt in crossing.attempts:
        _block("asked", f"{attempt.request.method} {attempt.request.url}\n{_body_text(_body(attempt))}")
        status = f"{attempt.head.status} {attempt.head.reason}" if attempt.head is not None else "no response"
        chunks, size = excerpt.sizes(attempt)
        text = _body_text(b"".join(attempt.chunks))
        came = f"{status}; {_number(chunks, 'chunk')}, {_number(size, 'byte')}; {attempt.end}"
        _block("answered", f"{came} {excerpt.plain(attempt.error)}".rstrip() + f"\n{text}")
    for item in crossing.items:
        _block("gave", excerpt.plain(item))
    if crossing.outcome is not None:
        _block("outcome", excerpt.plain(crossing.outcome))
    if crossing.after is not None:
        _block("changed", excerpt.plain(crossing.after))


def _block(name: str, text: str) -> None:
    lines = text.rstrip("\n").split("\n")
    click.echo(f"    {name}:")
    for line in lines:
        click.echo(f"      {output.printable(line)}")


def _took(crossing: CrossingRecord) -> str:
    return output.duration((crossing.ended_ns - crossing.started_ns) / 1e9) if crossing.ended_ns else ""


def _body(attempt: Attempt) -> bytes | None:
    try:
        return attempt.request.body
    except MissingContent:
        return None


def _body_text(body: bytes | None) -> str:
    if body is None:
        return "(its content is lacking)"
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are no text)"


def _emit_json(recording: Recording, summary: RunSummary) -> None:
    """One object, its crossings written one by one: all bodies of a long chat together may be very large."""
    lanes = {
        lane: {
            "crossings": sum(crossing.position.lane == lane for crossing in recording.crossings),
            "readings": sum(len(reading.values) for reading in recording.readings if reading.lane == lane),
        }
        for lane in _lanes(recording)
    }
    head: dict[str, object] = {
        "run": as_row(summary),
        "entry": recording.run.entry,
        "world": recording.run.world,
        "outcome": recording.run.outcome,
        "missing": recording.missing,
        "notes": [
            {"kind": str(note.kind), "what": note.what, "where": note.where, "incomplete": note.incomplete}
            for note in recording.notes
        ],
        "lanes": lanes,
        "readings": [
            {"lane": each.lane, "source": each.source, "site": each.site, "first": each.first, "values": each.values}
            for each in recording.readings
        ],
        "order": [
            {"lane": each.lane, "key": each.key, "ordinal": each.ordinal, "seq": each.seq} for each in recording.order
        ],
    }
    click.echo(f'{output.as_json(head, indent=2)[:-2]},\n  "crossings": [', nl=False)
    for number, crossing in enumerate(recording.crossings):
        click.echo(("," if number else "") + "\n    " + output.as_json(_crossing_row(crossing)), nl=False)
    click.echo("\n  ]\n}")


def _crossing_row(crossing: CrossingRecord) -> dict[str, object]:
    position = crossing.position
    return {
        "lane": position.lane,
        "key": position.key,
        "ordinal": position.ordinal,
        "kind": str(crossing.kind),
        "name": crossing.name,
        "span_id": f"{crossing.span_id:016x}",
        "parent_span_id": f"{crossing.parent_span_id:016x}",
        "started_at": output.iso(crossing.started_ns),
        "duration_s": (crossing.ended_ns - crossing.started_ns) / 1e9 if crossing.ended_ns else None,
        "end": str(crossing.end),
        "answered": crossing.attributes.get(names.ANSWERED),
        "answered_by": crossing.attributes.get(names.ANSWERED_BY),
        "seq": crossing.seq,
        "wire": crossing.wire,
        "input": crossing.input,
        "outcome": crossing.outcome,
        "items": crossing.items,
        "after": crossing.after,
        "attempts": [_attempt_row(attempt) for attempt in crossing.attempts],
        "attributes": crossing.attributes,
    }


def _attempt_row(attempt: Attempt) -> dict[str, object]:
    request, head = attempt.request, attempt.head
    return {
        "method": request.method,
        "url": request.url,
        "request_headers": request.headers,
        "request_body": _as_text(_body(attempt)),
        "status": head.status if head is not None else None,
        "reason": head.reason if head is not None else None,
        "response_headers": head.headers if head is not None else [],
        "response_body": _as_text(b"".join(attempt.chunks)),
        "chunks": [len(chunk) for chunk in attempt.chunks],
        "offsets_us": attempt.offsets,
        "chunk_order": attempt.seqs,
        "end": str(attempt.end),
        "error": attempt.error,
    }


def _as_text(body: bytes | None) -> object:
    """A body as text; an object with its base64 where it is not UTF-8; null where it is lacking."""
    if body is None:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode()}
