"""Reading the spool: files that other processes are still writing, or were writing when they died.

Nothing here changes a file. A tail that is not whole is "not yet" while its writer lives; damage elsewhere is
reported and what follows it is kept; a file that is not ours is named in one sentence and left alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from stat import S_ISREG
from typing import TYPE_CHECKING

from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.errors import StoreError
from otel_agent_replay.recording.frames import Damage, Frame, Harm
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import Counter, RunTally, run_id_of
from otel_agent_replay.recording.windows import WINDOW, scan_windows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIX = ".spool"
"""Ending of the names of spool files."""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One file of the spool, as long as it was when it was listed."""

    path: Path
    size: int
    changed_ns: int
    """When it was last written, nanoseconds since the epoch."""
    live: bool
    """Whether the process that writes it still runs. Asked before the size, so that the tail of a file that is
    not live is its end, and no frame that was being written just then."""

    @property
    def name(self) -> str:
        return self.path.name

    def scan(self, offset: int = 0) -> Iterator[Frame | Damage]:
        """Frames and damage from `offset` on, their offsets those in the file; a window is held at a time.

        A file that is gone by now gives nothing. Raises StoreError where it cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"The spool file {self.path} cannot be read ({error.strerror}); see whose file it is."
            ) from error
        try:
            yield from scan_windows(partial(_read, descriptor), offset, self.size)
        finally:
            os.close(descriptor)

    def holds(self, needle: bytes) -> bool:
        """Whether these bytes, at most a few hundred, are anywhere in the file."""
        before = b""
        try:
            with self.path.open("rb") as file:
                while block := file.read(WINDOW):
                    block = before + block
                    if needle in block:
                        return True
                    before = block[-len(needle) :]
        except OSError:
            return False
        return False

    def problem(self, damage: Damage) -> str:
        """One sentence for damage; empty for a torn tail.

        Its writer completes that, or has died; then the run is listed as unfinished anyway.
        """
        if damage.harm is Harm.TORN:
            return ""
        if damage.harm is Harm.FOREIGN:
            return f"{self.path} is not a spool file and is left alone."
        if damage.harm is Harm.NEWER:
            return f"{self.path} cannot be read: {damage.why}; upgrade otel-agent-replay."
        return f"{self.path} is damaged: {damage.why}."


class Spool:
    """The spool directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def files(self) -> list[SpoolFile]:
        """The files there are, the one that was written last first. None where there is no directory."""
        found = []
        try:
            entries = list(os.scandir(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(
                f"The spool {self.directory} cannot be read ({error.strerror}); name your own directory in "
                "OTEL_AGENT_REPLAY_HOME."
            ) from error
        for entry in entries:
            if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
                continue
            path = self.directory / entry.name
            try:
                live = is_held(path)
                status = path.stat()
            except OSError:  # removed meanwhile
                continue
            if S_ISREG(status.st_mode):
                found.append(SpoolFile(path, status.st_size, status.st_mtime_ns, live))
        return sorted(found, key=lambda file: (-file.changed_ns, file.name))


@dataclass
class Index:
    """What one file holds, without payloads."""

    file: SpoolFile
    runs: dict[str, Counter] = field(default_factory=dict)
    """By run id, in the order of the file."""
    damages: list[Damage] = field(default_factory=list)
    hurt: dict[str, list[Damage]] = field(default_factory=dict)
    """By run id: damage that a frame of that run may have been lost to."""

    @property
    def problems(self) -> list[str]:
        """One sentence for each thing that is wrong with the file."""
        return [text for damage in self.damages if (text := self.file.problem(damage))]


def index(file: SpoolFile) -> Index:
    """Read a whole file for what runs are in it, and what their frames count up to.

    Damage is laid to every run that was open at that point of the file: it had begun and not ended, or its
    beginning is lacking.
    """
    found = Index(file)
    open_runs: set[str] = set()
    whole: set[str] = set()
    for item in file.scan():
        if isinstance(item, Damage):
            found.damages.append(item)
            if _loses(item, live=file.live):
                for run_id in open_runs:
                    found.hurt.setdefault(run_id, []).append(item)
        elif run_id := run_id_of(item):
            counter = found.runs.get(run_id)
            if counter is None:
                counter = found.runs[run_id] = Counter(RunTally(run_id, live=file.live))
            counter.add(item)
            _track(item, run_id, open_runs, whole)
    earlier = [damage for damage in found.damages if _loses(damage, live=file.live)]
    for run_id in found.runs.keys() - whole:
        if earlier and run_id not in found.hurt:
            found.hurt[run_id] = earlier
    return found


def _loses(damage: Damage, *, live: bool) -> bool:
    """Whether a frame may have been lost there."""
    return damage.harm is Harm.DAMAGED or damage.harm is Harm.NEWER or (damage.harm is Harm.TORN and not live)


def _track(frame: Frame, run_id: str, open_runs: set[str], whole: set[str]) -> None:
    if frame.kind is FrameKind.RUN:
        open_runs.discard(run_id)
        whole.add(run_id)
        return
    if frame.kind is FrameKind.RUN_START:
        whole.add(run_id)
    open_runs.add(run_id)


def _read(descriptor: int, base: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, base)):
        parts.append(part)
        base += len(part)
        size -= len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]
