"""Finding runs by what a person types, and taking them out whole.

The spool is asked first, in pure Python; the engine is opened only for what the spool does not hold. What both
hold of a run is merged. A process that runs agent code never opens the engine: `load_for_replay` has a short-lived
child do it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import encode, readings_frame
from otel_agent_replay.recording.values import Note, NoteKind, RunRecord
from otel_agent_replay.store.recordings import EngineNeededError, Recordings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_agent_replay.recording.frames import Frame
    from otel_agent_replay.recording.values import Recording
    from otel_agent_replay.store.recordings import Pile


class Place(Protocol):
    """Where recordings are; the settings are one."""

    @property
    def spool(self) -> Path:
        """Directory of the spool files."""

    @property
    def dsn(self) -> str:
        """The store: ``chdb://PATH`` or ``clickhouse://HOST:PORT/DATABASE``."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run to be replayed, and the runs that belong to it."""

    run_id: str
    recordings: dict[str, Recording]
    """By run id: the run, the runs that it began in (their prelude is answered too), the runs that began in it."""


@contextmanager
def opened(place: Place, *, engine: bool = True) -> Iterator[Recordings]:
    """The recordings of a place, for several questions; the engine is opened once, when it is first needed."""
    recordings = Recordings(place.spool, place.dsn, engine=engine)
    try:
        yield recordings
    finally:
        recordings.close()


def find_run(place: Place, wanted: str) -> str:
    """The id of the run that is meant.

    Args:
        place: where to look; the settings will do.
        wanted: `latest`, a run id, a trace id, or a unique beginning of one.

    Raises:
        UnknownRun, AmbiguousRun: none or several have it.
        UnreadableRecording: it may be in a file that cannot be read.
        StoreError: it is not in the spool, and the store cannot be asked.
    """
    with opened(place) as recordings:
        return recordings.find(wanted)


def load(place: Place, run_id: str) -> Recording:
    """A run, whole. Raises UnknownRun, UnreadableRecording, StoreError."""
    with opened(place) as recordings:
        return recording_of(recordings.gather(run_id))


def export_spool(place: Place, run_id: str, path: Path) -> list[str]:
    """Write a run, and the runs that belong to it, as a new file in the format of the spool; gives their ids.

    A replayed process reads such a file: it needs neither the spool nor the store, and no engine.

    Raises:
        UnknownRun, StoreError: as `load` does, for the run itself. A run that only belongs to it and is not there
            is left out.
        FileExistsError: there is such a file.
    """
    written = []
    with opened(place) as recordings, path.open("xb") as file:
        for pile in recordings.family(run_id):
            written.append(pile.run_id)
            for frame in pile.all_frames():
                file.writelines(encode(frame))
            if pile.lost:
                file.writelines(encode(_loss(pile)))
    return written


def load_for_replay(place: Place, wanted: str) -> Loaded:
    """Find a run and load it, with the runs that belong to it, without ever opening the engine in this process.

    Raises what `find_run` and `load` raise.
    """
    try:
        with opened(place, engine=False) as recordings:
            run_id = recordings.find(wanted)
            return Loaded(run_id, {pile.run_id: recording_of(pile) for pile in recordings.family(run_id)})
    except EngineNeededError:
        from otel_agent_replay.store import child  # noqa: PLC0415 (only where the spool does not do)

        return child.load(place, wanted)


def _loss(pile: Pile) -> Frame:
    """What may have been lost of a run, as notes: a file that is read elsewhere has to say so itself."""
    run = RunRecord(int(pile.run_id[:32], 16), int(pile.run_id[33:], 16), 0, "", 0, {}, {})
    notes = [Note(NoteKind.FAULT, f"a frame may be lost: {sentence}") for sentence in pile.lost]
    span_id = int(blake2b(pile.run_id.encode(), digest_size=8).hexdigest(), 16)
    return readings_frame(run, [], [], notes, span_id=span_id, now_ns=1)


def recording_of(pile: Pile) -> Recording:
    """The recording that frames make up, with what was lost of it."""
    recording = assemble(pile.all_frames(), pile.run_id)[pile.run_id]
    recording.missing[:0] = pile.lost
    return recording
