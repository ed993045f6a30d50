"""What is written beside the spool about its shipping: who recorded a file, how far it is shipped, what was refused.

    HOME/shipping/FILE.origin      the resource and the destination of the process that writes FILE
    HOME/shipping/FILE.progress    how far it is shipped; who holds a lock on this ships it
    HOME/shipping/shipped.jsonl    a line for each file that was shipped whole and removed: counts, runs
    HOME/shipping/NAME.failing     why nothing gets through to the destination NAME at present
    HOME/refused/FILE              frames that the receiver refused for good, as they stood in FILE
    HOME/refused/FILE.jsonl        a line for each: why, and when
    HOME/refused/FILE.origin       as above; the one beside the spool goes with its file

Everything is written so that a process may be killed at any instant: what is not known to be shipped is shipped again.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.telemetry.spool import REPLAY_SUFFIX, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_agent_replay.recording.values import Json

FOLDER = "shipping"
"""Under the home."""
REFUSED = "refused"
"""Under the home."""
ORIGIN = ".origin"
PROGRESS = ".progress"
FAILING = ".failing"
SHIPPED = "shipped.jsonl"

FORGOTTEN_AFTER = 600.0
"""Seconds after which what lies beside a file that is not there is taken for a leftover."""

COMPACTED_AT = 1 << 20
"""Bytes of `shipped.jsonl` at which its lines are added up …"""
KEPT_LINES = 200
"""… but for so many, so that a file whose removal was interrupted is not counted twice."""


@dataclass(slots=True)
class Counts:
    """Of one file, or of many. Frames are those of the spool; spans are what they became on the wire."""

    frames: int = 0
    """Accepted by the receiver."""
    bytes: int = 0
    spans: int = 0
    refused: int = 0
    """Frames that were set aside, damaged stretches too."""

    def add(self, other: Counts) -> None:
        """Add up, in place."""
        for each in fields(Counts):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Progress:
    """How far a file is shipped."""

    offset: int = 0
    counts: Counts = field(default_factory=Counts)
    destination: str = ""
    """Name of the destination that has it; what another one has is no part of that."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who recorded a file."""

    resource: Mapping[str, Json] = field(default_factory=dict)
    destination: str = ""
    """Name of the destination that its writer had; empty where it had none."""


