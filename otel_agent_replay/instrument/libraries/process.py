"""The process: its id, as the program's own code reads it.

Libraries keep the real one, which they compare to find out that the process was forked. A program that acts
upon the process id that it was given in a replay acts upon its own process, not upon whoever has that id now.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.callers import AGENT, DISPATCH, caller, kind_of
from otel_agent_replay.boundary.order import comes_anyway
from otel_agent_replay.instrument import _children
from otel_agent_replay.instrument._ambient import Installation, Patches, clock_reading, unbindable

if TYPE_CHECKING:
    from collections.abc import Callable

GETPID: Final = "process:getpid"

_ACTING: Final = ("kill", "getpgid", "getsid", "sched_getaffinity", "sched_setaffinity")
"""Functions of `os` whose first argument is a process."""

_ANY: Final = -1
"""Stands for every process, where one is to be killed."""

_recorded: set[int] = set()
"""Ids of a recorded process that a program was given in place of its own."""


def install() -> Callable[[], None]:
    """Patch the process id. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    original = os.getpid

    def getpid(_: object) -> int:
        found = clock_reading()
        if found is None or kind_of(found[1]) != AGENT:
            return original()
        lane, frame = found
        given = lane.session.read(lane, GETPID, frame, original)
        if lane.session.replaying and given != original():
            _recorded.add(given)
        return given

    patches.put(os, "getpid", unbindable(getpid, original, "os"))
    for name in _ACTING:
        if hasattr(os, name):
            patches.put(os, name, unbindable(_acting(name, getattr(os, name)), getattr(os, name), "os"))
    if not _hooked:
        _hooked.append(True)
        wrapt.register_post_import_hook(_patch_psutil, "psutil")


_installation = Installation(_put)
_hooked: list[bool] = []


def _patch_psutil(module: Any) -> None:
    """Let ``psutil.Process(os.getpid())`` be this process. It stays: outside a replay it only passes calls on."""
    original = module.Process.__init__

    @wraps(original)
    def __init__(self: Any, pid: int | None = None) -> None:  # noqa: N807 (it stands for one)
        original(self, real.getpid() if pid in _recorded and lanes.current() is not None else pid)

    module.Process.__init__ = __init__


def _acting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def act(_: object, pid: int, *rest: Any, **named: Any) -> Any:
        child = _children.of(pid)
        if child is None and name == "kill" and type(pid) is int and pid < _ANY:
            child = _children.of(-pid, group=True)  # all of a group
        if child is not None and not name.startswith("sched"):
            return _children.do(child, name, lambda: original(pid, *rest, **named))
        if pid in _recorded and lanes.current() is not None:
            frame = caller()
            if frame is not None and kind_of(frame) <= DISPATCH:
                pid = real.getpid()
        if name == "kill" and pid == real.getpid() and comes_anyway(*rest[:1]):
            return None
        return original(pid, *rest, **named)

    return wraps(original)(act)
