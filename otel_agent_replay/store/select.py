"""What the store is asked: which runs there are, what they count up to, and the frames of one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_agent_replay.recording import names
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.rope import digest_of
from otel_agent_replay.recording.tally import RunTally, end_of
from otel_agent_replay.store import literals
from otel_agent_replay.store.rows import content_attribute, frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.store.clickhouse import Engine

MOST_CANDIDATES = 1000
"""So many runs at most are looked up for a prefix or a trace id."""

_NEWEST = """
SELECT run_id, max(toUnixTimestamp64Nano(started)) AS began
FROM
(
    SELECT run_id, started FROM runs WHERE origin = '' OR {replays:Bool}
    ORDER BY started DESC
    LIMIT {rows:UInt64}
    %s
)
GROUP BY run_id
ORDER BY began DESC, run_id DESC
"""
"""Ids alone: a run's beginning and its end say the same of when it began, so that duplicates need not be merged."""
_NEWEST_BEGINNING_LOST = """
    UNION ALL
    SELECT run_id, min(started) FROM crossings WHERE run_id IN %s GROUP BY run_id
"""
_TALLIES = """
SELECT
    run_id, name, entry, within, origin, toUnixTimestamp64Nano(started), duration_ns, finished, ending, failed,
    crossed.calls, crossed.model_calls, crossed.input_tokens, crossed.output_tokens,
    noted.notes, noted.flaws + crossed.cuts + cut + %(lost)s, masked
FROM
(
    SELECT run_id, name, entry, within, origin, started, duration_ns, finished, ending, failed, cut, masked
    FROM %(runs)s
    WHERE origin = '' OR {replays:Bool}
    %(beginning_lost)s
) AS listed
LEFT JOIN
(
    SELECT run_id, count() AS calls, countIf(kind = 'model') AS model_calls, sum(input_tokens) AS input_tokens,
           sum(output_tokens) AS output_tokens, countIf(cut) AS cuts
    FROM %(crossings)s
    GROUP BY run_id
) AS crossed USING run_id
LEFT JOIN
(
    SELECT run_id, sum(notes) AS notes, sum(flaws) + countIf(cut) AS flaws
    FROM %(readings)s
    GROUP BY run_id
) AS noted USING run_id
%(damages)s
ORDER BY started DESC, run_id DESC
"""
_RUN = "* EXCEPT (payload, attributes), toUInt64OrZero(attributes['agent_replay.masked']) AS masked"
_EVERY = {
    "runs": f"(SELECT {_RUN} FROM runs FINAL)",
    "crossings": "crossings FINAL",
    "readings": "readings FINAL",
    "which": "",
}
"""Merged in the order of their keys, whatever their number: for all runs."""
_SOME = {
    "runs": f"""
        (SELECT {_RUN} FROM runs WHERE run_id IN %(ids)s
         ORDER BY run_id, version DESC LIMIT 1 BY run_id)""",
    "crossings": """
        (SELECT run_id, argMax((c.kind, c.input_tokens, c.output_tokens, c.cut), c.version) AS kept,
                kept.1 AS kind, kept.2 AS input_tokens, kept.3 AS output_tokens, kept.4 AS cut
         FROM crossings AS c WHERE run_id IN %(ids)s GROUP BY run_id, lane, key, ordinal, span_id)""",
    "readings": """
        (SELECT run_id, argMax((r.notes, r.flaws, r.cut), r.version) AS kept,
                kept.1 AS notes, kept.2 AS flaws, kept.3 AS cut
         FROM readings AS r WHERE run_id IN %(ids)s GROUP BY run_id, span_id)""",
    "which": "AND run_id IN %(ids)s",
}
"""Of a few runs: the filter of a part says which of its granules they are in, and FINAL would look at all between."""
_BEGINNING_LOST = """
    UNION ALL
    SELECT run_id, '', '', '', '', min(started), 0, false, '', false, false, 0
    FROM crossings
    WHERE run_id IN %(lost)s %(which)s
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
    parts = _EVERY
    ids: list[str] | None = None
    lost = _beginning_lost(engine)
    if limit is not None and limit <= literals.MOST:
        ids = _newest(engine, limit, lost, replays=replays)
        if not ids:
            return
        parts = {name: sql % {"ids": literals.run_ids(ids)} for name, sql in _SOME.items()}
    parts = {**parts, "lost": "0", "damages": "", "beginning_lost": ""}
    if engine.embedded:
        parts |= {"lost": "hurt.lost", "damages": _DAMAGES}
    if lost:
        parts["beginning_lost"] = _BEGINNING_LOST % {"lost": lost, "which": parts["which"]}
    cut = _contents_cut(engine, ids)
    for row in islice(engine.rows(_TALLIES % parts, {"replays": replays}), limit):
        tally = _tally(row)
        tally.flaws += cut.get(tally.run_id, 0)
        yield tally


def _contents_cut(engine: Engine, ids: list[str] | None) -> dict[str, int]:
    """How many pieces of content some hop has cut, by the runs that lack such; of all runs, or of these.

    An index says at once that there are none; a query of its own, since the answer is empty but for a mishap.
    """
    some = f" AND run_id IN {literals.run_ids(ids)}" if ids is not None else ""
    found: dict[str, int] = {}
    hurt = (str(row[0]) for row in engine.rows("SELECT DISTINCT run_id FROM contents WHERE whole = 0" + some))
    for batch in literals.batches(list(hurt)):
        sql = (
            "SELECT run_id, count() FROM (SELECT run_id FROM contents WHERE run_id IN "
            f"{literals.run_ids(batch)} GROUP BY run_id, digest HAVING max(whole) = 0) GROUP BY run_id"
        )
        found |= {str(run_id): int(pieces) for run_id, pieces in engine.rows(sql)}
    return found


def _beginning_lost(engine: Engine) -> str:
    """The runs in damaged spool files whose beginning is not there, as a list; empty where there is none."""
    if not engine.embedded:
        return ""
    sql = "SELECT DISTINCT run_id FROM damages"
    hurt = {str(row[0]) for row in engine.rows(sql)}
    for batch in literals.batches(sorted(hurt)):
        rows = engine.rows("SELECT DISTINCT run_id FROM runs WHERE run_id IN " + literals.run_ids(batch))
        hurt -= {str(row[0]) for row in rows}
    return literals.run_ids(islice(sorted(hurt), literals.MOST)) if hurt else ""


def _newest(engine: Engine, limit: int, lost: str, *, replays: bool) -> list[str]:
    """Ids of the runs that began last. A run has a row or two, and more where it came more than once."""
    sql = _NEWEST % (_NEWEST_BEGINNING_LOST % lost if lost else "")
    rows = 2 * limit
    while True:
        ids = [str(row[0]) for row in engine.rows(sql, {"replays": replays, "rows": rows})]
        if len(ids) >= limit or rows >= _count_rows(engine):
            return ids[:limit]
        rows *= 8


def _count_rows(engine: Engine) -> int:
    return next(int(row[0]) for row in engine.rows("SELECT count() FROM runs"))


def matching(engine: Engine, prefix: str) -> list[str]:
    """Ids of the runs that begin so, newest first: a run id begins with its trace id."""
    sql = """
        SELECT run_id, toUnixTimestamp64Nano(started) FROM runs WHERE startsWith(run_id, {prefix:String})
        LIMIT {most:UInt64}
    """
    began = {str(run_id): int(at) for run_id, at in engine.rows(sql, {"prefix": prefix, "most": MOST_CANDIDATES})}
    if began:
        return sorted(began, key=lambda run_id: (began[run_id], run_id), reverse=True)
    sql = "SELECT DISTINCT run_id FROM crossings WHERE startsWith(run_id, {prefix:String}) LIMIT {most:UInt64}"
    return [str(row[0]) for row in engine.rows(sql, {"prefix": prefix, "most": MOST_CANDIDATES})]


def latest(engine: Engine) -> tuple[int, str] | None:
    """When the run that is no replay began that began last, in nanoseconds, and its id; None where there is none."""
    sql = (
        "SELECT toUnixTimestamp64Nano(started), run_id FROM runs WHERE origin = '' "
        "ORDER BY started DESC, run_id DESC LIMIT 1"
    )
    return next(((int(row[0]), str(row[1])) for row in engine.rows(sql)), None)


def count(engine: Engine, *, replays: bool = False) -> int:
    """How many runs there are, replays left out unless asked for."""
    sql = "SELECT uniqExact(sipHash64(run_id)) FROM runs WHERE origin = '' OR {replays:Bool}"
    return next(int(row[0]) for row in engine.rows(sql, {"replays": replays}))


def runs_of_files(engine: Engine, files: list[str]) -> set[str]:
    """Ids of the runs that were loaded from these spool files."""
    sql = "SELECT DISTINCT run_id FROM loaded_runs WHERE file IN {files:Array(String)}"
    return {str(row[0]) for row in engine.rows(sql, {"files": files})}


def ended(engine: Engine, run_ids: Iterable[str]) -> set[str]:
    """Which of these runs have ended."""
    found: set[str] = set()
    for batch in literals.batches(run_ids):
        sql = "SELECT DISTINCT run_id FROM runs WHERE finished AND run_id IN " + literals.run_ids(batch)
        found |= {str(row[0]) for row in engine.rows(sql)}
    return found


def gone(engine: Engine) -> set[str]:
    """Ids of the runs that retention has removed."""
    return {str(row[0]) for row in engine.rows("SELECT DISTINCT run_id FROM expired")}


def within(engine: Engine, run_id: str) -> list[str]:
    """Ids of the runs that began in this one."""
    sql = "SELECT run_id FROM runs WHERE within = {run:String} GROUP BY run_id ORDER BY min(started), run_id"
    return [str(row[0]) for row in engine.rows(sql, {"run": run_id})]


_FRAMES = """
SELECT if(finished, 'run', 'run.start') AS kind, substring(run_id, 34) AS span, parent_span_id AS parent, name,
       span_kind, toUnixTimestamp64Nano(started) AS began, duration_ns, finished, failed, attributes, payload