class Ledger:
    """The files above, of one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spool = home / "spool"
        self.folder = home / FOLDER
        self.refused = home / REFUSED

    def describe(self, name: str, origin: Origin) -> None:
        """Say who records a file, before the file is there. Raises OSError."""
        make_private(self.folder)
        try:
            text = json.dumps({"resource": dict(origin.resource), "destination": origin.destination}, default=str)
        except (TypeError, ValueError, RecursionError):  # it says less, but is shipped
            text = json.dumps({"resource": {}, "destination": origin.destination})
        _write(self.folder / (name + ORIGIN), text.encode())

    def origin(self, name: str) -> Origin | None:
        """Who recorded a file; None where nobody said."""
        return _origin(self.folder / (name + ORIGIN))

    def progress(self, name: str, destination: str = "") -> Progress:
        """How far a file is shipped, as far as is known: to one destination, where one is named."""
        try:
            return _parsed((self.folder / (name + PROGRESS)).read_bytes(), destination)
        except OSError:
            return Progress(destination=destination)

    def is_served(self, destination: str) -> bool:
        """Whether a process ships to that destination."""
        try:
            return is_held(self.folder / f"{destination}.lock")
        except OSError:
            return False

    def files(self) -> list[Path]:
        """The spool files that are to be shipped, the oldest first: those of replays stay."""
        with suppress(OSError):
            names = [entry.name for entry in os.scandir(self.spool)]
            return [self.spool / name for name in sorted(names) if _is_live(name)]
        return []

    def shipped(self, but: Collection[str] = ()) -> Counts:
        """What the files held that were shipped whole and are gone; those named in `but` are still there."""
        total = Counts()
        for name, counts in self._shipped():
            if name not in but:
                total.add(counts)
        return total

    def destinations(self) -> list[str]:
        """Names of the destinations that nothing got through to when it was last tried."""
        with suppress(OSError):
            names = [entry.name for entry in os.scandir(self.folder)]
            return sorted(name.removesuffix(FAILING) for name in names if name.endswith(FAILING) and name[0] != ".")
        return []

    def set_aside(self, name: str, frames: Sequence[tuple[bytes, str]]) -> None:
        """Keep what was refused, each with the reason. Raises OSError."""
        make_private(self.refused)
        now = real.time_ns()
        data = b"".join(frame for frame, _ in frames)
        lines = [json.dumps({"bytes": len(frame), "why": why, "at_ns": now}) + "\n" for frame, why in frames]
        beside = self.refused / (name + ORIGIN)
        if not beside.exists():
            with suppress(OSError):
                _write(beside, (self.folder / (name + ORIGIN)).read_bytes())
        _append(self.refused / name, data)
        _append(self.refused / f"{name}.jsonl", "".join(lines).encode())

    def aside(self) -> dict[str, tuple[int, int]]:
        """What is set aside of each file: how many frames, and their bytes."""
        found: dict[str, tuple[int, int]] = {}
        with suppress(OSError):
            for path in self.refused.glob(f"*{SUFFIX}.jsonl"):
                with suppress(OSError, ValueError, TypeError, KeyError):
                    sizes = [int(json.loads(line)["bytes"]) for line in path.read_bytes().splitlines()]
                    found[path.name.removesuffix(".jsonl")] = (len(sizes), sum(sizes))
        return found

    def take_back(self) -> int:
        """Put what was set aside back into the spool, to be sent again. How many files. Raises OSError."""
        moved = 0
        for entry in sorted(self.refused.glob(f"*{SUFFIX}")):
            with suppress(FileNotFoundError):
                moved += self._take_back(entry)
        return moved

    def _take_back(self, refused: Path) -> bool:
        """One file; False where somebody ships the one that it comes from, and may set more aside just now."""
        claim = Claim.take(self, self.spool / refused.name, "")
        if claim is None and (self.spool / refused.name).exists():
            return False
        try:
            origin = _origin(self.refused / (refused.name + ORIGIN)) or self.origin(refused.name) or Origin()
            name = f"{real.time_ns():019d}-{real.getpid()}-{real.urandom(4).hex()}{SUFFIX}"
            self.describe(name, Origin(origin.resource, origin.destination or "again"))
            make_private(self.spool)
            refused.rename(self.spool / name)
        finally:
            if claim is not None:
                claim.release()
        for suffix in (".jsonl", ORIGIN):
            with suppress(OSError):
                (self.refused / (refused.name + suffix)).unlink()
        return True

    def failing(self, destination: str, *, since: float = 0.0) -> str:
        """Why nothing gets through to a destination; empty where something does, or nothing was tried.

        Args:
            destination: its name.
            since: so many seconds ago that must have been found; 0 for whenever.
        """
        try:
            said: Any = json.loads((self.folder / f"{destination}{FAILING}").read_bytes())
            old = since and int(said["at_ns"]) < real.time_ns() - int(since * 1e9)
            return "" if old else str(said["why"])
        except (OSError, ValueError, TypeError, KeyError):
            return ""

    def say_failing(self, destination: str, why: str) -> None:
        """Write that down; nothing where something gets through. Never raises."""
        path = self.folder / f"{destination}{FAILING}"
        with suppress(OSError):
            if why:
                _write(path, json.dumps({"why": why, "at_ns": real.time_ns()}).encode())
            else:
                path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what lies beside files that are not there, and what is said of destinations of none. Never raises."""
        before = real.time_ns() - int(FORGOTTEN_AFTER * 1e9)
        named = {origin.destination for path in self.files() if (origin := self.origin(path.name)) is not None}
        for destination in self.destinations():
            path = self.folder / f"{destination}{FAILING}"
            with suppress(OSError):
                if destination not in named and path.stat().st_mtime_ns < before and not self.is_served(destination):
                    path.unlink()
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(ORIGIN).removesuffix(PROGRESS)
                if name == entry.name or not name.endswith(SUFFIX) or (self.spool / name).exists():
                    continue
                with suppress(OSError):
                    if entry.stat().st_mtime_ns < before:
                        (self.folder / entry.name).unlink()

    def _note_shipped(self, name: str, counts: Counts, runs: Collection[str]) -> None:
        path = self.folder / SHIPPED
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size > COMPACTED_AT:
                self._compact(descriptor)
            os.write(descriptor, (json.dumps({"file": name, **asdict(counts), "runs": sorted(runs)}) + "\n").encode())
        finally:
            os.close(descriptor)

    def _compact(self, descriptor: int) -> None:
        """Add the older lines up, in place: a reader that looks just then sees less, never more."""
        kept = (self.folder / SHIPPED).read_bytes().splitlines(keepends=True)[-KEPT_LINES:]
        total = Counts()
        for _, counts in list(self._shipped())[: -len(kept)]:
            total.add(counts)
        data = json.dumps({"file": "", **asdict(total)}).encode() + b"\n" + b"".join(kept)
        draft = self.folder / f"{SHIPPED}.old"
        _write(draft, data)  # kept until the next time: a kill between the two steps loses counts, never frames
        os.ftruncate(descriptor, 0)
        os.write(descriptor, data)

    def _shipped(self) -> Iterator[tuple[str, Counts]]:
        """Each file once, though a killed shipper may have written it twice."""
        found: dict[str, Counts] = {}
        with suppress(OSError):
            for line in (self.folder / SHIPPED).read_bytes().splitlines():
                with suppress(ValueError, TypeError, KeyError, AttributeError):
                    said = json.loads(line)
                    name = str(said.pop("file"))
                    found[name] = Counts(**{each.name: int(said[each.name]) for each in fields(Counts)})
        yield from found.items()


