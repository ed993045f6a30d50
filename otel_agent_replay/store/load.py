"""Loading the spool into the embedded store, in batches bounded by bytes.

Nothing is lost and nothing counted twice: how far a file is loaded is written after what it covers, and whatever
a killed load had already inserted is inserted again and removed by its key. The caller holds the engine's lock,
so that one process loads at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.frames import Damage, Frame, Harm
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import run_id_of
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, binary_row, landing_row
from otel_agent_replay.store.spool import index

if TYPE_CHECKING:
    from otel_agent_replay.store.clickhouse import Engine
    from otel_agent_replay.store.spool import Spool, SpoolFile

BATCH_BYTES = 16 << 20
"""Bytes of frames that are inserted at a time; one frame may be larger by itself."""

BATCH_FRAMES = 10_000
"""Frames that are inserted at a time, at most."""

_BEGUN = {FrameKind.CROSSING: FrameKind.CROSSING_START, FrameKind.RUN: FrameKind.RUN_START}


@dataclass(slots=True)
class Loaded:
    """What a load did."""

    frames: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """One sentence for each file, or stretch of one, that could not be loaded."""


@dataclass(slots=True)
class Progress:
    """How far a file is loaded."""

    offset: int = 0
    damaged: bool = False


def progress(engine: Engine) -> dict[str, Progress]:
    """How far each file is loaded, by its name."""
    rows = engine.rows("SELECT file, offset, damaged FROM loaded FINAL")
    return {str(name): Progress(int(offset), bool(damaged)) for name, offset, damaged in rows}


def load_spool(engine: Engine, spool: Spool) -> Loaded:
    """Load what is new. Raises StoreError; what was loaded until then stays loaded."""
    batch = _Batch(engine, progress(engine))
    for file in reversed(spool.files()):
        batch.read(file)
    batch.flush()
    return batch.loaded


class _Batch:
    """Rows that wait to be inserted, and how far each file is loaded with them."""

    def __init__(self, engine: Engine, reached: dict[str, Progress]) -> None:
        self._engine = engine
        self._reached = reached
        self.loaded = Loaded()
        self._frames: list[Frame | None] = []
        self._size = 0
        self._begun: dict[tuple[int, int, FrameKind], int] = {}
        self._files: dict[str, Progress] = {}
        self._runs: set[tuple[str, str]] = set()
        self._known_runs: set[tuple[str, str]] = set()
        self._damages: list[bytes] = []

    def read(self, file: SpoolFile) -> None:
        """Take what is new in a file."""
        before = self._reached.get(file.name, Progress())
        offset = before.offset if before.offset <= file.size else 0
        if offset == file.size and (offset or file.name in self._reached):
            return
        damaged = before.damaged
        for item in file.scan(offset):
            if isinstance(item, Damage):
                if problem := file.problem(item):
                    self.loaded.problems.append(problem)
                if item.harm is not Harm.DAMAGED or (file.live and item.offset + item.length == file.size):
                    break  # not yet, not ours, or for a later version of this package to read
                damaged, offset = True, item.offset + item.length
            else:
                offset = item.offset + item.size
                self._add(item, file.name)
                self.loaded.bytes += item.size
            self._files[file.name] = Progress(offset, damaged)
            if self._size >= BATCH_BYTES or len(self._frames) >= BATCH_FRAMES:
                self.flush()
        if damaged:
            self._lay(file)

    def flush(self) -> None:
        """Insert what waits, then write down how far that reaches."""
        if self._frames:
            rows = [piece for frame in self._frames if frame is not None for piece in landing_row(frame)]
            self._frames = []
            self._engine.insert(LANDING, LANDING_COLUMNS, b"".join(rows))
            del rows
        if self._damages:
            self._engine.insert("damages", ("run_id", "file", "offset", "why"), b"".join(self._damages))
        if runs := self._runs - self._known_runs:
            self._engine.insert("loaded_runs", ("file", "run_id"), b"".join(binary_row(*each) for each in runs))
            self._known_runs |= runs
        if self._files:
            now = real.time_ns()
            reached = [binary_row(name, at.offset, at.damaged, now) for name, at in self._files.items()]
            self._engine.insert("loaded", ("file", "offset", "damaged", "seen"), b"".join(reached))
        self._size, self._begun, self._files, self._damages = 0, {}, {}, []
        self._runs = set()

    def _add(self, frame: Frame, name: str) -> None:
        """Queue a frame. A beginning that is still in the queue is dropped for its end: that holds all of it."""
        run_id = run_id_of(frame)
        if not run_id:  # a frame of no run is of no use to anybody
            return
        self.loaded.frames += 1
        self._runs.add((name, run_id))
        if (begun := _BEGUN.get(frame.kind)) is not None:
            place = self._begun.pop((frame.trace_id, frame.span_id, begun), None)
            if place is not None:
                self._frames[place] = None
        elif frame.kind in (FrameKind.CROSSING_START, FrameKind.RUN_START):
            self._begun[frame.trace_id, frame.span_id, frame.kind] = len(self._frames)
        self._frames.append(frame)
        self._size += frame.size

    def _lay(self, file: SpoolFile) -> None:
        """Say of each run in a damaged file where a frame of it may have been lost."""
        for run_id, damages in index(file).hurt.items():
            self._damages += [binary_row(run_id, file.name, each.offset, each.why) for each in damages]
