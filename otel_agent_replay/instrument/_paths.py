"""A path that the program hands to the file system: whose call it is, what the path is called, what is told of it.

What is asked of a path is a reading, packed like those of the clock, whose source names the path. Its value is the JSON
of an object: ``v`` what came back, or ``e`` the number and the text of the error; ``own`` where the program itself has
made what stands there.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import guard
from otel_agent_replay.boundary.callers import (
    AGENT,
    BASE,
    DISPATCH,
    FARTHEST,
    KINDS,
    LIBRARY,
    OUTSIDE,
    SEEN_THROUGH,
    STDLIB,
    TRANSPORT,
    kind_of,
)
from otel_agent_replay.instrument import _asking, _filesystem, _written
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument._ambient import Patches
    from otel_agent_replay.instrument._filesystem import Filesystem

_FOR_ITSELF = """
__future__ _distutils_hack _osx_support _pyrepl _sitebuiltins asyncio bdb cmd code codeop compileall ctypes doctest
encodings ensurepip idlelib importlib inspect linecache modulefinder multiprocessing netrc pdb pkgutil platform
py_compile pyclbr pydoc runpy site ssl sysconfig tkinter trace traceback unittest venv warnings webbrowser zipimport
zoneinfo
"""
_THE_INTERPRETERS: Final = frozenset(_FOR_ITSELF.split())
"""Modules of the standard library, with all below them, that read files for themselves or for the interpreter: code to
import or to show, what is installed, rules of time zones, certificates, libraries to load, who logs in where; and what
a program runs upon, whose sockets and queues a replay needs as much as anybody. Every other one opens what the program
names."""
_FOR_OTHERS: Final = frozenset({"importlib.resources", "multiprocessing.pool", "multiprocessing.dummy"})
"""Of those: these open what the program names, or take it from an iterator that does."""
_WITH_OWN_FILES: Final = frozenset({"gettext", "mimetypes"})
"""These look for files of the system by themselves: as a library does."""
_LOGGING: Final = "logging"
"""A handler's file is the program's, whoever logs."""
_OURS: Final = "otel_agent_replay."
_HANDED_ON: Final = ("otel_agent_replay.instrument.concurrency.", "otel_agent_replay.instrument.libraries.people")
"""Our own code that calls what the program handed to a thread or a pool, or that reads a line for it."""
_PROBE: Final = "_get_default_tempdir"
"""Where `tempfile` tries once in a process which folder is good, whoever needs one first."""

_getframe = sys._getframe  # noqa: SLF001 (there is no other way to a caller)


@dataclass(slots=True)
class Asked:
    """A call with a path that belongs to a run."""

    lane: Lane
    frame: FrameType | None
    """The code that asks; None for somebody else, where a replay keeps the path from the disk all the same."""
    files: Filesystem
    absolute: str
    name: str
    """What the path is called in the recording."""
    given: Any
    """The path as it was given."""

    @property
    def replaying(self) -> bool:
        return self.lane.session.replaying

    def tell(self, what: str, look: Callable[[], Any], known: Callable[[], Any]) -> dict[str, Any]:
        """A reading of this path.

        Args:
            what: what is asked.
            look: asks the disk, while recording.
            known: in a replay, what the run knows by itself, for a call that was not recorded.
        """
        if self.frame is None:
            return _told(known)
        real: Callable[[], str] = lambda: json.dumps(_told(known if self.replaying else look))  # noqa: E731
        told: dict[str, Any] = json.loads(
            self.lane.session.read(self.lane, f"filesystem:{what}:{self.name}", self.frame, real)
        )
        return told

    @property
    def within(self) -> bool:
        """Whether the code is inside a call that a replay answers as a whole, so that it will not do this again."""
        return guard.inside(self.lane)

    def opened(self, file: Any) -> None:
        """While recording: the program has opened what stands there to write, as a file object or a descriptor."""
        own = self.files.own
        if self.within:
            own.lost(self.absolute)
        else:
            _written.follow(file, own, own.opened(self.absolute))

    def is_own(self) -> bool:
        """While recording: whether the program has put there what stands there."""
        return self.files.own.is_own(self.absolute)

    def diverge(self, why: str, remedy: str) -> BaseException:
        """The replay cannot serve this path."""
        session: Any = self.lane.session
        divergence = Divergence(DivergenceClass.INCOMPLETE, None, None, f"{self.name}: {why}", remedy=remedy)
        found: BaseException = session.diverge(divergence)
        return found


class Own(dict[str, Any]):
    """What was told of a path with what the program itself had made there; as a value of `tell`'s `look`."""


def _told(look: Callable[[], Any]) -> dict[str, Any]:
    try:
        found = look()
    except OSError as error:
        return {"e": [error.errno, error.strerror]}
    return dict(found) if isinstance(found, Own) else {"v": found}


def settle(told: dict[str, Any], *given: Any) -> Any:
    """The value that was told. Raises the OSError that was, for the paths as they were given."""
    failed = told.get("e")
    if failed is None:
        return told.get("v")
    raise error(failed[0], failed[1], *given)


