"""What the store is asked: which runs there are, what they count up to, and the frames of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_agent_replay.recording import names
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import RunTally, end_of
from otel_agent_replay.store.rows import content_attribute, frame_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.store.clickhouse import Engine

MOST_CANDIDATES = 1000
"""So many runs at most are looked up for a prefix or a trace id."""

_TALLIES = """
WITH listed AS
(
    SELECT run_id, name, entry, within, origin, started, duration_ns, finished, ending, failed, cut, masked
    FROM
    (
        SELECT run_id, name, entry, within, origin, started, duration_ns, finished, ending, failed, cut,
               toUInt64OrZero(attributes['agent_replay.masked']) AS masked
        FROM runs FINAL
        WHERE origin = '' OR {replays:Bool}
        %s
    )
    ORDER BY started DESC, run_id DESC
    LIMIT {limit:UInt64}
)
SELECT
    run_id, name, entry, within, origin, toUnixTimestamp64Nano(started), duration_ns, finished, ending, failed,
    crossed.calls, crossed.model_calls, crossed.input_tokens, crossed.output_tokens,
    noted.notes, noted.flaws + crossed.cuts + cut + %s, masked
FROM listed
LEFT JOIN
(
    SELECT run_id, count() AS calls, countIf(kind = 'model') AS model_calls, sum(input_tokens) AS input_tokens,
           sum(output_tokens) AS output_tokens, countIf(cut) AS cuts
    FROM crossings FINAL
    WHERE {all:Bool} OR run_id IN (SELECT run_id FROM listed)
    GROUP BY run_id
) AS crossed USING run_id
LEFT JOIN
(
    SELECT run_id, sum(notes) AS notes, sum(flaws) + countIf(cut) AS flaws
    FROM readings FINAL
    WHERE {all:Bool} OR run_id IN (SELECT run_id FROM listed)
    GROUP BY run_id
) AS noted USING run_id
%s
ORDER BY started DESC, run_id DESC
"""
_BEGINNING_LOST = """
        UNION ALL
        SELECT run_id, '', '', '', '', min(started), 0, false, '', false, false, 0
        FROM crossings
        WHERE run_id IN (SELECT run_id FROM damages) AND run_id NOT IN (SELECT run_id FROM runs)
        GROUP BY run_id
