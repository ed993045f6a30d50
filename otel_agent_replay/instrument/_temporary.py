"""Names of temporary files: the recorded one is given again, also where what it named is still there.

Where files are recorded, a replay answers `tempfile` from the recording and touches nothing. Where they are not, a
recorded program that leaves its directory behind would get another name in each replay, because `tempfile` passes
over names that are taken: what is there is used again, if it is this user's and nobody else can have put it there.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from functools import partial
from threading import local
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.callers import caller
from otel_agent_replay.boundary.virtual import NAME_CHARACTERS, NAME_LENGTH
from otel_agent_replay.instrument._ambient import Patches, entropy_reading, like
from otel_agent_replay.instrument._paths import asked

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TEMPFILE: Final = "random:tempfile"

_tempdir_code = tempfile._get_default_tempdir.__code__  # type: ignore[attr-defined]  # noqa: SLF001

_left = local()
"""`path`: where this thread finds, in a replay, what the name that it was just given has named before; else None."""


def put(patches: Patches) -> None:
    """Make the names readings, and have a recorded one be taken in a replay though it exists."""
    names = tempfile._RandomNameSequence  # type: ignore[attr-defined]  # noqa: SLF001
    patches.put(names, "__next__", _name(names.__next__))
    tempfile._os = _System()  # type: ignore[attr-defined]  # noqa: SLF001 (no name of `os` in other modules is this one)
    patches.on_undo(partial(setattr, tempfile, "_os", os))


def _name(original: Callable[[Any], str]) -> Callable[[Any], str]:
    def __next__(self: Any) -> str:  # noqa: N807 (it stands for one)
        _left.path = None
        found, asking = entropy_reading(), caller()
        if found is None or (asking is not None and asking.f_code is _tempdir_code):
            return original(self)
        lane, frame = found
        name = lane.session.read(lane, TEMPFILE, frame, _fresh_name)
        if lane.session.replaying and asking is not None:
            path = _about_to_make(asking, name)
            if path is not None and asked(path) is None:  # else the recording says what came of it
                _left.path = path if _is_safe(path) else None
        return name

    like(__next__, original, "tempfile")
    return __next__


def _fresh_name() -> str:
    number = int.from_bytes(real.urandom(8))
    letters = []
    for _ in range(NAME_LENGTH):
        number, index = divmod(number, len(NAME_CHARACTERS))
        letters.append(NAME_CHARACTERS[index])
    return "".join(letters)


def _about_to_make(asking: FrameType, name: str) -> str | None:
    """The path that `tempfile` is about to make, as far as that can be seen."""
    here = asking.f_locals
    around = (here.get("dir"), here.get("prefix", here.get("pre")), here.get("suffix", here.get("suf")))
    if not all(isinstance(part, str | bytes | os.PathLike) for part in around):
        return None
    folder, before, after = map(os.fsdecode, around)  # type: ignore[arg-type]
    return os.path.join(folder, before + name + after)  # noqa: PTH118 (as `tempfile` makes it)


def _is_safe(path: str) -> bool:
    """Whether something is there that nobody but this user may write to."""
    with suppress(OSError):
        found = os.lstat(path)
        own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
        plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
        return own and plain and not stat.S_IMODE(found.st_mode) & 0o022
    return False


class _System:
    """The module `os` as `tempfile` sees it; another one only for the path of `_left`."""

    def __getattr__(self, name: str) -> Any:
        if getattr(_left, "path", None) is not None and name in _LENIENT:
            return _LENIENT[name]
        return getattr(os, name)


def _is_left(path: Any) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path) == _left.path


def _mkdir(path: Any, mode: int = 0o777) -> None:
    if not _is_left(path) or not os.path.isdir(path):  # noqa: PTH112 (may be bytes)
        os.mkdir(path, mode)  # noqa: PTH102


def _open(path: Any, flags: int, mode: int = 0o777) -> int:
    if _is_left(path) and not os.path.isdir(path):  # noqa: PTH112
        flags = flags & ~os.O_EXCL | os.O_TRUNC
    return os.open(path, flags, mode)


def _lstat(path: Any) -> os.stat_result:
    if _is_left(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return os.lstat(path)


_LENIENT: Final = {"mkdir": _mkdir, "open": _open, "lstat": _lstat}
