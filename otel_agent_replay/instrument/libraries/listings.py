"""`os.listdir`, `os.scandir`, `os.stat` and what changes directories: what the program sees of the file system.

`pathlib`, `glob`, `os.walk`, `os.path.exists` and `shutil` all come through here. Each answer is a reading. In a replay
what the program itself has made or removed is in the shadow, and what it sees follows that.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import stat as kinds
import tempfile
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary.callers import AGENT, kind_of
from otel_agent_replay.instrument import _filesystem, _paths
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import FILES
from otel_agent_replay.instrument._paths import Asked, Own, asked, missing, settle, settle_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

_TIMES: Final = ("st_atime", "st_mtime", "st_ctime")
_BILLION: Final = 1_000_000_000


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    stat, lstat = os.stat, os.lstat
    made = {
        "stat": _stat(stat),
        "lstat": _lstat(lstat),
        "access": _access(os.access),
        "readlink": _readlink(os.readlink),
        "listdir": _listdir(os.listdir),
        "scandir": _scandir(os.scandir, _stat(stat), _lstat(lstat)),
        "getcwd": _getcwd(os.getcwd),
        "chdir": _chdir(os.chdir),
    }
    for name, replacement in made.items():
        original = getattr(os, name)
        patches.put(os, name, unbindable(replacement, original, "os"))
        _paths.supported(patches, original, getattr(os, name))
    realpath = _realpath(posixpath.realpath)
    like(realpath, posixpath.realpath, "posixpath")
    patches.put(posixpath, "realpath", realpath)
    folder = _gettempdir(tempfile._gettempdir)  # type: ignore[attr-defined]  # noqa: SLF001 (all others ask it)
    like(folder, tempfile._gettempdir, "tempfile")  # type: ignore[attr-defined]  # noqa: SLF001
    patches.put(tempfile, "_gettempdir", folder)


_installation = Installation(_put)


def _exists(path: str) -> bool:
    return os.path.lexists(path)


# -- what stands at a path ---------------------------------------------------------------------------------


def _stat(original: Callable[..., Any]) -> Callable[..., Any]:
    def stat(_: object, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        found = asked(path) if dir_fd is None else None
        if found is None:
            return original(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return _looked(found, "stat" if follow_symlinks else "lstat", original, follow=follow_symlinks)

    return stat


def _lstat(original: Callable[..., Any]) -> Callable[..., Any]:
    def lstat(_: object, path: Any, *, dir_fd: int | None = None) -> Any:
        found = asked(path) if dir_fd is None else None
        if found is None:
            return original(path, dir_fd=dir_fd)
        return _looked(found, "lstat", original, follow=False)

    return lstat


def _looked(found: Asked, what: str, original: Callable[..., Any], *, follow: bool) -> Any:
    """A stat result: as recorded, but for what the program itself has made or taken away since."""
    kept: list[Any] = []

    def at(path: str) -> list[int]:
        looks = original(path) if original.__name__ == "lstat" else original(path, follow_symlinks=follow)
        kept[:] = [looks]
        return _fields(looks)

    def look() -> Any:
        try:
            fields = at(found.given)
        except FileNotFoundError as error:
            if found.files.own.knows(found.absolute):  # somebody else has taken it away
                return Own(e=[error.errno, error.strerror], own=True)
            raise
        return Own(v=fields, own=True) if found.is_own() else fields

    told = found.tell(what, look, lambda: at(_elsewhere(found)))
    if not found.replaying:
        if kept:
            return kept[0]
        return settle(told, found.given)
    shadow = found.files.shadow
    if "own" in told and "e" in told:
        shadow.removed(found.absolute)
        raise settle_error(told, found.given)
    if shadow.makes(found.absolute) and ("own" in told or told.get("e", [0])[0] == errno.ENOENT):
        now = _fields(original(shadow.path(found.absolute)))
        if "v" in told:
            now = [*told["v"]]
            now[6] = original(shadow.path(found.absolute)).st_size
        return _result(now)
    if "own" in told and not shadow.has(found.absolute):
        raise missing(found.given)
    return _result(settle(told, found.given))


def _elsewhere(found: Asked) -> str:
    """Where a replay looks for what was not recorded: the shadow, else the disk. Raises FileNotFoundError."""
    shadow = found.files.shadow
    if shadow.has(found.absolute):
        return shadow.path(found.absolute)
    if found.absolute in shadow.gone:
        raise missing(found.given)
    return found.absolute


def _fields(looks: Any) -> list[int]:
    """The ten numbers of a stat result, with times in nanoseconds, then blocks."""
    return [
        *(looks[index] for index in range(7)),
        *(getattr(looks, f"{name}_ns") for name in _TIMES),
        getattr(looks, "st_blksize", 0),
        getattr(looks, "st_blocks", 0),
    ]


def _result(fields: list[int]) -> os.stat_result:
    times = fields[7:10]
    more: dict[str, Any] = dict(zip((f"{name}_ns" for name in _TIMES), times, strict=True))
    for name, ns in zip(_TIMES, times, strict=True):
        more[name] = ns // _BILLION + 1e-9 * (ns % _BILLION)  # as the system's own is made
    more["st_blksize"], more["st_blocks"] = fields[10], fields[11]
    return os.stat_result((*fields[:7], *(ns // _BILLION for ns in times)), more)


def _access(original: Callable[..., bool]) -> Callable[..., bool]:
    def access(_: object, path: Any, mode: int, **options: Any) -> bool:
        found = asked(path) if not options else None
        if found is None:
            return original(path, mode, **options)
        told = found.tell(f"access:{mode}", lambda: original(path, mode), lambda: original(_elsewhere(found), mode))
        if found.replaying and found.files.shadow.makes(found.absolute):
            return True
        return bool(told.get("v"))

    return access


def _readlink(original: Callable[..., Any]) -> Callable[..., Any]:
    def readlink(_: object, path: Any, *, dir_fd: int | None = None) -> Any:
        found = asked(path) if dir_fd is None else None
        if found is None:
            return original(path, dir_fd=dir_fd)
        told = found.tell(
            "readlink", lambda: os.fsdecode(original(path)), lambda: os.fsdecode(original(_elsewhere(found)))
        )
        text = settle(told, path)
        return os.fsencode(text) if isinstance(path, bytes) else text

    return readlink


def _realpath(original: Callable[..., Any]) -> Callable[..., Any]:
    def realpath(filename: Any, **options: Any) -> Any:
        found = asked(filename)
        if found is None or _is_code(found):
            return original(filename, **options)
        places = found.files.places
        told = found.tell(
            "realpath",
            lambda: places.name(os.fsdecode(original(filename, **options))),
            lambda: places.name(
                found.absolute if _exists_only_here(found) else os.fsdecode(original(filename, **options))
            ),
        )
        text = places.shown(places.absolute(settle(told, filename)))
        return os.fsencode(text) if isinstance(found.given, bytes) else text

    return realpath


def _is_code(found: Asked) -> bool:
    """Whether code asks where it stands itself, as ``Path(__file__).resolve()`` does."""
    file = None if found.frame is None else found.frame.f_globals.get("__file__")
    return isinstance(file, str) and found.absolute == found.files.places.absolute(file)


def _exists_only_here(found: Asked) -> bool:
    return found.files.shadow.has(found.absolute)


# -- what stands in a directory ----------------------------------------------------------------------------


def _listdir(original: Callable[..., Any]) -> Callable[..., Any]:
    def listdir(_: object, path: Any = None) -> Any:
        found = asked("." if path is None else path)
        if found is None:
            return original(path)
        names = [name for name, *_ in _listed(found, "listdir", lambda where: [[one] for one in original(where)])]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return listdir


def _listed(found: Asked, what: str, entries: Callable[[str], list[list[Any]]]) -> list[list[Any]]:
    """What stands in a directory: entries that begin with their name, in the order of the recording."""

    def look() -> Any:
        listed = entries(os.fsdecode(found.given))
        own = [name for name, *_ in listed if found.files.own.is_own(posixpath.join(found.absolute, name))]
        lost = found.files.own.missing(found.absolute, {name for name, *_ in listed})
        return Own(v=listed, own=own, lost=lost) if own or lost else listed

    def known() -> Any:
        listed: list[list[Any]] = []
        if found.absolute not in found.files.shadow.gone and os.path.isdir(found.absolute):
            listed = entries(found.absolute)
        elif not found.files.shadow.has(found.absolute):
            raise missing(found.given)
        return listed

    told = found.tell(what, look, known)
    shadow = found.files.shadow
    if not found.replaying:
        listed: list[list[Any]] = settle(told, found.given)
        return listed
    if "e" in told and shadow.makes(found.absolute):
        told = {"v": []}
    for name in told.get("lost", ()):
        shadow.removed(posixpath.join(found.absolute, name))
    own = set(told.get("own", ()))
    listed = [
        entry
        for entry in settle(told, found.given)
        if entry[0] not in own or shadow.has(posixpath.join(found.absolute, entry[0]))
    ]
    if shadow.has(found.absolute):
        names = {entry[0] for entry in listed}
        made = entries(shadow.path(found.absolute))
        listed += [
            entry for entry in made if entry[0] not in names and shadow.makes(posixpath.join(found.absolute, entry[0]))
        ]
    return listed


class Entry:
    """An entry of a directory, as `os.DirEntry` is."""

    __slots__ = ("_inode", "_is_dir", "_is_file", "_is_link", "_lstat", "_stat", "name", "path")

    def __init__(self, path: Any, entry: list[Any], stat: Callable[..., Any], lstat: Callable[..., Any]) -> None:
        name, kind, self._inode = entry
        self.name = os.fsencode(name) if isinstance(path, bytes) else name
        self.path = os.path.join(path, self.name)
        self._is_link: bool = kind.startswith("l")
        self._is_dir: bool = kind.endswith("d")
        self._is_file: bool = kind.endswith("f")
        self._stat, self._lstat = stat, lstat

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory, or a link to one."""
        return self._is_dir and (follow_symlinks or not self._is_link)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a plain file, or a link to one."""
        return self._is_file and (follow_symlinks or not self._is_link)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self._is_link

    def is_junction(self) -> bool:
        """Whether it is a junction, which only Windows has."""
        return False

    def inode(self) -> int:
        """Its inode."""
        return int(self._inode)

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        """What `os.stat` says of it."""
        return self._stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Scan:
    """What `os.scandir` gives."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing more comes."""
        self._entries = iter(())


