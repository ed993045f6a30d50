"""The recordings of one place: its spool, and the store behind it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.errors import AmbiguousRun, StoreError, UnknownRun, UnreadableRecording
from otel_agent_replay.recording import names
from otel_agent_replay.recording.frames import Frame, Harm
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import RunTally, merged, run_id_of
from otel_agent_replay.store import schema, select, shipping
from otel_agent_replay.store.clickhouse import Engine, embedded_path, is_embedded
from otel_agent_replay.store.spool import Spool, index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_agent_replay.store.spool import Index, SpoolFile

LATEST = "latest"
"""What names the run that began last, is no replay, and no process of multiprocessing."""

SURE = 8
"""Hex digits: a beginning of this length that is unique in the spool is taken to be unique."""

MOST_RUNS = 10_000
"""So many runs are taken to belong to one, at most."""

_WANTED = re.compile(r"[0-9a-f]{1,32}|[0-9a-f]{32}-[0-9a-f]{0,16}")


class EngineNeededError(StoreError):
    """The spool does not do, and this process may not open the engine."""

    def __init__(self) -> None:
        super().__init__("This process may not open the embedded store; have a child process do it.")


@dataclass
class Pile:
    """What was found of one run."""

    run_id: str
    frames: list[Frame] = field(default_factory=list)
    """From the spool, as they stand there."""
    stored: list[Frame] = field(default_factory=list)
    """From the store."""
    lost: list[str] = field(default_factory=list)
    """Where frames may have been lost; one sentence each."""

    def all_frames(self) -> Iterator[Frame]:
        """All of them; the same may come twice."""
        yield from self.stored
        yield from self.frames

    @property
    def within(self) -> str:
        """Id of the run that this one began in; empty where there is none."""
        for frame in self.all_frames():
            if frame.kind in (FrameKind.RUN, FrameKind.RUN_START):
                return str(frame.attributes.get(names.WITHIN, ""))
        return ""


class Recordings:
    """Answers questions about runs. Files are read once, as long as they were when they were first listed.

    Args:
        spool: directory of the spool files.
        dsn: the store.
        engine: whether this process may open the embedded engine.
    """

    def __init__(self, spool: Path, dsn: str, *, engine: bool = True) -> None:
        self.where = str(spool.parent)
        self._spool = Spool(spool)
        self._dsn = dsn
        self._allowed = engine or not is_embedded(dsn)
        self._files: list[SpoolFile] | None = None
        self._indexes: dict[str, Index] = {}
        self._engine: Engine | None = None
        self._ahead: tuple[str, list[Frame | select.Loss]] | None = None
        """A run that was read from the store as it was found."""

    def close(self) -> None:
        """Let go of the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def find(self, wanted: str) -> str:
        """The id of the run that is meant; see `find_run`."""
        asked = wanted.strip().lower()
        if asked == LATEST:
            return self._latest()
        if not _WANTED.fullmatch(asked):
            raise UnknownRun(wanted, self.where)
        indexes = [self.index(file) for file in self._holding(asked)]
        found = [run_id for each in indexes for run_id in each.runs if run_id.startswith(asked)]
        if not found or len(asked) < SURE:
            found += self._stored(asked, needed=not found)
        if not found:
            _unreadable(indexes)
            raise UnknownRun(wanted, self.where)
        candidates = list(dict.fromkeys(found))
        if len(candidates) > 1:
            raise AmbiguousRun(wanted, candidates)
        return candidates[0]

    def gather(self, run_id: str) -> Pile:
        """The frames of a run: from the spool, and from the store where the spool has not all of it.

        Raises UnknownRun, StoreError.
        """
        pile = Pile(run_id)
        begun = False
        for file in self._holding(run_id[:32]):
            found = self.index(file)
            if run_id not in found.runs:
                continue
            begun = begun or bool(found.runs[run_id].tally.entry)
            pile.frames += _frames_in(file, run_id)
            pile.lost += [f"the spool file {file.name}: {each.why}" for each in found.hurt.get(run_id, ())]
        wanted = not begun or bool(pile.lost) or self._shipped()
        asked = wanted and self._has_store() and self._add_stored(pile)
        if wanted and not pile.stored and run_id in shipping.parts(self._spool.directory):
            why = "gives nothing of it" if asked else "could not be asked"
            pile.lost.append(f"a part of this run was shipped and is no longer here, and the store {why}")
        if not pile.frames and not pile.stored:
            raise UnknownRun(run_id, self.where)
        return pile

    def family(self, run_id: str) -> Iterator[Pile]:
        """A run, the runs that it began in, and the runs that began in it; what is not there is left out."""
        pile = self.gather(run_id)
        seen = {run_id}
        yield pile
        stored = bool(pile.stored)
        outer = pile.within
        while outer and outer not in seen:
            seen.add(outer)
            try:
                pile = self.gather(outer)
            except UnknownRun:
                break
            yield pile
            outer = pile.within
        waiting = [run_id]
        while waiting and len(seen) < MOST_RUNS:
            for inner in self._inner(waiting.pop(), stored=stored):
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
                    with suppress(UnknownRun):
                        yield self.gather(inner)

    def is_live(self, run_id: str) -> bool:
        """Whether a process that writes frames of this run still runs."""
        return any(file.live and run_id in self.index(file).runs for file in self._holding(run_id[:32]))

    def files(self) -> list[SpoolFile]:
        """The files of the spool, the one that was written last first."""
        if self._files is None:
            self._files = self._spool.files()
        return self._files

    def index(self, file: SpoolFile) -> Index:
        """What a file holds."""
        found = self._indexes.get(file.name)
        if found is None:
            found = self._indexes[file.name] = index(file)
        return found

    def store(self) -> Engine:
        """The store, its schema checked. Raises StoreError; StoreMissing where no engine is installed."""
        if not self._allowed:
            raise EngineNeededError
        if self._engine is None:
            engine = Engine(self._dsn)
            try:
                schema.require(engine)
            except BaseException:
                engine.close()
                raise
            self._engine = engine
        return self._engine

    def _has_store(self) -> bool:
        """Whether there is a store that anything can have been put into."""
        return not is_embedded(self._dsn) or embedded_path(self._dsn).is_dir()

    def _holding(self, asked: str) -> Iterator[SpoolFile]:
        """The files that may hold a run whose id begins so: its bytes stand in them after the tag of a trace id."""
        needle = b"\x0a\x10" + bytes.fromhex(asked[: min(len(asked), 32) // 2 * 2])
        for file in self.files():
            if len(needle) < 6 or file.holds(needle):
                yield file

    def _latest(self) -> str:
        """The run that began last, and is no process that another started to work for it.

        A file that was last written before that can hold no later one.
        """
        best: tuple[int, str] | None = None
        indexes: list[Index] = []
        tallies: dict[str, RunTally] = {}
        for file in self.files():
            if best is not None and tallies[best[1]].entry and file.changed_ns < best[0]:
                break
            indexes.append(found := self.index(file))
            again = False
            for run_id, counter in found.runs.items():
                known = tallies.get(run_id)
                tallies[run_id] = counter.tally if known is None else merged(known, counter.tally)
                again = again or known is not None  # a forked child's file tells less of a run than its parent's
            candidates = tallies if again else [*found.runs, *([best[1]] if best else [])]
            best = max(
                ((tallies[run_id].started_ns, run_id) for run_id in candidates if tallies[run_id].is_program),
                default=None,
            )
        if (best is None or self._shipped()) and self._has_store():
            best = max(filter(None, (best, self._latest_stored(needed=best is None))), default=None)
        if best is not None:
            return best[1]
        _unreadable(indexes)
        raise UnknownRun(LATEST, self.where)

    def _latest_stored(self, *, needed: bool) -> tuple[int, str] | None:
        try:
            return select.latest(self.store())
        except EngineNeededError:
            raise
        except StoreError:
            if needed:
                raise
            return None

    def _shipped(self) -> bool:
        """Whether files of this spool were shipped and removed, so that the store may hold what the spool lacks."""
        return shipping.has_shipped(self._spool.directory)

    def _stored(self, asked: str, *, needed: bool) -> list[str]:
        if not self._has_store():
            return []
        try:
            if len(asked) >= 32:
                self._ahead = select.only_run(self.store(), asked)
                if self._ahead is not None:
                    return [self._ahead[0]]
            return select.matching(self.store(), asked)
        except EngineNeededError:
            raise
        except StoreError:
            if needed:
                raise
            return []

    def _add_stored(self, pile: Pile) -> bool:
        """What the store holds of a run; where the spool holds some, the store may be missing. Whether it was asked."""
        try:
            engine = self.store()
            losses = []
            ahead, self._ahead = self._ahead, None
            found = ahead[1] if ahead is not None and ahead[0] == pile.run_id else None
            for item in select.everything(engine, pile.run_id) if found is None else found:
                if isinstance(item, select.Loss):
                    losses.append(item)
                else:
                    pile.stored.append(item)
            pile.lost += [text for loss in sorted(losses) if (text := str(loss)) not in pile.lost]
        except EngineNeededError:
            raise
        except StoreError:
            if not pile.frames:
                raise
            return False
        return True

    def _inner(self, run_id: str, *, stored: bool) -> list[str]:
        """Ids of the runs that began in this one. What is in the spool whole has those there too."""
        found = [
            inner
            for file in self.files()
            if file.holds(run_id.encode())
            for inner, counter in self.index(file).runs.items()
            if counter.tally.within == run_id
        ]
        if stored:
            found += select.within(self.store(), run_id)
        return list(dict.fromkeys(found))


def _frames_in(file: SpoolFile, run_id: str) -> Iterator[Frame]:
    for item in file.scan():
        if isinstance(item, Frame) and run_id_of(item) == run_id:
            yield item


def _unreadable(indexes: list[Index]) -> None:
    """Raise UnreadableRecording where nothing was found and a file could not be read."""
    for each in indexes:
        for damage in each.damages:
            if damage.harm is Harm.NEWER:
                raise UnreadableRecording(str(each.file.path), damage.why, "upgrade otel-agent-replay")
            if damage.harm is not Harm.TORN and not each.runs:
                raise UnreadableRecording(str(each.file.path), damage.why, "remove it, or record the run again")
