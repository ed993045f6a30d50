"""Child processes have a lane. What they do is not ordered with what their parent does."""

from __future__ import annotations

import concurrent.futures.process as cfp
import multiprocessing.process as mpp
import os
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.lanes import LANE, OUTSIDE, Lane, strand
from otel_agent_replay.boundary.order import ordering
from otel_agent_replay.instrument.concurrency.naming import UNLANED, of_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument.concurrency.patching import Patches

_starting: list[tuple[int, Any, Lane]] = []
"""Who starts a child just now: its process id, the process object, its lane. A forked child finds it here."""


def install(patches: Patches) -> None:
    """Patch multiprocessing's processes, and the executor that is made of them."""
    patches.put(mpp.BaseProcess, "start", _start)
    patches.put(mpp.BaseProcess, "_bootstrap", _bootstrap)
    patches.put(cfp.ProcessPoolExecutor, "submit", _submit)
    for name in ("fork", "forkpty"):
        if hasattr(os, name):
            patches.put(os, name, _fork)


def _name(process: Any) -> str:
    target = getattr(process, "_target", None)
    return of_function(target) if target is not None else type(process).run.__qualname__


def _serves(process: Any) -> bool:
    module = getattr(getattr(process, "_target", None), "__module__", None) or ""
    return module.partition(".")[0] in UNLANED


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Any) -> None:
        lane = strand()
        if lane is None or ordering(lane) is None or _serves(self):
            original(self)
            return
        _starting.append((real.getpid(), self, lane.spawn("process", _name(self))))
        try:
            original(self)
        finally:
            _starting.pop()

    return start


def _fork(original: Callable[..., Any]) -> Callable[..., Any]:
    """A child that the program forks by itself goes on in a lane of its own, in the thread that has forked."""

    def fork() -> Any:
        lane = strand()
        if lane is None or ordering(lane) is None or (_starting and _starting[-1][0] == real.getpid()):
            return original()
        own = lane.spawn("process", original.__name__)
        token = LANE.set(OUTSIDE)  # what others do after a fork is nothing that the program does
        try:
            made = original()
        finally:
            LANE.reset(token)
        if (made[0] if isinstance(made, tuple) else made) == 0:
            LANE.set(own)
            if lanes.process_root is not None:
                lanes.set_process_root(own)
        return made

    return fork


def _bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        for parent, process, lane in _starting:
            if process is self and real.getpid() != parent:
                LANE.set(lane)
        return original(self, *args, **kwargs)

    return _bootstrap


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        lane = strand()
        if lane is None or ordering(lane) is None:
            return original(self, fn, *args, **kwargs)
        lane.spawn("process", of_function(fn))
        token = LANE.set(OUTSIDE)  # whether processes are started depends on which are idle
        try:
            return original(self, fn, *args, **kwargs)
        finally:
            LANE.reset(token)

    return submit