"""
_DAMAGES = """
LEFT JOIN (SELECT run_id, count() AS lost FROM damages FINAL GROUP BY run_id) AS hurt USING run_id
"""


def tallies(engine: Engine, *, limit: int | None = None, replays: bool = False) -> Iterator[RunTally]:
    """Runs, newest first, and what their frames count up to. No payload is read.

    Args:
        engine: the open store.
        limit: at most so many; None for all, which are streamed.
        replays: list the runs that are replays too.
    """
    sql = _TALLIES % ((_BEGINNING_LOST, "hurt.lost", _DAMAGES) if engine.embedded else ("", "0", ""))
    asked = {"limit": limit if limit is not None else 1 << 62, "all": limit is None, "replays": replays}
    for row in engine.rows(sql, asked):
        yield _tally(row)


def matching(engine: Engine, prefix: str) -> list[str]:
    """Ids of the runs that begin so, newest first: a run id begins with its trace id."""
    sql = """
        SELECT run_id FROM runs FINAL WHERE startsWith(run_id, {prefix:String})
        ORDER BY started DESC, run_id DESC LIMIT {most:UInt64}
    """
    found = [str(row[0]) for row in engine.rows(sql, {"prefix": prefix, "most": MOST_CANDIDATES})]
    if found:
        return found
    sql = "SELECT DISTINCT run_id FROM crossings WHERE startsWith(run_id, {prefix:String}) LIMIT {most:UInt64}"
    return [str(row[0]) for row in engine.rows(sql, {"prefix": prefix, "most": MOST_CANDIDATES})]


def latest(engine: Engine) -> str | None:
    """Id of the run that began last and is no replay; None where there is none."""
    sql = "SELECT run_id FROM runs FINAL WHERE origin = '' ORDER BY started DESC, run_id DESC LIMIT 1"
    return next((str(row[0]) for row in engine.rows(sql)), None)


def count(engine: Engine) -> int:
    """How many runs there are, replays left out."""
    return next(int(row[0]) for row in engine.rows("SELECT count() FROM runs FINAL WHERE origin = ''"))


def runs_of_files(engine: Engine, files: list[str]) -> set[str]:
    """Ids of the runs that were loaded from these spool files."""
    sql = "SELECT DISTINCT run_id FROM loaded_runs WHERE file IN {files:Array(String)}"
    return {str(row[0]) for row in engine.rows(sql, {"files": files})}


def within(engine: Engine, run_id: str) -> list[str]:
    """Ids of the runs that began in this one."""
    sql = "SELECT run_id FROM runs FINAL WHERE within = {run:String} ORDER BY started, run_id"
    return [str(row[0]) for row in engine.rows(sql, {"run": run_id})]


def damages(engine: Engine, run_id: str) -> list[str]:
    """Where frames of this run may have been lost; one clause each."""
    if not engine.embedded:
        return []
    sql = "SELECT file, why FROM damages FINAL WHERE run_id = {run:String} ORDER BY file, offset"
    return [f"the spool file {file}: {why}" for file, why in engine.rows(sql, {"run": run_id})]


def frames(engine: Engine, run_id: str) -> Iterator[Frame]:
    """Every frame of a run, each once: the run, contents before what refers to them, readings, crossings."""
    asked = {"run": run_id}
    rows = engine.rows(
        "SELECT run_id, parent_span_id, name, span_kind, toUnixTimestamp64Nano(started), duration_ns, finished, "
        "failed, attributes, payload FROM runs FINAL WHERE run_id = {run:String}",
        asked,
        raw=True,
    )
    for _, parent, name, span_kind, started, lasted, finished, failed, attributes, payload in rows:
        yield frame_of(
            FrameKind.RUN if finished else FrameKind.RUN_START,
            run_id,
            run_id[33:],
            parent_span_id=_text(parent),
            name=_text(name),
            started_ns=started,
            duration_ns=lasted,
            finished=bool(finished),
            failed=bool(failed),
            span_kind=span_kind,
            attributes=_texts(attributes),
            payload=payload,
        )
    yield from _contents(engine, run_id)
    rows = engine.rows(
        "SELECT span_id, toUnixTimestamp64Nano(started), attributes, payload FROM readings FINAL "
        "WHERE run_id = {run:String} ORDER BY started, span_id",
        asked,
        raw=True,
    )
    for span_id, started, attributes, payload in rows:
        yield frame_of(
            FrameKind.READINGS,
            run_id,
            _text(span_id),
            parent_span_id=run_id[33:],
            started_ns=started,
            attributes=_texts(attributes),
            payload=payload,
        )
    yield from _crossings(engine, run_id)


def _crossings(engine: Engine, run_id: str) -> Iterator[Frame]:
    rows = engine.rows(
        "SELECT span_id, parent_span_id, name, span_kind, toUnixTimestamp64Nano(started), duration_ns, finished, "
        "failed, attributes, payload FROM crossings FINAL WHERE run_id = {run:String}",
        {"run": run_id},
        raw=True,
    )
    for span_id, parent, name, span_kind, started, lasted, finished, failed, attributes, payload in rows:
        yield frame_of(
            FrameKind.CROSSING if finished else FrameKind.CROSSING_START,
            run_id,
            _text(span_id),
            parent_span_id=_text(parent),
            name=_text(name),
            started_ns=started,
            duration_ns=lasted,
            finished=bool(finished),
            failed=bool(failed),
            span_kind=span_kind,
            attributes=_texts(attributes),
            payload=payload,
        )


def _contents(engine: Engine, run_id: str) -> Iterator[Frame]:
    rows = engine.rows(
        "SELECT digest, toUnixTimestamp64Nano(seen), content FROM contents FINAL WHERE run_id = {run:String}",
        {"run": run_id},
        raw=True,
    )
    for digest, seen, content in rows:
        key, value = content_attribute(_text(digest), content)
        attributes = {names.SCHEMA: str(names.SCHEMA_VERSION), names.RUN_SPAN: run_id[33:], key: value}
        span_id = _text(digest)[:16]
        yield frame_of(FrameKind.CONTENTS, run_id, span_id, started_ns=seen, attributes=attributes)


def _tally(row: Sequence[Any]) -> RunTally:
    started, lasted, finished = int(row[5]), int(row[6]), bool(row[7])
    return RunTally(
        run_id=row[0],
        name=row[1],
        entry=row[2],
        within=row[3],
        origin=row[4],
        started_ns=started,
        ended_ns=started + lasted if finished else 0,
        end=end_of(row[8]),
        failed=bool(row[9]),
        crossings=row[10],
        model_calls=row[11],
        input_tokens=row[12],
        output_tokens=row[13],
        notes=row[14],
        flaws=row[15],
        masked=row[16],
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _texts(attributes: dict[bytes, bytes]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in attributes.items()}