FROM runs FINAL WHERE run_id = %(run)s
UNION ALL
SELECT 'contents', digest, '', '', 1, toUnixTimestamp64Nano(seen), 0, false, false,
       CAST(map(), 'Map(LowCardinality(String), String)'), content
FROM contents FINAL WHERE run_id = %(run)s
UNION ALL
SELECT 'readings', span_id, substring(run_id, 34), '', 1, toUnixTimestamp64Nano(started), 0, false, false,
       attributes, payload
FROM readings FINAL WHERE run_id = %(run)s
UNION ALL
SELECT if(finished, 'crossing', 'crossing.start'), span_id, parent_span_id, name,
       span_kind, toUnixTimestamp64Nano(started), duration_ns, finished, failed, attributes, payload
FROM crossings FINAL WHERE run_id = %(run)s
"""
"""One query: what it costs to ask is as much as what it costs to find a small run. So the id stands in it as a
literal, which is planned in two thirds of the time that a parameter takes."""
_LOST = """
UNION ALL
SELECT 'lost', file, '', '', 1, toInt64(offset), 0, false, false,
       CAST(map(), 'Map(LowCardinality(String), String)'), why
FROM damages FINAL WHERE run_id = %(run)s
"""


def frames(engine: Engine, run_id: str) -> Iterator[Frame]:
    """Every frame of a run, each once, in no order."""
    yield from (item for item in everything(engine, run_id) if not isinstance(item, Loss))


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """A stretch of a spool file in which a frame of the run may have been lost."""

    file: str
    offset: int
    why: str

    def __str__(self) -> str:
        return f"the spool file {self.file}: {self.why}"


def everything(engine: Engine, run_id: str) -> Iterator[Frame | Loss]:
    """What the store holds of a run, each frame once, in no order."""
    doubtful: dict[str, Frame] = {}
    whole: set[str] = set()
    sql = (_FRAMES + (_LOST if engine.embedded else "")) % {"run": literals.run_id(run_id)}
    for row in engine.rows(sql, raw=True):
        kind, span, parent, name, span_kind, began, lasted, finished, failed, attributes, payload = row
        if kind == b"lost":
            yield Loss(_text(span), began, _text(payload))
            continue
        if kind == b"contents":
            digest = _text(span)
            piece = _piece(run_id, digest, began, payload)
            if digest_of(payload) != digest:  # cut on its way, or forged; the whole one may stand beside it
                doubtful[digest] = piece
                continue
            whole.add(digest)
            yield piece
            continue
        yield frame_of(
            FrameKind(_text(kind)),
            run_id,
            _text(span),
            parent_span_id=_text(parent),
            name=_text(name),
            started_ns=began,
            duration_ns=lasted,
            finished=bool(finished),
            failed=bool(failed),
            span_kind=span_kind,
            attributes=_texts(attributes),
            payload=payload,
        )
    yield from (piece for digest, piece in doubtful.items() if digest not in whole)


def _piece(run_id: str, digest: str, seen: int, content: bytes) -> Frame:
    key, value = content_attribute(digest, content)
    attributes = {names.SCHEMA: str(names.SCHEMA_VERSION), names.RUN_SPAN: run_id[33:], key: value}
    return frame_of(FrameKind.CONTENTS, run_id, digest[:16], started_ns=seen, attributes=attributes)


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
