"""What one run knows of the file system: where it stands, which paths are its own, what it has written.

While recording, everything happens on the disk, and the paths that the program writes are kept, so that a reading of
what it wrote itself is told from a reading of the world. In a replay nothing of that reaches the disk: paths that the
program writes, and the content that it was answered, stand in a *shadow*, a folder that nobody else knows and that is
removed with the replay.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
import tempfile
import threading
import weakref
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.callers import LIBRARY
from otel_agent_replay.instrument._tree import Tree
from otel_agent_replay.instrument._written import NEVER, Looks, Written, looks_of

if TYPE_CHECKING:
    from otel_agent_replay.boundary.session import Session

FILE_LIMIT: Final = 16 << 20
"""Bytes of one file that are recorded, unless a setting says otherwise."""

_MOST_JUDGED: Final = 20_000
_SPECIAL: Final = ("/dev/", "/proc/", "/sys/")
_MEMORY: Final = "/dev/shm/"  # noqa: S108 (files as any)
_DEVICES: Final = ("/dev/stdin", "/dev/random", "/dev/urandom", "/dev/hwrng", "/proc/", "/sys/")
_STDLIB: Final = str(Path(os.__file__).parent) + os.sep
_PACKAGES: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OF_THE_SYSTEM: Final = (
    "/etc/",
    "/usr/",
    "/lib/",
    "/lib64/",
    "/opt/",
    "/var/",
    "/bin/",
    "/sbin/",
    "/System/",
    "/Library/",
)
"""Below these a library looks for its own configuration and data, which is nothing that the program reads."""


_TIME_ZONES: Final = ("/usr/share/zoneinfo/", "/usr/lib/zoneinfo/", "/usr/share/lib/zoneinfo/", "/etc/zoneinfo/")
"""C code opens these by the name of the zone, so that it looks as if the program did."""


class Places:
    """Where the program stands, and what its paths are called wherever it is replayed.

    Args:
        recorded: the directory that the run was recorded in; empty for this one.
        replaying: the working directory is the program's only, not the process's.
    """

    def __init__(self, recorded: str, *, replaying: bool) -> None:
        self.start = _cwd()
        self.recorded = recorded or self.start
        self._replaying = replaying
        self.cwd = self.start
        """The working directory, in a replay."""

    def absolute(self, path: str) -> str:
        """The path as it stands on this machine, symbolic links as they are."""
        if not path.startswith(os.sep):
            path = posixpath.join(self.cwd if self._replaying else _cwd(), path)
        path = posixpath.normpath(path)
        if self.start != self.recorded:
            rest = _below(path, self.recorded)
            if rest is not None:
                return posixpath.join(self.start, rest) if rest else self.start
        return path

    def name(self, absolute: str) -> str:
        """What a path is called in a recording: from the directory that the run began in, where it is below that."""
        rest = _below(absolute, self.start)
        return absolute if rest is None else rest or "."

    def portable(self, text: str) -> str:
        """A word of a command, with the directory of the recording in place of this one."""
        return text if self.start == self.recorded or not self.start else text.replace(self.start, self.recorded)

    def shown(self, absolute: str) -> str:
        """A path as the recorded program saw it."""
        rest = _below(absolute, self.start)
        return absolute if rest is None else (posixpath.join(self.recorded, rest) if rest else self.recorded)


class Scope:
    """Which paths belong to a run.

    Args:
        include: patterns of paths that do, whoever reads them.
        exclude: patterns of paths that do not, whoever reads them.
        limit: bytes of a file that are recorded.
        places: what paths are called.
    """

    def __init__(self, include: tuple[str, ...], exclude: tuple[str, ...], limit: int, places: Places) -> None:
        self.limit = limit
        self._include = include
        self._exclude = exclude
        self._places = places
        self._homes = _folders_of_libraries()
        self._judged: dict[tuple[str, bool], bool] = {}

    def holds(self, absolute: str, kind: int) -> bool:
        """Whether a path belongs to the run when code of this kind (`boundary.callers`) asks for it."""
        key = (absolute, kind == LIBRARY)
        judged = self._judged.get(key)
        if judged is None:
            judged = self._judge(absolute, library=key[1])
            if len(self._judged) < _MOST_JUDGED:
                self._judged[key] = judged
        return judged

    def is_device(self, absolute: str) -> bool:
        """Whether what is read there differs each time, and is no terminal, pipe or sink."""
        return absolute.startswith(_DEVICES)

    def _judge(self, path: str, *, library: bool) -> bool:
        name = self._places.name(path)
        if any(fnmatchcase(name, pattern) or fnmatchcase(path, pattern) for pattern in self._exclude):
            return False
        if any(fnmatchcase(name, pattern) or fnmatchcase(path, pattern) for pattern in self._include):
            return True
        below = path + os.sep
        special = below.startswith(_SPECIAL) and not below.startswith(_MEMORY)
        if special or below.startswith((_STDLIB, *_TIME_ZONES)) or any(folder in below for folder in _PACKAGES):
            return False
        return not (library and below.startswith((*_OF_THE_SYSTEM, *self._homes)))


_MOST_LINKS: Final = 40


class Own:
    """While recording: the paths that the program itself has written, and that nobody has changed since."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: Tree[Written | None] = Tree()
        """By path; None for a folder."""
        self._open: set[Written] = set()
        """What the program has open to write."""

    def opened(self, path: str) -> Written:
        """The program may write what stands there until `closed` is called with what this gives."""
        with self._lock:
            written = self._known.get(path) or Written()
            written.path, written.looks = path, None
            written.handles += 1
            self._known.put(path, written)
            self._open.add(written)
        return written

    def closed(self, written: Written, looks: Looks | None) -> None:
        """It does not write there any more; `looks` is how it has left it."""
        with self._lock:
            written.handles -= 1
            if not written.handles:
                self._open.discard(written)
                if written.looks is None:  # else a command has run meanwhile, which may have written too
                    written.looks = looks or NEVER

    def wrote(self, path: str) -> None:
        """The program has changed what stands there, in one call that is done."""
        looks = _looks(path) or NEVER
        with self._lock:
            written = self._known.get(path) or Written(path)
            written.looks = None if written.handles else looks
            self._known.put(path, written)

    def linked(self, path: str, target: str) -> None:
        """The program has made a symbolic link: what stands there is what stands at the target."""
        with self._lock:
            self._known.put(path, Written(path, target=target))

    def lost(self, path: str) -> None:
        """Somebody else has changed what stands there: a command, or code whose call a replay answers as a whole."""
        with self._lock:
            self._known.put(path, Written(path, NEVER))

    def made(self, path: str) -> None:
        with self._lock:
            self._known.put(path, None)

    def removed(self, path: str) -> None:
        with self._lock:
            self._known.discard(path)

    def moved(self, old: str, new: str) -> None:
        if old == new:
            return
        with self._lock:
            self._known.discard(new)
            for path, written in self._known.take(old):
                moved = new + path[len(old) :]
                if written is not None:
                    written.path = moved
                self._known.put(moved, written)

    def is_own(self, path: str) -> bool:
        """Whether what stands there is what the program has put there."""
        for _ in range(_MOST_LINKS):
            if path not in self._known:
                return False
            written = self._known.get(path)
            if written is None or not written.target:
                then = None if written is None else written.looks
                return then is None or then == _looks(path)
            path = written.target
        return False

    def knows(self, path: str) -> bool:
        """Whether the program has put something there, whatever became of it."""
        return path in self._known

    def missing(self, folder: str, names: set[str]) -> list[str]:
        """What the program has put into a folder and is not there any more."""
        with self._lock:
            return sorted(name for name in self._known.names(folder.rstrip(os.sep)) if name not in names)

    def command_starts(self) -> None:
        """From now on somebody else may write to what the program has open."""
        with self._lock:
            for written in list(self._open):
                if written.looks is None:
                    written.looks = _looks(written.path) or NEVER


