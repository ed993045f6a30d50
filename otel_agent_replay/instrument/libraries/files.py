"""`open` and `os.open`: what the program reads of files, and what it writes.

A file that is opened to be read is a crossing: its outcome is the content as it stood then. In a replay the program
gets a real file, of its recorded content, that stands in the shadow; what it writes goes there too.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
import tempfile
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _paths, _pipes, _typed, _written
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, cross, lane_of
from otel_agent_replay.instrument._paths import Asked, asked
from otel_agent_replay.recording.values import Kind, Returned

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.recording.values import Outcome

KEY: Final = "filesystem:read"

MASKED: Final = b"masked."
"""What the token of a masked value begins with."""

_TMPFILE: Final = getattr(os, "O_TMPFILE", 0)


@dataclass(frozen=True, slots=True)
class _Aim:
    """What a file is opened for."""

    anew: bool
    """Nothing of what stood there is seen."""
    exclusive: bool
    """There may be nothing."""
    writes: bool
    appends: bool
    """Nothing of what stood there is read."""
    nameless: bool = False
    """The path is the directory of a file without a name."""


def _aim(mode: str) -> _Aim:
    writes = bool(frozenset("wxa+") & set(mode))
    return _Aim("w" in mode or "x" in mode, "x" in mode, writes, "a" in mode and "+" not in mode)


def _aim_of_flags(flags: int) -> _Aim:
    writes = bool(flags & os.O_ACCMODE) or bool(flags & os.O_CREAT)
    exclusive = bool(flags & os.O_EXCL) and writes
    nameless = bool(_TMPFILE) and flags & _TMPFILE == _TMPFILE
    anew = nameless or exclusive or (writes and bool(flags & os.O_TRUNC))
    appends = bool(flags & os.O_APPEND) and flags & os.O_ACCMODE == os.O_WRONLY
    return _Aim(anew, exclusive, writes and not nameless, appends, nameless)


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    plain = ModuleType("io")
    vars(plain).update(vars(io))
    replacement = unbindable(_open(io.open), io.open, "io")
    patches.put(io, "open", replacement)
    patches.put(builtins, "open", replacement)
    original = os.open
    patches.put(os, "open", unbindable(_os_open(original), original, "os"))
    _paths.supported(patches, original, os.open)
    # `tempfile` opens by an opener of its own, which is to be called by it and not by us.
    patches.put(tempfile, "_io", plain)
    named = tempfile._TemporaryFileWrapper  # noqa: SLF001 (nothing else has the path and the file)
    patches.put(named, "__init__", _named(named.__init__))
    patches.put(os, "close", unbindable(_close(os.close), os.close, "os"))


_installation = Installation(_put)


def _open(original: Callable[..., Any]) -> Callable[..., Any]:
    def open(
        _: object,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # noqa: FBT001, FBT002 (as the original has it)
        opener: Any = None,
    ) -> Any:
        if _typed.is_stdin(file) and opener is None:
            typed = _typed.opened(file, mode, buffering, encoding, errors, newline, closefd=closefd)
            if typed is not None:
                return typed
        pipe = _pipes.of(file) if _pipes.KNOWN and type(mode) is str else None
        if pipe is not None and lane_of(COMMANDS) is not None and (buffering != 0 or "b" in mode):
            text = {"encoding": encoding, "errors": errors, "newline": newline}
            return _pipes.opened(pipe, mode, buffering, text, closefd=closefd)
        found = asked(file, opens=True) if opener is None else None  # an opener opens by `os.open`
        if found is None or type(mode) is not str:
            made = original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if opener is not None or type(file) is int:
                _written.wrapped(made)
            return made

        def opened(number: Callable[[Any, int], int] | None = None) -> Any:
            return original(file, mode, buffering, encoding, errors, newline, closefd, number)

        aim = _aim(mode)
        if not found.replaying:
            return _record(found, opened, aim)
        where = _serve(found, aim)
        if where is None:
            return opened()
        return _paths.faithful(lambda: opened(lambda _, flags: os.open(where, flags, 0o666)), file)

    return open


def _os_open(original: Callable[..., int]) -> Callable[..., int]:
    def open(_: object, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = asked(path, opens=True) if dir_fd is None else None
        if found is None:
            return original(path, flags, mode, dir_fd=dir_fd)
        aim = _aim_of_flags(flags)
        if not found.replaying:
            number: int = _record(found, lambda: original(path, flags, mode), aim)
            return number
        if aim.nameless:
            _paths.settle(found.tell("write", lambda: "", lambda: ""), path)
            return original(found.files.shadow.folder(found.absolute), flags, mode)
        where = _serve(found, aim)
        made: int
        if where is None:
            made = original(path, flags, mode)
        else:
            made = _paths.faithful(lambda: original(where, flags, mode), path)
        return made

    return open


def _named(original: Callable[..., None]) -> Callable[..., None]:
    """What `NamedTemporaryFile` gives."""

    def __init__(self: Any, file: Any, *args: Any, **named: Any) -> None:  # noqa: N807 (it stands for one)
        _written.wrapped(file)
        original(self, file, *args, **named)

    like(__init__, original, "tempfile")
    return __init__


def _close(original: Callable[[int], None]) -> Callable[..., None]:
    def close(_: object, fd: int) -> None:
        _written.closing(fd)
        original(fd)

    return close


# -- recording ---------------------------------------------------------------------------------------------


def _record(found: Asked, opened: Callable[[], Any], aim: _Aim) -> Any:
    """Open on the disk; keep what stands there, or that it could be written."""
    made: list[Any] = []
    if aim.anew:

        def create() -> str:
            made.append(opened())
            return ""

        _paths.settle(found.tell("write", create, lambda: ""), found.given)
        if aim.writes:
            found.opened(made[0])
        return made[0]

    def perform() -> dict[str, object]:
        own = found.is_own()
        made.append(opened())
        return _content(found, own=own)

    cross(found.lane, _call(found, aim), perform)
    if aim.writes:
        found.opened(made[0])
    return made[0]


def _call(found: Asked, aim: _Aim, otherwise: Callable[[], Outcome | None] | None = None) -> Call:
    told: dict[str, object] = {"path": found.name}
    if aim.writes:
        told["writes"] = True
    return Call(Kind.FILESYSTEM, KEY, told, otherwise=otherwise)


def _content(found: Asked, *, own: bool) -> dict[str, object]:
    """What stands in a file that was just opened, and whether it is the program's own."""
    told: dict[str, object] = {"own": True} if own else {}
    try:
        looks = os.stat(found.absolute)
        if stat.S_ISDIR(looks.st_mode):
            return {**told, "directory": True}
        if not stat.S_ISREG(looks.st_mode):
            _unread(found, "it is no plain file")
            return {**told, "special": True}
        if looks.st_size > found.files.scope.limit:
            if not own:
                _unread(found, f"its {looks.st_size} bytes are more than OTEL_AGENT_REPLAY_FILE_LIMIT")
            return {**told, "large": looks.st_size, "mtime_ns": looks.st_mtime_ns}
        with open(found.absolute, "rb") as file:
            return {**told, "content": file.read()}
    except OSError as error:  # it was opened and cannot be read, or is gone again
        _unread(found, f"it could not be read: {error.strerror}")
        return {**told, "special": True}


