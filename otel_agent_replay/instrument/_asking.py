"""Who asks the world for something: whether a call into the standard library is the program's, and in which lane.

Decided by the nearest code that is none of the modules which only pass a call on (`pathlib` opens a file for
whoever uses it), as for readings of the clock: never by whole stacks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import guard, lanes
from otel_agent_replay.boundary import session as sessions
from otel_agent_replay.boundary.callers import DISPATCH, FARTHEST, KINDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Call

COMMANDS: Final = "process"
"""Of `Session.captured`: commands are crossings of this run."""
FILES: Final = "filesystem"
"""Of `Session.captured`: what is read of files and directories belongs to this run."""
PEOPLE: Final = "human"
"""Of `Session.captured`: what people type belongs to this run."""
MACHINE: Final = "machine"
"""Of `Session.captured`: what the program asks about its process and its machine belongs to this run."""

ENVIRONMENT: Final = "environment"
"""Of `Session.captured`: variables of the environment that the program reads by name belong to this run."""

_HANDED_ON: Final = "otel_agent_replay.instrument.concurrency."
"""Our own code that calls what the program handed to a thread or a pool."""

_getframe = sys._getframe  # noqa: SLF001 (there is no other way to a caller)


def lane_of(captured: str) -> Lane | None:
    """The lane of the running code, where its session captures such calls and nothing answers them as a whole."""
    lane = lanes.here()
    if lane is None:
        lane = lanes.process_root
    if lane is None or lane is lanes.OUTSIDE or lane.beneath is not None:
        return None
    if captured not in getattr(lane.session, "captured", ()) or guard.OPEN.get():
        return None
    return lane


def is_handed_on(module: object) -> bool:
    """Whether it is code of ours that calls what the program handed to a thread or a pool."""
    return str(module).startswith(_HANDED_ON)


def asker(frame: FrameType | None, through: frozenset[str]) -> FrameType | None:
    """The code of the program that asks; None where somebody else does.

    Args:
        frame: who called the patched function.
        through: names of modules that only pass a call on.
    """
    frame = nearest(frame, through)
    return frame if frame is not None and kind_of(frame) <= DISPATCH else None


def nearest(frame: FrameType | None, through: frozenset[str]) -> FrameType | None:
    """The code that asks, whoever that is."""
    for _ in range(FARTHEST):
        if frame is None:
            return None
        kind = KINDS.get(id(frame.f_code))
        if kind is None:
            kind = kind_of(frame)
        if kind <= DISPATCH:
            return frame
        name = frame.f_globals.get("__name__")
        if name not in through and not is_handed_on(name):
            return frame
        frame = frame.f_back
    return None


def asking(captured: str, through: frozenset[str], depth: int = 2) -> tuple[Lane, FrameType] | None:
    """Whose call this is that a patched function got; None where it is to be let through.

    Args:
        captured: what the session has to capture.
        through: names of modules that only pass a call on.
        depth: how many frames above this one the caller of the patched function is.
    """
    lane = lane_of(captured)
    if lane is None:
        return None
    try:
        frame: FrameType | None = _getframe(depth)
    except ValueError:  # called from no frame at all, as the interpreter ends
        return None
    frame = asker(frame, through)
    return None if frame is None else (lane, frame)


def cross(lane: Lane, call: Call, perform: Callable[[], object]) -> Any:
    """Make a crossing whose inside is nobody's: what the standard library does for it is part of it."""
    crossing = lane.session.open(lane, call)
    crossing.lane.beneath = crossing
    return sessions.settle(sessions.run(sessions.cross(crossing), perform))


async def cross_async(lane: Lane, call: Call, perform: Callable[[], Awaitable[object]]) -> Any:
    """The same for a coroutine."""
    crossing = lane.session.open(lane, call)
    crossing.lane.beneath = crossing
    return sessions.settle(await sessions.run_async(sessions.cross(crossing), perform))