class Shadow:
    """In a replay: what the program has written and what it was answered, in place of the disk."""

    def __init__(self) -> None:
        self._root = ""
        self._lock = threading.RLock()
        self._own: Tree[None] = Tree()
        self.gone: set[str] = set()
        """Paths that the program has removed."""
        self.written: set[str] = set()
        """Paths that it has written at any time, whoever has done so since."""

    @property
    def root(self) -> str:
        """The folder that stands for the root of the file system."""
        with self._lock:
            if not self._root:
                above = _kept_in[-1] if _kept_in else tempfile.gettempdir()
                root = os.path.join(above, f"agent-replay-{real.urandom(8).hex()}")
                os.mkdir(root, 0o700)
                self._root = root
                weakref.finalize(self, _remove, root, real.getpid())
        return self._root

    def path(self, absolute: str) -> str:
        """Where a path stands in the shadow."""
        return self.root + absolute

    def has(self, absolute: str) -> bool:
        """Whether the shadow knows what stands there."""
        return bool(self._root) and os.path.lexists(self._root + absolute)

    def makes(self, absolute: str) -> bool:
        """Whether the program has put something there."""
        return absolute in self._own

    def keeps(self, absolute: str) -> bool:
        """Whether the program has put something there, or made a folder that it is in."""
        if not self._own:
            return False
        while absolute not in self._own:
            above, _, _ = absolute.rpartition(os.sep)
            if not above:
                return False
            absolute = above
        return True

    def parents(self, absolute: str) -> str:
        """Make the folders above a path; gives the path in the shadow."""
        path = self.path(absolute)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def folder(self, absolute: str) -> str:
        """Let there be a folder."""
        path = self.path(absolute)
        os.makedirs(path, exist_ok=True)
        self.gone.discard(absolute)
        return path

    def put(self, absolute: str, content: bytes) -> str:
        """What was recorded of a file stands there now; whoever has it open keeps what was there."""
        path = self.parents(absolute)
        draft = f"{path}.{real.urandom(4).hex()}"
        with open(draft, "wb") as file:
            file.write(content)
        os.replace(draft, path)
        self.disown(absolute)
        self.gone.discard(absolute)
        return path

    def wrote(self, absolute: str) -> None:
        with self._lock:
            self._own.put(absolute, None)
        self.written.add(absolute)
        self.gone.discard(absolute)

    def disown(self, absolute: str) -> None:
        """What stands there is not the program's."""
        with self._lock:
            self._own.discard(absolute)

    def removed(self, absolute: str) -> None:
        with self._lock:
            self._own.take(absolute)
        self.gone.add(absolute)

    def moved(self, old: str, new: str) -> None:
        with self._lock:
            for path, _ in self._own.take(old):
                self._own.put(new + path[len(old) :], None)
            self._own.put(new, None)
        self.written.add(new)
        self.gone.add(old)
        self.gone.discard(new)


