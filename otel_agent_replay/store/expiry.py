"""Retention over a place: the store, and the spool files of which nothing is kept."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.values import End
from otel_agent_replay.store import retention, schema, select
from otel_agent_replay.store.clickhouse import Engine, embedded_path, is_embedded
from otel_agent_replay.store.holds import held_runs
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.retention import Plan, Policy
from otel_agent_replay.store.spool import Spool, index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.tally import RunTally
    from otel_agent_replay.store.find import Place
    from otel_agent_replay.store.spool import SpoolFile


_FILES = 1000


@dataclass(slots=True)
class Expired:
    """What went, or would go."""

    where: str
    """How messages name the store."""
    plan: Plan = field(default_factory=Plan)
    files: list[SpoolFile] = field(default_factory=list)
    """Spool files."""
    problems: list[str] = field(default_factory=list)
    """One sentence for each thing that could not be read."""


@contextmanager
def opened(place: Place) -> Iterator[Engine]:
    """The store of a place, its schema applied. Raises StoreError."""
    with Engine(place.dsn) as engine:
        schema.require(engine)
        yield engine


def expire(place: Place, policy: Policy, *, dry_run: bool = False, now_ns: int | None = None) -> Expired:
    """Remove what a place holds beyond its time. Raises StoreError; what was removed until then is removed.

    Args:
        place: the spool and the store.
        policy: how long runs are kept.
        dry_run: remove nothing.
        now_ns: nanoseconds since the epoch, where it is not to be now.
    """
    spool = Spool(place.spool)
    if is_embedded(place.dsn) and not embedded_path(place.dsn).exists() and not spool.files():
        return Expired(str(place.spool.parent))  # nothing was ever recorded
    now = real.time_ns() if now_ns is None else now_ns
    with opened(place) as engine:
        result = Expired(engine.where)
        files = spool.files()  # before the load: what began since then is no concern of ours
        if engine.embedded:
            result.problems += load_spool(engine, spool).problems
            recorded = select.runs_of_files(engine, [file.name for file in files if file.live])
        else:
            recorded = {run_id for file in files if file.live for run_id in index(file).runs}
        live = recorded - select.ended(engine, recorded)
        result.plan = retention.plan(engine, policy, live, now_ns=now)
        if not dry_run:
            retention.carry_out(engine, result.plan)
        result.files = list(_spent(engine, files, result.plan, policy, now))
        if not dry_run:
            result.files = [file for file in result.files if _remove(file)]
            _forget(engine, spool)
    return result


def _spent(engine: Engine, files: list[SpoolFile], plan: Plan, policy: Policy, now: int) -> Iterator[SpoolFile]:
    """The files that nobody writes and that hold runs which have gone, or never came into this store and are over."""
    before = now - min((keep for keep in (policy.succeeded_ns, policy.failed_ns) if keep is not None), default=now)
    old = [file for file in files if not file.live and file.changed_ns <= before]
    if not old:
        return
    gone = select.gone(engine) | plan.doomed.keys()
    stored = {str(row[0]) for row in engine.rows("SELECT DISTINCT run_id FROM runs")} - gone
    kept = stored | held_runs(engine).keys()
    for file in old:
        found = index(file)
        if found.damages and not found.runs:
            continue  # not ours, or for a later version to read
        if all(
            run_id in gone or (run_id not in kept and _is_over(counter.tally, policy, file, now))
            for run_id, counter in found.runs.items()
        ):
            yield file


def _is_over(tally: RunTally, policy: Policy, file: SpoolFile, now: int) -> bool:
    ended = tally.end is not End.UNFINISHED and tally.ended_ns > 0
    failed = tally.failed or tally.end is End.RAISED or not ended
    return policy.is_over(failed=failed, ended=ended, last_ns=tally.ended_ns if ended else file.changed_ns, now_ns=now)


def _remove(file: SpoolFile) -> bool:
    with suppress(OSError):  # a home that cannot be written keeps its files
        file.path.unlink()
        return True
    return False


def _forget(engine: Engine, spool: Spool) -> None:
    """Drop what an embedded store noted of spool files that are no longer there."""
    if not engine.embedded:
        return
    there = {file.name for file in spool.files()}
    for table in ("loaded", "loaded_runs"):
        known = {str(row[0]) for row in engine.rows(f"SELECT DISTINCT file FROM {table}")}
        lost = sorted(known - there)
        for start in range(0, len(lost), _FILES):
            engine.command(
                f"ALTER TABLE {table} DELETE WHERE file IN {{files:Array(String)}} SETTINGS mutations_sync = 2",
                {"files": lost[start : start + _FILES]},
            )
