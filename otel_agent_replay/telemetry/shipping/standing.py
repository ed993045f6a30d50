"""How much of what was recorded is shipped: counted from the files themselves, without decoding them."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.recording.layout import MARK, PREAMBLE
from otel_agent_replay.telemetry.shipping.ledger import Counts, Ledger

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class FileStanding:
    """One spool file."""

    name: str
    live: bool
    """Whether it still has a writer."""
    size: int
    shipped: Counts
    waiting: int
    """Frames that are neither accepted nor refused."""
    waiting_bytes: int
    refused: int
    """Frames that are set aside now."""
    destination: str
    """Name of the destination that its writer had; empty for none."""


@dataclass(slots=True)
class Standing:
    """A whole home. Recorded frames are those shipped, refused and waiting."""

    files: list[FileStanding] = field(default_factory=list)
    gone: Counts = field(default_factory=Counts)
    """Of files that were shipped whole and removed."""
    aside: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What is set aside: frames and bytes, by the name of the file that it stood in."""
    failing: dict[str, str] = field(default_factory=dict)
    """Why nothing gets through, by the name of a destination that something waits for, or that is shipped to."""

    @property
    def shipped(self) -> Counts:
        """Of all files."""
        total = Counts()
        for counts in (self.gone, *(each.shipped for each in self.files)):
            total.add(counts)
        return total

    @property
    def waiting(self) -> int:
        """Frames."""
        return sum(each.waiting for each in self.files)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the spool."""
        return sum(each.waiting_bytes for each in self.files)

    @property
    def recorded(self) -> int:
        """Frames."""
        return self.shipped.frames + self.refused + self.waiting

    @property
    def refused(self) -> int:
        """Frames that are set aside."""
        return sum(count for count, _ in self.aside.values())


def standing(home: Path) -> Standing:
    """Look at a home. What is removed meanwhile is left out, or counted as gone."""
    ledger = Ledger(home)
    found = Standing(aside=ledger.aside())
    for path in ledger.files():
        try:
            live = is_held(path)
            progress = ledger.progress(path.name)
            origin = ledger.origin(path.name)
            size = path.stat().st_size
            waiting = count_frames(path, progress.offset)
        except OSError:
            continue
        found.files.append(
            FileStanding(
                path.name,
                live,
                size,
                progress.counts,
                waiting,
                max(size - progress.offset, 0),
                found.aside.get(path.name, (0, 0))[0],
                origin.destination if origin is not None else "",
            )
        )
    here = {each.name for each in found.files}
    found.gone = ledger.shipped(but=here)
    named = {each.destination for each in found.files if each.waiting_bytes}
    for each in ledger.destinations():
        asked = "" in named or each in named or ledger.is_served(each)  # what names none may go to any
        if asked and (why := ledger.failing(each)):
            found.failing[each] = why
    return found


def count_frames(path: Path, offset: int) -> int:
    """How many frames begin at or after an offset; what is damaged counts as none."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if offset >= size:
            return 0
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            return _count(data, offset, size)


def _count(data: mmap.mmap, at: int, size: int) -> int:
    count = 0
    while at < size:
        length, start = _length(data, at, size)
        if length < PREAMBLE or data[start : start + len(MARK)] != MARK:
            found = data.find(MARK, at + 1)
            if found < 0:
                return count
            at = max(found - 5, at + 1)
            while at < found and not _begins(data, at, found, size):
                at += 1
            continue
        if start + length > size:
            return count
        count += 1
        at = start + length
    return count


def _begins(data: mmap.mmap, at: int, mark: int, size: int) -> bool:
    """Whether a length that begins here ends where the mark stands."""
    length, start = _length(data, at, size)
    return start == mark and length >= PREAMBLE


def _length(data: mmap.mmap, at: int, size: int) -> tuple[int, int]:
    """The length prefix at an offset, 0 where there is none, and the offset after it."""
    length = shift = 0
    for place in range(at, min(at + 5, size)):
        byte = data[place]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, place + 1
        shift += 7
    return 0, at
