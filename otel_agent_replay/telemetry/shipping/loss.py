"""What may have been lost to damage in a file, told to the store as notes of the runs that it may belong to."""

from __future__ import annotations

import os
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.frames import Damage, Frame, readings_frame
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import run_id_of
from otel_agent_replay.recording.values import Note, NoteKind, RunRecord
from otel_agent_replay.recording.windows import scan_windows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def notes(path: Path, damages: Sequence[Damage]) -> list[Frame]:
    """A frame for each run that was open where something is damaged, or whose beginning is not in the file."""
    found: dict[str, list[Damage]] = {}
    for damage in damages:
        for run_id in _open_runs(path, damage):
            found.setdefault(run_id, []).append(damage)
    return [_frame(path.name, run_id, each) for run_id, each in found.items()]


def _open_runs(path: Path, damage: Damage) -> list[str]:
    begun: set[str] = set()
    ended: set[str] = set()
    later: list[str] = []
    with path.open("rb") as file:
        size = path.stat().st_size
        for item in scan_windows(partial(_read, file.fileno()), 0, size):
            if not isinstance(item, Frame) or not (run_id := run_id_of(item)):
                continue
            if item.offset < damage.offset:
                begun.add(run_id)
                if item.kind is FrameKind.RUN:
                    ended.add(run_id)
            elif item.kind is FrameKind.RUN_START:
                ended.add(run_id)  # it began after the damage
            else:
                later.append(run_id)
    return sorted((begun | set(later)) - ended)


def _read(descriptor: int, offset: int, size: int) -> bytes:
    return os.pread(descriptor, size, offset)


def _frame(name: str, run_id: str, damages: Sequence[Damage]) -> Frame:
    run = RunRecord(int(run_id[:32], 16), int(run_id[33:], 16), 0, "", 0, {}, {})
    said = [Note(NoteKind.FAULT, f"a frame may be lost: the spool file {name}: {each.why}") for each in damages]
    ident = f"{run_id} {name} {damages[0].offset}"
    span_id = int(blake2b(ident.encode(), digest_size=8).hexdigest(), 16) or 1
    return readings_frame(run, [], [], said, span_id=span_id, now_ns=real.time_ns())