def settle_error(told: dict[str, Any], *given: Any) -> OSError:
    """The error that was told."""
    number, text = told["e"]
    return error(number, text, *given)


def error(number: int, text: str | None, given: Any = None, other: Any = None) -> OSError:
    """An OSError as the system raises it."""
    if other is not None:
        return OSError(number, text, given, None, other)
    return OSError(number, text, given) if given is not None else OSError(number, text)


def missing(given: Any) -> OSError:
    """There is nothing at this path."""
    return error(errno.ENOENT, os.strerror(errno.ENOENT), given)


def asked(path: Any, depth: int = 2, *, agent: bool = False, opens: bool = False) -> Asked | None:
    """Whose path it is that a patched function was given; None where the call is to be let through.

    Args:
        path: the path; a descriptor belongs to nobody.
        depth: how many frames above this one the caller of the patched function is.
        agent: only the agent's own code counts, no library's.
        opens: a file is opened: what is let through of the agent's own is noted where it is not of this world.
    """
    lane = _asking.lane_of(_asking.FILES)
    if lane is None or isinstance(path, int):
        return None
    try:
        frame, kind = _asker(_getframe(depth))
    except ValueError:  # called from no frame at all, as the interpreter ends
        frame, kind = None, OUTSIDE
    replaying = lane.session.replaying
    if kind > DISPATCH:
        if not replaying or kind == _NOBODYS:
            return None
        frame = None
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    if not text or "\0" in text:
        return None
    files = _filesystem.of(lane.session)
    absolute = files.places.absolute(text)
    if frame is not None and ((agent and kind != AGENT) or not files.scope.holds(absolute, kind)):
        if opens and kind == AGENT and files.scope.is_device(absolute):
            note(lane, frame, f"content of {absolute}: it is a device")
        frame = None
    if frame is None and not (
        replaying and (kind == _LOGGED or files.shadow.keeps(absolute)) and files.scope.holds(absolute, AGENT)
    ):
        return None
    return Asked(lane, frame, files, absolute, files.places.name(absolute), path)


def asking(captured: str, depth: int = 2) -> tuple[Lane, FrameType, int] | None:
    """Whose call this is that a patched function got: lane, code, kind of code; None where it is to be let through.

    Args:
        captured: what the session has to capture.
        depth: how many frames above this one the caller of the patched function is.
    """
    lane = _asking.lane_of(captured)
    if lane is None:
        return None
    try:
        frame, kind = _asker(_getframe(depth))
    except ValueError:
        return None
    return None if frame is None or kind > DISPATCH else (lane, frame, kind)


_LOGGED: Final = OUTSIDE + 100
"""Somebody outside logs to a file of the program."""
_NOBODYS: Final = OUTSIDE + 101
"""Our own code, which knows the disk from the shadow."""


def _asker(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The code that asks, whoever that is, and which kind it is (`boundary.callers`)."""
    name, own_files = "", False
    for _ in range(FARTHEST):
        if frame is None:
            break
        kind = KINDS.get(id(frame.f_code))
        if kind is None:
            kind = kind_of(frame)
        inner, name = name, frame.f_globals.get("__name__") or ""
        if kind <= DISPATCH or not _passes(name, kind) or frame.f_code.co_name == _PROBE:
            if inner.partition(".")[0] == _LOGGING:
                return frame, AGENT if kind <= TRANSPORT else _LOGGED
            if own_files and kind == AGENT:
                kind = LIBRARY
            return frame, _NOBODYS if kind > DISPATCH and name.startswith(_OURS) else kind
        own_files = own_files or name in _WITH_OWN_FILES
        frame = frame.f_back
    return None, OUTSIDE


def _passes(name: str, kind: int) -> bool:
    """Whether code of a module passes on what it is asked to do with a path."""
    if kind not in (SEEN_THROUGH, STDLIB, BASE):
        return False
    passes = _passing.get(name)
    if passes is None:
        if name.startswith(_OURS):
            passes = name.startswith(_HANDED_ON)
        else:
            passes = name.partition(".")[0] not in _THE_INTERPRETERS or any(
                name == other or name.startswith(other + ".") for other in _FOR_OTHERS
            )
        _passing[name] = passes
    return passes


_passing: dict[str, bool] = {}


def supported(patches: Patches, original: Any, replacement: Any) -> None:
    """Let `os` say of the replacement what it says of the original: which arguments it takes."""
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in known:
            known.add(replacement)
            patches.on_undo(partial(known.discard, replacement))


def note(lane: Lane, frame: FrameType | None, what: str) -> None:
    """Add to the capture manifest what is read there and not recorded."""
    where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    lane.session.note(Note(NoteKind.UNCAPTURED, what, where))


def faithful(act: Callable[[], Any], given: Any, other: Any = None) -> Any:
    """Do something in the shadow; an error names the path that the program knows."""
    try:
        return act()
    except OSError as failed:
        raise error(failed.errno or errno.EIO, failed.strerror, given, other) from None
