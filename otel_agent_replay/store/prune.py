"""Removing spool files that the store holds: the spool is a cache of fresh runs, and bounded.

A file goes when its process has ended, all of it is loaded, nothing in it is damaged, and it is older than a day or
the spool is too large (the oldest first). Before it goes, every frame of it is looked for in the store, but for runs
that retention has removed from there. Files that share a run go together, so that what the spool holds of a run is
all of it or nothing.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.recording import names
from otel_agent_replay.recording.frames import Damage, Harm
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import number, run_id_of
from otel_agent_replay.store import select
from otel_agent_replay.store.load import progress
from otel_agent_replay.store.shipping import forget, waits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.store.clickhouse import Engine
    from otel_agent_replay.store.load import Progress
    from otel_agent_replay.store.spool import Spool, SpoolFile

KEPT_NS = 24 * 3600 * 1_000_000_000
"""Nanoseconds since its last write for which a file is kept."""

KEPT_BYTES = 512 << 20
"""Bytes that the spool may take; beyond, the oldest files go before their day is over."""

BUDGET = 64 << 20
"""Bytes of files that one command looks through, so that no command takes long for it; the next goes on."""


def prune(engine: Engine, spool: Spool, *, kept_ns: int = KEPT_NS, kept_bytes: int = KEPT_BYTES) -> list[str]:
    """Remove what may go; gives the names of what went. Raises StoreError where the store cannot be asked."""
    files = spool.files()
    surplus = sum(file.size for file in files) - kept_bytes
    before = real.time_ns() - kept_ns
    if surplus <= 0 and all(file.changed_ns > before for file in files):
        return []
    reached = progress(engine)
    by_name = {file.name: file for file in files}
    removed: list[str] = []
    budget = BUDGET
    for file in reversed(files):
        if file.name not in by_name or budget <= 0 or (surplus <= 0 and file.changed_ns > before):
            continue
        group = [by_name[name] for name in _sharing(engine, file.name) if name in by_name]
        for each in group:
            del by_name[each.name]
        if not all(_loaded(each, reached.get(each.name)) for each in group):
            continue
        size = sum(each.size for each in group)
        budget -= size
        if _in_store(engine, group):
            surplus -= size
            removed += _remove(group)
    return removed


def _sharing(engine: Engine, name: str) -> list[str]:
    """Names of the files that share runs with this one, directly or through others; itself too."""
    found, new = set[str](), {name}
    while new:
        found |= new
        sql = (
            "SELECT DISTINCT file FROM loaded_runs WHERE run_id IN "
            "(SELECT run_id FROM loaded_runs WHERE file IN {files:Array(String)})"
        )
        new = {str(row[0]) for row in engine.rows(sql, {"files": sorted(new)})} - found
    return sorted(found)


def _loaded(file: SpoolFile, reached: Progress | None) -> bool:
    """Whether nobody writes the file any more and all that can be read of it is loaded."""
    if file.live or waits(file.path):  # who ships it removes it
        return False
    if file.size == 0:
        return True
    if reached is None or reached.damaged:
        return False
    rest = list(file.scan(reached.offset)) if reached.offset < file.size else []
    return all(isinstance(item, Damage) and item.harm is Harm.TORN for item in rest)


_CROSSINGS = "SELECT span_id, finished * payload_bytes AS size FROM frames FINAL WHERE frame = 'crossing'"
_READINGS = "SELECT span_id, payload_bytes AS size FROM frames FINAL WHERE frame = 'readings'"
_ENDED = ("runs WHERE 1", "frames WHERE frame = 'run'")
_PIECES = "SELECT DISTINCT span_id, 0 AS size FROM frames WHERE frame = 'contents'"
"""A cut piece stands in the store beside the whole one."""


@dataclass(slots=True)
class _Held:
    """Sums over one table's rows of one run, which are equal only where the rows are."""

    count: int = 0
    ids: int = 0
    size: int = 0


@dataclass(slots=True)
class _Contents:
    """What files hold of one run."""

    crossings: dict[int, tuple[bool, int]] = field(default_factory=dict)
    readings: dict[int, int] = field(default_factory=dict)
    pieces: set[int] = field(default_factory=set)
    ended: bool = False

    def add(self, frame: Frame) -> None:
        """Take in one frame."""
        if frame.kind is FrameKind.CROSSING:
            self.crossings[frame.span_id] = (True, number(frame, names.PAYLOAD_LENGTH))
        elif frame.kind is FrameKind.CROSSING_START:
            self.crossings.setdefault(frame.span_id, (False, 0))
        elif frame.kind is FrameKind.READINGS:
            self.readings[frame.span_id] = number(frame, names.PAYLOAD_LENGTH)
        elif frame.kind is FrameKind.CONTENTS:
            for name in frame.attributes:
                if name.startswith((names.CONTENT_PREFIX, names.CONTENT_BINARY_PREFIX)):
                    self.pieces.add(int(name.rpartition(".")[2][:16], 16))
        elif frame.kind is FrameKind.RUN:
            self.ended = True

    def sums(self) -> tuple[_Held, _Held, _Held, bool]:
        """To be compared with what the store says."""
        crossings = _Held(
            len(self.crossings), _xor(self.crossings), sum(n for done, n in self.crossings.values() if done)
        )
        readings = _Held(len(self.readings), _xor(self.readings), sum(self.readings.values()))
        return crossings, readings, _Held(len(self.pieces), _xor(self.pieces)), self.ended


def _in_store(engine: Engine, group: list[SpoolFile]) -> bool:
    """Whether the store holds every frame of these files."""
    runs: defaultdict[str, _Contents] = defaultdict(_Contents)
    for file in group:
        for item in file.scan():
            if not isinstance(item, Damage) and (run_id := run_id_of(item)):
                runs[run_id].add(item)
    gone = select.gone(engine)
    return all(run_id in gone or _equal(engine, run_id, held) for run_id, held in runs.items())


def _equal(engine: Engine, run_id: str, held: _Contents) -> bool:
    crossings, readings, pieces, ended = held.sums()
    return (
        _stored(engine, _CROSSINGS, run_id) == crossings
        and _stored(engine, _READINGS, run_id) == readings
        and _stored(engine, _PIECES, run_id) == pieces
        and (
            not ended
            or all(
                any(engine.rows(f"SELECT 1 FROM {rows} AND finished AND run_id = {{run:String}}", {"run": run_id}))
                for rows in _ENDED
            )
        )
    )


def _stored(engine: Engine, rows: str, run_id: str) -> _Held:
    sql = (
        "SELECT count(), groupBitXor(reinterpretAsUInt64(reverse(unhex(substring(span_id, 1, 16))))), sum(size) "
        f"FROM ({rows} AND run_id = {{run:String}})"
    )
    for count, ids, size in engine.rows(sql, {"run": run_id}):
        return _Held(int(count), int(ids), int(size))
    return _Held()


def _xor(idents: Iterable[int]) -> int:
    total = 0
    for ident in idents:
        total ^= ident
    return total


def _remove(group: list[SpoolFile]) -> list[str]:
    removed = []
    for file in group:
        with suppress(OSError):  # a home that cannot be written keeps its files
            file.path.unlink()
            forget(file.path)
            removed.append(file.name)
    return removed