def _scandir(original: Callable[..., Any], stat: Callable[..., Any], lstat: Callable[..., Any]) -> Callable[..., Any]:
    def entries(path: str) -> list[list[Any]]:
        with original(path) as scan:
            return [[os.fsdecode(entry.name), _kind(entry), entry.inode()] for entry in scan]

    def of_entry(path: Any, *, follow_symlinks: bool = True) -> Any:
        found = asked(path, 3)
        if found is None:
            return os.stat(path, follow_symlinks=follow_symlinks)
        return _looked(found, "stat" if follow_symlinks else "lstat", _plain_stat, follow=follow_symlinks)

    def scandir(_: object, path: Any = None) -> Any:
        given = "." if path is None else path
        found = asked(given)
        if found is None:
            return original(path)
        listed = _listed(found, "scandir", entries)
        return Scan(iter([Entry(os.fspath(given), entry, of_entry, of_entry) for entry in listed]))

    return scandir


_plain_stat: Final = os.stat


def _kind(entry: Any) -> str:
    link = "l" if entry.is_symlink() else ""
    try:
        if entry.is_dir():
            return link + "d"
        return link + ("f" if entry.is_file() else "o")
    except OSError:
        return link + "o"


# -- where the program stands ------------------------------------------------------------------------------


def _getcwd(original: Callable[[], str]) -> Callable[..., str]:
    def getcwd(_: object) -> str:
        found = asked(".")
        if found is None:
            return original()
        places = found.files.places
        if found.frame is None or kind_of(found.frame) != AGENT:  # a library makes absolute paths of its own
            return places.shown(places.cwd) if found.replaying and places.cwd != places.start else original()
        told = found.tell("getcwd", lambda: original(), lambda: places.shown(places.cwd))
        return str(settle(told))

    return getcwd