class Filesystem:
    """What one run knows of the file system.

    Args:
        session: the run.
    """

    def __init__(self, session: Session) -> None:
        world: Any = getattr(session, "world", {})
        files: Any = world.get("files") if isinstance(world.get("files"), dict) else {}
        recorded = world.get("directory")
        self.places = Places(recorded if isinstance(recorded, str) else "", replaying=session.replaying)
        limit = files.get("limit")
        self.scope = Scope(
            _texts(files.get("include")),
            _texts(files.get("exclude")),
            limit if isinstance(limit, int) else FILE_LIMIT,
            self.places,
        )
        self.own = Own()
        self.shadow = Shadow()


_kept_in: list[str] = []


def keep_in(folder: str) -> None:
    """Let the shadows of this process stand in a folder that somebody else removes, however the process ends."""
    _kept_in.append(folder)


_known: WeakKeyDictionary[Session, Filesystem] = WeakKeyDictionary()


def of(session: Session) -> Filesystem:
    """What this run knows of the file system."""
    known = _known.get(session)
    if known is None:
        known = _known.setdefault(session, Filesystem(session))
    return known


def command_starts(session: Session) -> None:
    """The program is about to run a command, which may write what it likes."""
    known = _known.get(session)
    if known is not None:
        known.own.command_starts()


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed under the program
        return ""


def _below(path: str, folder: str) -> str | None:
    """What a path is called below a folder; None where it is not there."""
    if path == folder:
        return ""
    if folder and path.startswith(folder if folder.endswith(os.sep) else folder + os.sep):
        return path[len(folder) :].lstrip(os.sep)
    return None


def _looks(path: str) -> Looks | None:
    try:
        return looks_of(os.stat(path))
    except OSError:
        return None


def _folders_of_libraries() -> tuple[str, ...]:
    """Folders of this user and this interpreter that libraries keep their own things in."""
    home = os.path.expanduser("~")
    hidden = (
        () if home in ("~", os.sep) else tuple(f"{home}/{name}/" for name in (".cache", ".config", ".local", ".aws"))
    )
    caches = os.environ.get("XDG_CACHE_HOME")
    own = (sys.prefix, sys.base_prefix, *((caches,) if caches else ()))
    return (*hidden, *(folder.rstrip(os.sep) + os.sep for folder in own))


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def _remove(root: str, pid: int) -> None:
    if real.getpid() == pid:  # a forked child leaves it to its parent
        shutil.rmtree(root, ignore_errors=True)
