"""``--stop-at``: break into the debugger where the program is about to make a certain crossing."""

from __future__ import annotations

import bdb
import pdb
import re
import sys
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import callers
from otel_agent_replay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.recording.divergence import Position

_POSITION = re.compile(r"(?:(?P<lane>\S+) )?(?P<key>.+)#(?P<ordinal>\d+)\Z")

GOES_ON = -1
"""Line that `bdb` stops at after `continue`: none."""

_OURS = ("otel_agent_replay", "wrapt")


def at(text: str) -> Callable[[Position], None]:
    """What is told of each crossing, and stops at the one that `text` names: ``[LANE ]KEY#N``.

    Raises:
        UsageError: `text` is no position.
    """
    match = _POSITION.match(text)
    if match is None:
        raise UsageError(
            f"--stop-at {text!r} is no position; write KEY#N or 'LANE KEY#N', as `agent-replay show` prints them."
        )
    lane, key, ordinal = match["lane"], match["key"].strip(), int(match["ordinal"])
    stopped: list[Position] = []

    def reached(position: Position) -> None:
        if stopped or position.key != key or position.ordinal != ordinal or lane not in (None, position.lane):
            return
        stopped.append(position)
        sys.stderr.write(f"agent-replay: stopped at {position}\n")
        _stop(_program())

    return reached


def _program() -> FrameType:
    """The innermost frame of the agent's own code.

    Where there is none, because a pool calls the boundary itself: the innermost that is not ours.
    """
    found = None
    for frame in callers.frames(callers.caller(2)):
        if callers.kind_of(frame) == callers.AGENT:
            return frame
        if found is None and str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            found = frame
    assert found is not None  # something that is not ours has called us
    return found


def _stop(frame: FrameType) -> None:
    """Hand over to the debugger that is attached, else to pdb, at a prompt in this very frame."""
    if "debugpy" in sys.modules and sys.modules["debugpy"].is_client_connected():
        sys.modules["debugpy"].breakpoint()
        return
    debugger = pdb.Pdb(skip=[f"{name}.*" for name in _OURS])
    debugger.reset()
    outer: FrameType | None = frame
    while outer is not None:
        outer.f_trace = debugger.trace_dispatch
        debugger.botframe, outer = outer, outer.f_back
    debugger.interaction(frame, None)
    if debugger.quitting:
        raise bdb.BdbQuit
    if debugger.stoplineno != GOES_ON or debugger.breaks:
        sys.settrace(debugger.trace_dispatch)  # `next` and `step` go on from here