def _chdir(original: Callable[..., None]) -> Callable[..., None]:
    def chdir(_: object, path: Any) -> None:
        found = asked(path)
        if found is None:
            original(path)
            return

        def known() -> None:
            if not kinds.S_ISDIR(os.stat(_elsewhere(found)).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

        settle(found.tell("chdir", lambda: original(path), known), path)
        if found.replaying:
            found.files.places.cwd = found.absolute  # the process stays where it is

    return chdir


def _gettempdir(original: Callable[[], Any]) -> Callable[[], Any]:
    """The folder of temporary files, where the program has not set one. `tempfile` finds it once in a process."""
    found_by_itself: list[Any] = []

    def _gettempdir() -> Any:
        set_by_program = tempfile.tempdir is not None and tempfile.tempdir not in found_by_itself
        found = None if set_by_program else _paths.asking(FILES)
        folder = original() if found is None or not found[0].session.replaying else None
        if not set_by_program and folder is not None:
            found_by_itself[:] = [folder]
        if found is None:
            return folder
        lane, frame, kind = found
        told = json.loads(
            lane.session.read(lane, "filesystem:tempdir", frame, lambda: json.dumps(folder or original()))
        )
        scope = _filesystem.of(lane.session).scope
        return told if folder is not None or scope.holds(told, kind) else original()

    return _gettempdir
