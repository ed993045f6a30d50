"""What the store is asked: which runs there are, what they count up to, and the frames of one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_agent_replay.recording import names
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.rope import is_named
from otel_agent_replay.recording.tally import HELPERS, RunTally, end_of
from otel_agent_replay.store import literals
from otel_agent_replay.store.rows import content_attribute, frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.store.clickhouse import Engine

MOST_CANDIDATES = 1000
"""So many runs at most are looked up for a prefix or a trace id."""

_HELPERS = ", ".join(f"'{kind}'" for kind in HELPERS)
_LISTED = f"origin = '' AND entry NOT IN ({_HELPERS}) OR {{replays:Bool}}"

_NEWEST = f"""
SELECT run_id, max(toUnixTimestamp64Nano(started)) AS began
FROM
(
    SELECT run_id, started FROM runs WHERE {_LISTED}
    ORDER BY started DESC
    LIMIT {{rows:UInt64}}
    %s
)
GROUP BY run_id
ORDER BY began DESC, run_id DESC
"""
"""Ids alone: a run's beginning and its end say the same of when it began, so that duplicates need not be merged."""
_NEWEST_BEGINNING_LOST = """
    UNION ALL
    SELECT run_id, min(started) FROM frames WHERE frame = 'crossing' AND run_id IN %s GROUP BY run_id
"""
_TALLIES = f"""
SELECT
    run_id, name, entry, within, origin, toUnixTimestamp64Nano(started), duration_ns, finished, ending, failed,
    counted.calls, counted.model_calls, counted.input_tokens, counted.output_tokens,
    counted.notes, counted.flaws + cut + %(lost)s, masked
FROM
(
    SELECT run_id, name, entry, within, origin, started, duration_ns, finished, ending, failed, cut, masked
    FROM %(runs)s
    WHERE {_LISTED}
    %(beginning_lost)s
) AS listed
LEFT JOIN
(
    SELECT run_id, countIf(frame = 'crossing') AS calls, countIf(kind = 'model') AS model_calls,
           sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
           sum(notes) AS notes, sum(flaws) + countIf(cut) AS flaws
    FROM %(frames)s
    GROUP BY run_id
) AS counted USING run_id
%(damages)s
ORDER BY started DESC, run_id DESC
"""
_RUN = "* EXCEPT (attributes), toUInt64OrZero(attributes['agent_replay.masked']) AS masked"
_EVERY = {
    "runs": f"(SELECT {_RUN} FROM runs FINAL)",
    "frames": """
        (SELECT run_id, frame, kind, input_tokens, output_tokens, notes, flaws, cut
         FROM frames FINAL WHERE frame IN ('crossing', 'readings')
         UNION ALL
         SELECT run_id, 'contents', '', 0, 0, 0, 0, min(cut)
         FROM frames WHERE frame = 'contents'
             AND run_id GLOBAL IN (SELECT run_id FROM frames WHERE cut AND frame = 'contents')
         GROUP BY run_id, span_id)""",
    "which": "",
}
"""Merged in the order of their keys, whatever their number: for all runs. Of content, where any was cut, a piece is
there if it is whole in one of the frames that hold it."""
_SOME = {
    "runs": f"""
        (SELECT {_RUN} FROM runs WHERE run_id IN %(ids)s
         ORDER BY run_id, version DESC LIMIT 1 BY run_id)""",
    "frames": """
        (SELECT run_id, frame,
                argMax((f.kind, f.input_tokens, f.output_tokens, f.notes, f.flaws, f.cut), f.version) AS kept,
                kept.1 AS kind, kept.2 AS input_tokens, kept.3 AS output_tokens,
                kept.4 AS notes, kept.5 AS flaws, kept.6 AS cut
         FROM frames AS f PREWHERE run_id IN %(ids)s WHERE frame != 'run'
         GROUP BY run_id, frame, lane, key, ordinal, span_id)""",
    "which": "AND run_id IN %(ids)s",
}
"""Of a few runs: the filter of a part says which of its granules they are in, and FINAL would look at all between."""
_BEGINNING_LOST = """
    UNION ALL
    SELECT run_id, '', '', '', '', min(started), 0, false, '', false, false, 0
    FROM frames
    WHERE frame = 'crossing' AND run_id IN %(lost)s %(which)s
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
    lost = _beginning_lost(engine)
    if limit is not None and limit <= literals.MOST:
        ids = _newest(engine, limit, lost, replays=replays)
        if not ids:
            return
        parts = {name: sql % {"ids": literals.run_ids(ids)} for name, sql in _SOME.items()}
    parts = {**parts, "lost": "0", "damages": "", "beginning_lost": ""}
    if _has_damages(engine):
        parts |= {"lost": "hurt.lost", "damages": _DAMAGES}
    if lost:
        parts["beginning_lost"] = _BEGINNING_LOST % {"lost": lost, "which": parts["which"]}
    for row in islice(engine.rows(_TALLIES % parts, {"replays": replays}), limit):
        yield _tally(row)


def _beginning_lost(engine: Engine) -> str:
    """The runs in damaged spool files whose beginning is not there, as a list; empty where there is none."""
    if not _has_damages(engine):
        return ""
    sql = "SELECT DISTINCT run_id FROM damages"
    hurt = {str(row[0]) for row in engine.rows(sql)}
    for batch in literals.batches(sorted(hurt)):
        rows = engine.rows("SELECT DISTINCT run_id FROM runs WHERE run_id IN " + literals.run_ids(batch))
        hurt -= {str(row[0]) for row in rows}
    return literals.run_ids(islice(sorted(hurt), literals.MOST)) if hurt else ""


def _has_damages(engine: Engine) -> bool:
    """Whether anything was lost of any run; only an embedded store knows, since it reads the spool."""
    return engine.embedded and not engine.is_empty("damages")


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
    asked = {"prefix": prefix, "most": MOST_CANDIDATES}
    began = {str(run_id): int(at) for run_id, at in engine.rows(sql, asked, few=True)}
    if began:
        return sorted(began, key=lambda run_id: (began[run_id], run_id), reverse=True)
    sql = "SELECT DISTINCT run_id FROM frames WHERE startsWith(run_id, {prefix:String}) LIMIT {most:UInt64}"
    return [str(row[0]) for row in engine.rows(sql, asked, few=True)]


def latest(engine: Engine) -> tuple[int, str] | None:
    """When the run began that began last, in nanoseconds, and its id; None where there is none.

    Not a replay, and not a process that another started to work for it.
    """
    sql = (
        f"SELECT toUnixTimestamp64Nano(started), run_id FROM runs WHERE origin = '' AND entry NOT IN ({_HELPERS}) "
        "ORDER BY started DESC, run_id DESC LIMIT 1"
    )
    return next(((int(row[0]), str(row[1])) for row in engine.rows(sql)), None)


def count(engine: Engine, *, replays: bool = False) -> int:
    """How many runs there are, replays left out unless asked for."""
    sql = f"SELECT uniqExact(sipHash64(run_id)) FROM runs WHERE {_LISTED}"
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
SELECT run_id, span_id, parent_span_id, name, span_kind, started, duration_ns, failed, attributes, payload
FROM frames FINAL WHERE %s
"""
"""One query of one table: to ask costs more than to find a small run, and each column costs too. So the kind of a frame
is read from its attributes, and the id stands in the statement as a literal, which is planned in two thirds of the time
that a parameter takes."""
_IN_TRACE = "substring(run_id, 1, 32) = '%s' AND startsWith(run_id, '%s')"
"""The first for the filter of a part, which knows whole traces; the second for the order of its rows."""
_LOST = """
SELECT file, offset, why FROM damages FINAL WHERE run_id = %(run)s
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
    yield from _losses(engine, run_id)
    read = _Reading(run_id)
    for row in engine.rows(_FRAMES % f"run_id = {literals.run_id(run_id)}", raw=True, few=True):
        yield from read.row(row)
    yield from read.doubtful()


def only_run(engine: Engine, prefix: str) -> tuple[str, list[Frame | Loss]] | None:
    """The run whose id begins so, and what the store holds of it; None where there is none or more than one.

    To find a run and to read it is one question so, and takes half as long as two.

    Args:
        engine: the open store.
        prefix: a whole trace id, and as much of a run id as follows.
    """
    sql = _FRAMES % _IN_TRACE % (prefix[:32], prefix)
    read: _Reading | None = None
    items: list[Frame | Loss] = []
    for row in engine.rows(sql, raw=True, few=True):
        run_id = _text(row[0])
        if read is None:
            read = _Reading(run_id)
        elif run_id != read.run_id:
            return None
        items += read.row(row)
    if read is None:
        return None
    return read.run_id, [*_losses(engine, read.run_id), *items, *read.doubtful()]


def _losses(engine: Engine, run_id: str) -> Iterator[Loss]:
    if _has_damages(engine):
        for file, offset, why in engine.rows(_LOST % {"run": literals.run_id(run_id)}, few=True):
            yield Loss(str(file), int(offset), str(why))


class _Reading:
    """Rows of one run on their way to frames."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._doubtful: dict[str, Frame] = {}
        self._whole: set[str] = set()

    def row(self, row: Sequence[Any]) -> Iterator[Frame]:
        """The frame of a row, where that is no piece of content that is not what it claims to be."""
        _, span, parent, name, span_kind, began, lasted, failed, attributes, payload = row
        texts = {_text(key): _text(value) for key, value in attributes.items()}
        kind = FrameKind(texts.pop(names.FRAME))
        if kind is not FrameKind.CONTENTS:
            yield frame_of(
                kind,
                self.run_id,
                _text(span),
                parent_span_id=self.run_id[33:] if kind is FrameKind.READINGS else _text(parent),
                name=_text(name),
                started_ns=began,
                duration_ns=lasted,
                finished=kind in (FrameKind.CROSSING, FrameKind.RUN),
                failed=bool(failed),
                span_kind=span_kind,
                attributes=texts,
                payload=payload,
            )
        elif is_named(payload, digest := _text(span)):
            self._whole.add(digest)
            yield _piece(self.run_id, digest, began, payload)
        else:  # cut on its way, or forged; the whole one may stand beside it
            self._doubtful[digest] = _piece(self.run_id, digest, began, payload)

    def doubtful(self) -> Iterator[Frame]:
        """Pieces that have not the digest they claim, where none has."""
        yield from (piece for digest, piece in self._doubtful.items() if digest not in self._whole)


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
