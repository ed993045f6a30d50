"""Standard input as a file: what the program reads of it is a crossing, however it has opened it."""

from __future__ import annotations

import io
import os
from typing import Any, Final

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _asking, _paths
from otel_agent_replay.instrument._asking import PEOPLE, cross
from otel_agent_replay.recording.values import Kind

_PATHS: Final = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")

watching: list[bool] = []
"""Not empty where the standard input of this process belongs to what is recorded or replayed."""


def is_stdin(file: Any) -> bool:
    """Whether a file that is opened is standard input."""
    return file == 0 if type(file) is int else type(file) is str and file in _PATHS


def opened(file: Any, mode: Any, buffering: Any, encoding: Any, errors: Any, newline: Any, *, closefd: bool) -> Any:
    """What `open` gives for standard input; None where it is to be opened as ever."""
    binary = mode == "rb"
    if not watching or (not binary and mode not in ("r", "rt")) or buffering != -1:
        return None
    lane = _asking.lane_of(PEOPLE)
    if lane is None or (binary and (encoding, errors, newline) != (None, None, None)):
        return None
    raw = Typed(os.devnull if lane.session.replaying and file != 0 else file, "rb", closefd=closefd)
    raw.name = file
    buffer = io.BufferedReader(raw)
    if binary:
        return buffer
    text = io.TextIOWrapper(buffer, encoding=encoding, errors=errors, newline=newline)
    text.mode = mode  # type: ignore[misc]  # as `open` sets it
    return text


class Typed(io.FileIO):
    """Standard input: a read by the program is a crossing."""

    name: Any

    def readinto(self, buffer: Any) -> Any:
        found = _paths.asking(PEOPLE)
        if found is None:
            return super().readinto(buffer)
        view = memoryview(buffer).cast("B")
        data = self._typed(found[0], len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> Any:
        found = _paths.asking(PEOPLE)
        if found is None:
            return super().read(-1 if size is None else size)
        return self._typed(found[0], -1 if size is None else size)

    def readall(self) -> Any:
        found = _paths.asking(PEOPLE)
        return super().readall() if found is None else self._typed(found[0], -1)

    def _typed(self, lane: Any, size: int) -> bytes:
        def perform() -> bytes:
            return io.FileIO.read(self, size) or b""

        data: bytes = cross(lane, Call(Kind.HUMAN, "human:stdin"), perform)
        return data
