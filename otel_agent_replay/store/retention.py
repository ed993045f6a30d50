"""Retention: which runs are kept, and removing the others whole.

It is decided by run, never by span. A run is kept as long as its own time lasts (failed runs longer than succeeded
ones; what never ended counts as failed, and a replay as succeeded, since it can be made again), while it is held or
still recorded, and while a kept run needs it: the run that a kept one began in answers its prelude, the origin of a
kept replay is what it is compared with, and what began in a held run is replayed with it. Content is stored with its
run, so it goes when the run goes.

What goes is written down in `expired` first. So a removal that was cut off is finished by the next, and what arrives
of a removed run later (a late retry, a spool file that is read again) goes too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.store import literals, select
from otel_agent_replay.store.holds import held_runs
from otel_agent_replay.store.rows import binary_row

if TYPE_CHECKING:
    from otel_agent_replay.store.clickhouse import Engine

QUIET_NS = 24 * 3600 * 1_000_000_000
"""Nanoseconds: a run that has not ended is left alone until so long after anything came of it, whatever is set. On a
server nobody can tell whether its process still runs."""

TABLES = ("frames", "spans", "runs")
"""What is removed from, in this order: a run stays in the list until the rest of it is gone."""

EMBEDDED_TABLES = ("damages",)
"""The same, of an embedded store alone."""

_ENDED = """
SELECT run_id, (failed OR ending = 'raised') AND origin = '',
       toUnixTimestamp64Nano(started) + toInt64(duration_ns), within, origin
FROM runs FINAL WHERE finished
"""
_NEVER_ENDED = """
SELECT run_id, max(origin) = '', max(toUnixTimestamp64Nano(at)), max(within), max(origin)
FROM
(
    SELECT run_id, started AS at, within, origin FROM runs
    UNION ALL SELECT run_id, started, '', '' FROM frames
)
WHERE run_id GLOBAL NOT IN (SELECT run_id FROM runs WHERE finished)
GROUP BY run_id
"""
_SIZES = """
SELECT sum(payload_bytes) FROM frames FINAL WHERE run_id IN %(ids)s
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long runs are kept, in nanoseconds; None for ever."""

    succeeded_ns: int | None
    failed_ns: int | None

    def is_over(self, *, failed: bool, ended: bool, last_ns: int, now_ns: int) -> bool:
        """Whether the time of a run is over that ended, or was last heard of, at `last_ns`."""
        keep = self.failed_ns if failed else self.succeeded_ns
        return keep is not None and last_ns + (keep if ended else max(keep, QUIET_NS)) <= now_ns


@dataclass(frozen=True, slots=True)
class Run:
    """What the decision needs to know of a run."""

    failed: bool
    last_ns: int
    within: str
    origin: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the runs that this one cannot do without."""
        return tuple(each for each in (self.within, self.origin) if each)


@dataclass(slots=True)
class Plan:
    """What is to go."""

    doomed: dict[str, Run] = field(default_factory=dict)
    """By run id, what ended first coming first."""
    held: int = 0
    """Runs whose time is over and that are held, or belong to one that is."""
    needed: int = 0
    """Runs whose time is over and that a kept run needs."""
    strangers_before_ns: int | None = None
    """Spans of traces without a run go where they began before this; None for none of them."""
    kept_traces: set[str] = field(default_factory=set)
    """Traces of runs that are kept though their time is over."""
    bytes: int = 0
    """Of payload and content, as they were recorded."""

    @property
    def failed(self) -> int:
        """How many of the runs failed or never ended."""
        return sum(run.failed for run in self.doomed.values())


def plan(engine: Engine, policy: Policy, live: set[str], *, now_ns: int) -> Plan:
    """Decide what goes. It holds a few hundred bytes for each run whose time is over, and nothing of crossings.

    Args:
        engine: the store, its schema applied.
        policy: how long runs are kept.
        live: ids of the runs that are still recorded here.
        now_ns: nanoseconds since the epoch.
    """
    held = held_runs(engine).keys()
    gone = select.gone(engine)
    made = Plan()
    if policy.failed_ns is not None:
        made.strangers_before_ns = now_ns - max(policy.failed_ns, policy.succeeded_ns or 0, QUIET_NS)
    over: dict[str, Run] = {}
    wanted: list[str] = []
    for ended, sql in ((True, _ENDED), (False, _NEVER_ENDED)):
        for run_id, failed, last, within, origin in engine.rows(sql):
            run = Run(bool(failed), int(last), within, origin)
            late = policy.is_over(failed=run.failed, ended=ended, last_ns=run.last_ns, now_ns=now_ns)
            if (late or run_id in gone) and run_id not in live and run_id not in held:
                over[run_id] = run
            else:
                made.held += late and run_id in held
                wanted += run.needs
                if late:
                    made.kept_traces.add(run_id[:32])
    everything = set(over)
    made.held += _rescue_inner(over, set(held), wanted)
    made.needed = _rescue(over, wanted)
    made.kept_traces |= {run_id[:32] for run_id in everything - over.keys()}
    made.doomed = dict(sorted(over.items(), key=lambda each: (each[1].last_ns, each[0])))
    made.bytes = sum(_size(engine, batch) for batch in literals.batches(made.doomed))
    return made


