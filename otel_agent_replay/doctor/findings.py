"""What is found: a leak, where it is, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from otel_agent_replay.recording.values import NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.values import Json, Recording


class Leak(StrEnum):
    """What makes an execution differ from its recording."""

    SET_ORDER = "set-order"
    ADDRESS = "address"
    DEVICE = "device"
    FILE = "file"
    HASH_SEED = "hash-seed"
    CLOCK = "clock"
    ENTROPY = "entropy"
    SOCKET = "socket"
    PROCESS = "process"
    THREADS = "threads"
    GARBAGE = "garbage-collection"
    ENVIRONMENT = "environment"
    NEW_READING = "new-reading"
    ORDER = "order"
    SHAPE = "unknown-shape"
    RECORDING = "recording"
    DIFFERENCE = "difference"


REMEDIES = {
    Leak.SET_ORDER: "Objects that hash by their address have another order in each process: sort them, keep them in a "
    "list or a dict, or give them a __hash__ of what they hold.",
    Leak.ADDRESS: "Give the class a __repr__ or __str__ of its own, or format what it holds.",
    Leak.DEVICE: "Take entropy from `secrets` or `os.urandom`, which are recorded, or put the read behind "
    '`boundary("filesystem", ...)`.',
    Leak.FILE: "Read it in Python with `open`, within OTEL_AGENT_REPLAY_FILE_LIMIT, or put what reads it behind "
    '`boundary("filesystem", ...)`.',
    Leak.HASH_SEED: "Start the program by `opentelemetry-instrument`, or set PYTHONHASHSEED: it can only be set before "
    "Python starts.",
    Leak.CLOCK: "Read the time with `time` or `datetime`, which are recorded, or put the call behind "
    '`boundary("clock", ...)`.',
    Leak.ENTROPY: "Draw from `random`, `secrets` or `uuid`, which are recorded, or put the call behind "
    '`boundary("random", ...)`.',
    Leak.SOCKET: "Put the call behind `boundary(...)`, so that its answer is recorded; a replay refuses the socket.",
    Leak.PROCESS: 'Put the command behind `boundary("process", ...)`; a replay would start it again.',
    Leak.THREADS: "Let one thread make the result of what the others hand it (a queue, `Future.result()` in the order "
    "of submission), or sort what they have made.",
    Leak.GARBAGE: "Do not let what the program does depend on when objects are collected: close them by hand, with "
    "`with` or `contextlib.closing`.",
    Leak.ENVIRONMENT: "Read the variable by its name (`os.environ[...]`), or name it in OTEL_AGENT_REPLAY_ENVIRONMENT: "
    "it is recorded then, and given back.",
    Leak.NEW_READING: "The code that reads is not the code that was recorded; record again, or name what it reads by "
    "a boundary.",
    Leak.ORDER: "The order of completions was seen, not held: give the event loop time to settle, or record again on a "
    "quiet machine.",
    Leak.SHAPE: "Use a version of the library that is supported, or put its calls behind `boundary(...)`.",
    Leak.RECORDING: "Record again; see what `agent-replay status` says.",
    Leak.DIFFERENCE: "Follow the value to where it is made, and put that behind `boundary(...)`.",
}
"""What to do, by what it is."""

_NOTED = {
    NoteKind.FAULT: Leak.RECORDING,
    NoteKind.OBSERVED: Leak.ORDER,
    NoteKind.UNKNOWN_SHAPE: Leak.SHAPE,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One leak."""

    kind: Leak
    what: str
    """One sentence without where."""
    where: str = ""
    """File and line; empty where nobody knows."""
    library: str = ""
    """The package by which it happens; empty for the program's own code."""
    evidence: str = ""
    """What was seen: the line of code, or the two values that differ."""

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES[self.kind]

    def as_json(self) -> dict[str, Json]:
        """Plain data."""
        return {**asdict(self), "kind": str(self.kind), "remedy": self.remedy}

    def lines(self) -> list[str]:
        """The same for a person."""
        place = f"  {self.where}" if self.where else ""
        by = f" ({self.library})" if self.library else ""
        lines = [f"{self.kind}: {self.what}{by}"]
        lines += [f"  {text}" for text in (place.strip(), self.evidence) if text]
        return [*lines, f"  -> {self.remedy}"]


def of_recording(recording: Recording) -> list[Finding]:
    """The capture manifest of a recording, and what it lacks."""
    found = []
    for note in recording.notes:
        kind = _NOTED.get(note.kind) or uncaptured(note.what)
        found.append(Finding(kind, note.what, note.where, _library(note.what)))
    found += [Finding(Leak.RECORDING, text) for text in recording.missing]
    return distinct(found)


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Each leak once: what was found in one place by one kind is one."""
    kept: dict[tuple[Leak, str], Finding] = {}
    for each in findings:
        kept.setdefault((each.kind, each.where or each.what), each)
    return list(kept.values())


_SUBJECTS = (
    ("process ", Leak.PROCESS),
    ("content of /dev/", Leak.DEVICE),
    ("content of /proc/", Leak.DEVICE),
    ("content of /sys/", Leak.DEVICE),
    ("content of ", Leak.FILE),
    ("database ", Leak.FILE),
    ("the order of sets of strings", Leak.HASH_SEED),
    ("a body ", Leak.RECORDING),
)
"""What the lines of a manifest begin with that are about no socket."""


def uncaptured(what: str) -> Leak:
    """What a line of the manifest is about."""
    return next((kind for begin, kind in _SUBJECTS if what.startswith(begin)), Leak.SOCKET)


def _library(what: str) -> str:
    """The module that a line of the manifest names, where it is no script."""
    for word in (" opened by ", " asked for by ", " started by "):
        if word in what:
            name = what.rpartition(word)[2]
            return "" if name in ("", "__main__") else name
    return ""
