"""The list of runs.

An embedded store is loaded with what is new in the spool first, and then holds every run. A server is only read:
what is in the local spool is listed beside it. Without an engine, the spool is all there is.
"""

from __future__ import annotations

from contextlib import contextmanager
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from otel_agent_replay.errors import StoreError, StoreMissing, StoreTooNew
from otel_agent_replay.recording.tally import merged
from otel_agent_replay.store import schema, select, shipping
from otel_agent_replay.store.clickhouse import Engine, embedded_path, is_embedded
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.prune import prune
from otel_agent_replay.store.spool import Spool, index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.tally import RunTally
    from otel_agent_replay.store.find import Place


class Runs:
    """What can be listed.

    Attributes:
        where: how messages name the place.
        problems: one sentence for each thing that could not be read; the rest is listed all the same.
    """

    def __init__(self, spool: Spool) -> None:
        self.where = str(spool.directory.parent)
        self.problems: list[str] = []
        self.engine: Engine | None = None
        self.local: dict[str, RunTally] = {}
        """Runs of the spool, where they are not all in the store."""
        self.live: set[str] = set()
        """Ids of the runs whose process still runs, as far as `local` does not say it."""

    def tallies(self, *, limit: int | None = None, replays: bool = False) -> Iterator[RunTally]:
        """Runs, newest first; at most `limit`. Replays, and processes of other runs, are left out unless asked for."""
        here = sorted(self.local.values(), key=_newest_first)
        found = (tally for tally in here if replays or tally.is_program)
        if self.engine is not None:
            stored = select.tallies(self.engine, limit=limit, replays=replays)
            beside = (tally for tally in stored if tally.run_id not in self.local)
            found = merge(found, beside, key=_newest_first)
        for tally in islice(found, limit):
            tally.live = tally.live or tally.run_id in self.live
            yield tally

    def count(self, *, replays: bool = False) -> int:
        """The same number of runs."""
        stored = select.count(self.engine, replays=replays) if self.engine is not None else 0
        return stored + sum(replays or tally.is_program for tally in self.local.values())


@contextmanager
def opened(place: Place) -> Iterator[Runs]:
    """Load what is new, and open the list.

    Raises StoreTooNew, or StoreError where there is nothing to list without the store.
    """
    spool = Spool(place.spool)
    runs = Runs(spool)
    try:
        try:
            _open(place, spool, runs)
        except StoreTooNew:
            raise
        except StoreError as error:
            _close(runs)
            _read(spool, runs)
            if not runs.local and not isinstance(error, StoreMissing):
                raise
            if not isinstance(error, StoreMissing) or embedded_path(place.dsn).is_dir():
                runs.problems.append(f"{error} Only the runs of the spool are listed.")
        yield runs
    finally:
        _close(runs)


def _open(place: Place, spool: Spool, runs: Runs) -> None:
    if is_embedded(place.dsn) and not embedded_path(place.dsn).exists() and not spool.files():
        return  # nothing was ever recorded: no store is made only to say so
    runs.engine = Engine(place.dsn)
    schema.require(runs.engine)
    if not is_embedded(place.dsn):
        _read(spool, runs)
        return
    with runs.engine.loading():
        runs.problems += load_spool(runs.engine, spool).problems
        prune(runs.engine, spool)
    live = [file.name for file in spool.files() if file.live]
    runs.live = select.runs_of_files(runs.engine, live) if live else set()


def _read(spool: Spool, runs: Runs) -> None:
    """Take the runs from the spool."""
    for file in spool.files():
        found = index(file)
        runs.problems += found.problems
        for run_id, counter in found.runs.items():
            tally = counter.tally
            tally.flaws += len(found.hurt.get(run_id, ()))
            runs.local[run_id] = merged(runs.local[run_id], tally) if run_id in runs.local else tally
    if shipping.has_shipped(spool.directory):  # what stands in the spool may not be all of it
        gone = shipping.parts(spool.directory)
        for run_id in runs.local.keys() & gone:
            runs.local[run_id].flaws += 1


def _close(runs: Runs) -> None:
    engine, runs.engine = runs.engine, None
    if engine is not None:
        engine.close()


def _newest_first(tally: RunTally) -> tuple[int, int]:
    return (-tally.started_ns, -int(tally.run_id.replace("-", ""), 16))