def _unread(found: Asked, why: str) -> None:
    _paths.note(found.lane, found.frame, f"content of {found.name}: {why}")


# -- replaying ---------------------------------------------------------------------------------------------


def _serve(found: Asked, aim: _Aim) -> str | None:
    """Where the file stands that is opened instead; None for the disk."""
    shadow = found.files.shadow
    if aim.anew:
        _paths.settle(found.tell("write", lambda: "", lambda: ""), found.given)
        where = shadow.parents(found.absolute)
        if aim.exclusive and os.path.lexists(where) and not shadow.makes(found.absolute):
            os.unlink(where)  # it was not there when this was recorded
    elif found.frame is None:
        where = shadow.parents(found.absolute) if aim.writes else shadow.path(found.absolute)
    else:
        told = cross(found.lane, _call(found, aim, lambda: _unrecorded(found, aim)), _never)
        placed = _place(found, told)
        if placed is None:
            return None
        where = placed
    if aim.writes:
        shadow.wrote(found.absolute)
        _changed(found).pop(found.absolute, None)
    return where


def _unrecorded(found: Asked, aim: _Aim) -> Outcome | None:
    """A file that the recording knows nothing of, but that the program has written in this replay, or only writes."""
    if found.files.shadow.makes(found.absolute):
        return Returned({"own": True})
    return Returned({"content": b""}) if aim.appends else None


def _never() -> object:
    raise AssertionError("a replay has an answer, or diverges")


def _place(found: Asked, told: dict[str, Any]) -> str | None:
    """Let there be, in the shadow, what was recorded. Gives where; None where the disk has it."""
    shadow = found.files.shadow
    if told.get("own"):
        if shadow.has(found.absolute):
            return shadow.path(found.absolute)
        if "directory" not in told:
            raise found.diverge(
                "the program wrote this file itself when it was recorded, and has not now", "Rerun the program."
            )
    if "directory" in told:
        return shadow.folder(found.absolute)
    if "content" in told:
        if found.absolute not in shadow.written and _is_another(found.absolute, told["content"]):
            _changed(found)[found.absolute] = found.name
        return shadow.put(found.absolute, told["content"])
    if "large" in told:
        if _is_same(found.absolute, told):
            return None
        raise found.diverge(
            f"its {told['large']} bytes were not recorded, and it is not what it was",
            "Record again with a larger OTEL_AGENT_REPLAY_FILE_LIMIT, or put the file back.",
        )
    raise found.diverge(
        "it is no plain file, so what was read of it was not recorded", "Put the reading behind `boundary(...)`."
    )


def _changed(found: Asked) -> dict[str, str]:
    changed: dict[str, str] = getattr(found.lane.session, "changed", {})
    return changed


def _is_another(path: str, content: bytes) -> bool:
    """Whether the disk has another file there by now. What was masked in a recording can not be compared."""
    if MASKED in content:
        return False
    try:
        if os.stat(path).st_size != len(content):
            return True
        with open(path, "rb") as file:
            return file.read() != content
    except OSError:
        return False


def _is_same(path: str, told: dict[str, Any]) -> bool:
    try:
        looks = os.stat(path)
    except OSError:
        return False
    return (looks.st_size, looks.st_mtime_ns) == (told["large"], told["mtime_ns"])