def carry_out(engine: Engine, made: Plan) -> None:
    """Remove what is to go. On a server, that goes on after this returns. Raises StoreError.

    A batch is what ended together, which lies together, so that each rewrites few parts.
    """
    tables = [*TABLES, *(EMBEDDED_TABLES if engine.embedded else ())]
    local = local_tables(engine, tables)
    end = f"SETTINGS mutations_sync = {2 if engine.embedded else 0}"
    for batch in literals.batches(made.doomed):
        now = real.time_ns() // 1000
        rows = [binary_row(each, (run := made.doomed[each]).failed, max(run.last_ns, 0), now) for each in batch]
        engine.insert("expired", ("run_id", "failed", "last", "removed"), b"".join(rows))
        ids = literals.run_ids(batch)
        for table in tables:
            engine.command(f"ALTER TABLE {local[table]} DELETE WHERE run_id IN {ids} {end}")
        if strangers := _strangers(engine, batch, made):
            engine.command(f"ALTER TABLE {local['spans']} DELETE WHERE run_id = '' AND trace_id IN {strangers} {end}")
    if made.strangers_before_ns is not None:
        stray = f"run_id = '' AND toUnixTimestamp64Nano(started) < {made.strangers_before_ns}"
        stray += " AND trace_id NOT IN " + literals.trace_ids(islice(made.kept_traces, literals.MOST))
        few = len(made.kept_traces) <= literals.MOST
        if few and any(engine.rows(f"SELECT 1 FROM spans WHERE {stray} LIMIT 1")):
            engine.command(f"ALTER TABLE {local['spans']} DELETE WHERE {stray} {end}")


def _strangers(engine: Engine, batch: list[str], made: Plan) -> str:
    """The traces of these runs in which no run stays, and in which there are spans that belong to no run."""
    traces = {run_id[:32] for run_id in batch}
    named = literals.trace_ids(traces)
    spans = engine.rows("SELECT DISTINCT trace_id FROM spans WHERE run_id = '' AND trace_id IN " + named)
    found = {str(row[0]) for row in spans}
    if not found:
        return ""
    runs = engine.rows("SELECT DISTINCT run_id FROM runs WHERE substring(run_id, 1, 32) IN " + named)
    found -= {str(row[0])[:32] for row in runs if row[0] not in made.doomed}
    return literals.trace_ids(found) if found else ""


def _rescue(over: dict[str, Run], wanted: list[str]) -> int:
    """Keep what kept runs need, and what those need."""
    before = len(over)
    while wanted:
        run = over.pop(wanted.pop(), None)
        if run is not None:
            wanted += run.needs
    return before - len(over)


def _rescue_inner(over: dict[str, Run], held: set[str], wanted: list[str]) -> int:
    """Keep what began in a held run, in a run that began in it, and so on."""
    before = len(over)
    while held and (found := [run_id for run_id, run in over.items() if run.within in held]):
        wanted += [need for run_id in found for need in over.pop(run_id).needs]
        held = set(found)
    return before - len(over)


def _size(engine: Engine, batch: list[str]) -> int:
    return next(int(row[0]) for row in engine.rows(_SIZES % {"ids": literals.run_ids(batch)}))


def local_tables(engine: Engine, tables: list[str]) -> dict[str, str]:
    """What a mutation names for each table: itself, or what a distributed one stands for on every shard."""
    sql = (
        "SELECT name, extractAll(engine_full, '\\'([^\\']*)\\'') FROM system.tables "
        "WHERE database = {database:String} AND engine = 'Distributed'"
    )
    spread = {str(name): list(words) for name, words in engine.rows(sql, {"database": engine.database})}
    return {
        name: f"`{spread[name][1]}`.`{spread[name][2]}` ON CLUSTER '{spread[name][0]}'" if name in spread else name
        for name in tables
    }
