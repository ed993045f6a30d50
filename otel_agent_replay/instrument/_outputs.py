"""Files of the program's own that a command writes to: what it wrote is kept, and stands there in a replay too.

A command that is given an open file shares its offset. So what it wrote is what lies between the offset where it
started and the one where it ended.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.instrument import _filesystem
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_agent_replay.boundary.lanes import Lane

_STANDARD: Final = 2
"""The highest descriptor that is the program's own output, which it shares with its commands."""


class Output:
    """One file that a command writes to."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = os.dup(number)
        """A descriptor of ours: the program may close its own before the command ends."""
        self.appends = bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND)
        looks = os.fstat(number)
        self.file = (looks.st_dev, looks.st_ino)
        self.start = looks.st_size if self.appends else os.lseek(number, 0, os.SEEK_CUR)

    def close(self) -> None:
        """Give the descriptor back."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


def given(lane: Lane, key: str, options: Mapping[str, Any], pipes: Iterable[int]) -> list[Output]:
    """The files that a command is given to write to; what else it is given, is noted.

    Args:
        lane: who starts it.
        key: what the boundary of the command is called.
        options: the arguments of `subprocess.Popen`, by name.
        pipes: descriptors of pipes to other commands.
    """
    found: list[Output] = []
    for name in ("stdout", "stderr"):
        number = _number(options.get(name))
        if number <= _STANDARD or number in pipes:
            continue
        try:
            looks = os.fstat(number)
        except OSError:  # starting the command says so
            continue
        if not stat.S_ISREG(looks.st_mode):
            if looks.st_rdev != Path(os.devnull).stat().st_rdev:
                _unseen(lane, key, "it goes to a descriptor of the program's own")
        elif (looks.st_dev, looks.st_ino) not in [known.file for known in found]:
            found.append(Output(name, number))
    return found


def taken(lane: Lane, key: str, outputs: list[Output]) -> dict[str, object]:
    """While recording: what the command has written, by the name of its stream."""
    written: dict[str, object] = {}
    for output in outputs:
        try:
            size = os.lseek(output.number, 0, os.SEEK_CUR) - output.start
            if size > _filesystem.of(lane.session).scope.limit:
                _unseen(lane, key, f"its {size} bytes are more than OTEL_AGENT_REPLAY_FILE_LIMIT")
            elif size > 0:
                written[output.name] = _read(output, size)
        except OSError as error:
            _unseen(lane, key, f"it could not be read: {error.strerror}")
    return written


def put(outputs: list[Output], written: Mapping[str, Any] | None) -> None:
    """In a replay: write what the command wrote."""
    for output in outputs:
        data = (written or {}).get(output.name)
        if not data:
            continue
        with suppress(OSError):  # as the command would have failed, not the program
            if output.appends:
                _whole(data, lambda rest, _, to=output.number: os.write(to, rest))
            else:
                _whole(data, lambda rest, at, to=output: os.pwrite(to.number, rest, to.start + at))
                os.lseek(output.number, output.start + len(data), os.SEEK_SET)


def close(outputs: list[Output]) -> None:
    """Nothing more is to be had of them."""
    for output in outputs:
        output.close()


def _number(given: Any) -> int:
    try:
        return given if isinstance(given, int) else int(given.fileno())
    except (AttributeError, OSError, ValueError):
        return -1


def _read(output: Output, size: int) -> bytes:
    """The file may be open for writing only."""
    with suppress(OSError), Path(f"/proc/self/fd/{output.number}").open("rb") as file:
        file.seek(output.start)
        return file.read(size)
    return os.pread(output.number, size, output.start)


def _whole(data: bytes, write: Any) -> None:
    done = 0
    while done < len(data):
        done += write(data[done:], done)


def _unseen(lane: Lane, key: str, why: str) -> None:
    lane.session.note(Note(NoteKind.UNCAPTURED, f"output of {key}: {why}"))
