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
from otel_agent_replay.boundary.callers import AGENT, DISPATCH, OUTSIDE, kind_of
from otel_agent_replay.instrument import _asking, _filesystem
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument._ambient import Patches
    from otel_agent_replay.instrument._filesystem import Filesystem

_BETWEEN = """
_pyio bz2 codecs configparser contextlib csv filecmp fileinput functools genericpath glob gzip io json lzma
mmap os pathlib pathlib._abc pathlib._local pathlib._os posixpath shutil tarfile tempfile tokenize tomllib
weakref zipfile zipfile._path glob._glob
"""
THROUGH: Final = frozenset(_BETWEEN.split())
"""Modules of the standard library that only pass on what they are asked to do with a path."""

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

    def wrote(self) -> None:
        """While recording: the program has written what stands there."""
        own = self.files.own
        if self.within:
            own.lost(self.absolute)
        else:
            own.wrote(self.absolute)

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
        frame = _asking.nearest(_getframe(depth), THROUGH)
    except ValueError:  # called from no frame at all, as the interpreter ends
        frame = None
    kind = OUTSIDE if frame is None else kind_of(frame)
    if kind > DISPATCH:
        if not lane.session.replaying or (frame is not None and _is_ours(frame)):
            return None
        frame = None
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    if not text or "\0" in text:
        return None
    files = _filesystem.of(lane.session)
    if frame is None and not files.shadow.own:
        return None
    absolute = files.places.absolute(text)
    if frame is None:
        return Asked(lane, None, files, absolute, files.places.name(absolute), path) if _kept(files, absolute) else None
    if (agent and kind != AGENT) or not files.scope.holds(absolute, kind):
        if opens and kind == AGENT and files.scope.is_device(absolute):
            note(lane, frame, f"content of {absolute}: it is a device")
        return None
    return Asked(lane, frame, files, absolute, files.places.name(absolute), path)


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


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("otel_agent_replay.")


def _kept(files: Filesystem, absolute: str) -> bool:
    """Whether a replay has this path, or a folder above it, in its shadow because the program made it."""
    own = files.shadow.own
    while absolute not in own:
        above, _, _ = absolute.rpartition(os.sep)
        if not above or above == absolute:
            return False
        absolute = above
    return True


def faithful(act: Callable[[], Any], given: Any, other: Any = None) -> Any:
    """Do something in the shadow; an error names the path that the program knows."""
    try:
        return act()
    except OSError as failed:
        raise error(failed.errno or errno.EIO, failed.strerror, given, other) from None