class Claim:
    """The right to ship one file. Use it as a context manager."""

    def __init__(self, ledger: Ledger, path: Path, descriptor: int, destination: str) -> None:
        self.ledger = ledger
        self.path = path
        self._descriptor = descriptor
        self.progress = _parsed(os.pread(descriptor, 1024, 0), destination)

    @classmethod
    def take(cls, ledger: Ledger, path: Path, destination: str) -> Claim | None:
        """Claim a file for a destination; None where somebody else ships it, or it is gone. Raises OSError."""
        make_private(ledger.folder)
        beside = ledger.folder / (path.name + PROGRESS)
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, found = os.fstat(descriptor), beside.stat()
            if held.st_ino == found.st_ino:
                if path.exists():
                    claim = cls(ledger, path, descriptor, destination)
                    if not held.st_size:  # a disk that is full is to refuse this now, not once a batch is accepted
                        claim.advance(0)
                    return claim
                beside.unlink()  # it was shipped and removed just now; this is our own empty one
        except BlockingIOError:
            pass
        except FileNotFoundError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def advance(self, offset: int) -> None:
        """All before this offset has been acknowledged or set aside. Raises OSError."""
        self.progress.offset = offset
        counts = self.progress.counts
        numbers = (offset, *(getattr(counts, each.name) for each in fields(Counts)))
        named = b"%-20s\n" % self.progress.destination.encode()
        os.pwrite(self._descriptor, b"".join(b"%020d\n" % number for number in numbers) + named, 0)

    def finish(self, runs: Collection[str]) -> None:
        """The file is shipped whole and its writer is dead: remove it. Raises OSError.

        Args:
            runs: ids of those that it holds something of.
        """
        if self.progress.offset:
            with suppress(OSError):  # a disk that is full gets room by what follows; what is counted is less
                self.ledger._note_shipped(self.path.name, self.progress.counts, runs)  # noqa: SLF001 (its other half)
        self.path.unlink(missing_ok=True)
        for suffix in (ORIGIN, PROGRESS):
            (self.ledger.folder / (self.path.name + suffix)).unlink(missing_ok=True)

    def release(self) -> None:
        """Let the next one ship it."""
        os.close(self._descriptor)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def make_private(directory: Path) -> None:
    """Make a directory for this user only, where it is not there. Raises OSError."""
    if not directory.is_dir():
        directory.mkdir(0o700, parents=True, exist_ok=True)


def _is_live(name: str) -> bool:
    """Whether that is a spool file of live runs."""
    return name.endswith(SUFFIX) and name[0] != "." and not name.endswith(REPLAY_SUFFIX)


def _origin(path: Path) -> Origin | None:
    try:
        said: Any = json.loads(path.read_bytes())
        return Origin(dict(said["resource"]), str(said["destination"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _parsed(data: bytes, destination: str) -> Progress:
    """What `Claim.advance` wrote for a destination; nothing where it is anything else, so that all is sent again."""
    *lines, named, _ = data.split(b"\n") if data.count(b"\n") > 1 else (b"", b"", b"")
    held = named.decode("ascii", "replace").strip()
    names = [each.name for each in fields(Counts)]
    sound = len(lines) == len(names) + 1 and all(len(line) == 20 and line.isdigit() for line in lines)
    if not sound or destination not in ("", held):
        return Progress(destination=destination)
    offset, *numbers = map(int, lines)
    return Progress(offset, Counts(**dict(zip(names, numbers, strict=True))), held)


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{real.getpid()}.{real.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            _put(descriptor, data)
        finally:
            os.close(descriptor)
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def _put(descriptor: int, data: bytes) -> None:
    """All of it: a disk that is nearly full takes a part, and refuses the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _put(descriptor, data)
    finally:
        os.close(descriptor)
