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
import weakref
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.callers import LIBRARY

if TYPE_CHECKING:
    from otel_agent_replay.boundary.session import Session

FILE_LIMIT: Final = 16 << 20
"""Bytes of one file that are recorded, unless a setting says otherwise."""

_MOST_JUDGED: Final = 20_000
_SPECIAL: Final = ("/dev/", "/proc/", "/sys/")
_MEMORY: Final = "/dev/shm/"  # noqa: S108 (files as any)
_DEVICES: Final = ("/dev/random", "/dev/urandom", "/dev/hwrng", "/proc/", "/sys/")
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
        if special or below.startswith(_STDLIB) or any(folder in below for folder in _PACKAGES):
            return False
        return not (library and below.startswith((*_OF_THE_SYSTEM, *self._homes)))


_NEVER: Final = (-1,)


@dataclass(slots=True)
class Own:
    """While recording: the paths that the program itself has written, and that nobody can have changed since."""

    _files: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    """By path; what the file looked like when a command was started, None where none was since it was written."""
    _folders: set[str] = field(default_factory=set)

    def wrote(self, path: str) -> None:
        self._files[path] = None

    def lost(self, path: str) -> None:
        """Somebody else has changed what stands there: a command, or code whose call a replay answers as a whole."""
        self._folders.discard(path)
        self._files[path] = _NEVER

    def made(self, path: str) -> None:
        self._folders.add(path)

    def removed(self, path: str) -> None:
        self._files.pop(path, None)
        self._folders.discard(path)

    def moved(self, old: str, new: str) -> None:
        below = old + os.sep
        for known in [path for path in self._files if path == old or path.startswith(below)]:
            self._files[new + known[len(old) :]] = self._files.pop(known)
        for folder in [path for path in self._folders if path == old or path.startswith(below)]:
            self._folders.discard(folder)
            self._folders.add(new + folder[len(old) :])

    def is_own(self, path: str) -> bool:
        """Whether what stands there is what the program has put there."""
        if path in self._folders:
            return True
        if path not in self._files:
            return False
        then = self._files[path]
        return then is None or then == _looks(path)

    def knows(self, path: str) -> bool:
        """Whether the program has put something there, whatever became of it."""
        return path in self._files or path in self._folders

    def missing(self, folder: str, names: set[str]) -> list[str]:
        """What the program has put into a folder and is not there any more."""
        start = folder.rstrip(os.sep) + os.sep
        known = (path[len(start) :] for path in (*self._files, *self._folders) if path.startswith(start))
        return sorted(name for name in known if name not in names and os.sep not in name)

    def command_starts(self) -> None:
        """From now on somebody else may write."""
        for path, then in list(self._files.items()):
            if then is None:
                self._files[path] = _looks(path) or _NEVER


class Shadow:
    """In a replay: what the program has written and what it was answered, in place of the disk."""

    def __init__(self) -> None:
        self._root = ""
        self.own: set[str] = set()
        """Paths that the program itself has written or made."""
        self.gone: set[str] = set()
        """Paths that it has removed."""

    @property
    def root(self) -> str:
        """The folder that stands for the root of the file system."""
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
        return absolute in self.own

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
        self.own.discard(absolute)
        self.gone.discard(absolute)
        return path

    def wrote(self, absolute: str) -> None:
        self.own.add(absolute)
        self.gone.discard(absolute)

    def removed(self, absolute: str) -> None:
        below = absolute + os.sep
        self.own = {path for path in self.own if path != absolute and not path.startswith(below)}
        self.gone.add(absolute)

    def moved(self, old: str, new: str) -> None:
        below = old + os.sep
        moved = {path for path in self.own if path == old or path.startswith(below)}
        self.own -= moved
        self.own |= {new + path[len(old) :] for path in moved} | {new}
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


def _looks(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _folders_of_libraries() -> tuple[str, ...]:
    """Folders of this user and this interpreter that libraries keep their own things in."""
    home = os.path.expanduser("~")
    hidden = (
        () if home in ("~", os.sep) else tuple(f"{home}/{name}/" for name in (".cache", ".config", ".local", ".aws"))
    )
    caches = os.environ.get("XDG_CACHE_HOME")
    return (*hidden, *((caches.rstrip(os.sep) + os.sep,) if caches else ()), sys.prefix.rstrip(os.sep) + os.sep)


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def _remove(root: str, pid: int) -> None:
    if real.getpid() == pid:  # a forked child leaves it to its parent
        shutil.rmtree(root, ignore_errors=True)
