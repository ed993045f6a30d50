"""Child processes have a lane. What they do is not ordered with what their parent does.

Of a `ProcessPoolExecutor` each item has a lane, which travels to the worker with what it calls; so it does not matter
which worker takes it; so it is with `multiprocessing.Pool` (`process_pools`). Processes that are not forked are runs of
their own.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import concurrent.futures.process as cfp
import multiprocessing
import multiprocessing.pool as mpool
import multiprocessing.process as mpp
import os
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.lanes import LANE, OUTSIDE, Lane, strand
from otel_agent_replay.boundary.order import ordering
from otel_agent_replay.instrument.concurrency.naming import UNLANED, of_function
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument.concurrency.patching import Patches

_FORK: Final = "fork"

_submitting = threading.local()
"""`lane`: who submits to a `ProcessPoolExecutor` in this thread, where its workers are forked."""

_starting: list[tuple[int, Any, Lane]] = []
"""Who starts a child just now: its process id, the process object, its lane. A forked child finds it here."""

_own: list[Lane] = []
"""The lane of this process, where it is a forked child."""


def install(patches: Patches) -> None:
    """Patch multiprocessing's processes, and the executor that is made of them."""
    patches.put(mpp.BaseProcess, "start", _start)
    patches.put(mpp.BaseProcess, "_bootstrap", _bootstrap)
    patches.put(cfp.ProcessPoolExecutor, "submit", _submit)
    for name in ("send", "send_bytes"):
        patches.put(Connection, name, _told)
    patches.put(os, "_exit", _exit)
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
        if lane is None:
            lane = _lane_of_worker(getattr(self, "_target", None))
        elif lane is not None and _serves(self):
            lane = None
        if lane is None or ordering(lane) is None:
            original(self)
            return
        if not forks(self):
            apart(lane)
        _starting.append((real.getpid(), self, lane.spawn("process", _name(self))))
        try:
            original(self)
        finally:
            _starting.pop()

    return start


def _lane_of_worker(target: object) -> Lane | None:
    """In what lane a thread of a pool starts a worker. What the worker is given has lanes of its own."""
    if target is cfp._process_worker:
        return getattr(_submitting, "lane", None)
    return lanes.process_root if target is vars(mpool)["worker"] else None  # in the place of one that has done enough


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
            _begin(own)
            if lanes.process_root is not None:
                lanes.set_process_root(own)
        return made

    return fork


def _bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        for parent, process, lane in _starting:
            if process is self and real.getpid() != parent:
                _begin(lane)
        return original(self, *args, **kwargs)

    return _bootstrap


def _begin(lane: Lane) -> None:
    """This is a forked child, and this its lane."""
    LANE.set(lane)
    _own[:] = [lane]
    begin_again = getattr(lane.session, "begin_again", None)
    if begin_again is not None:
        begin_again()


def _told(original: Callable[..., Any]) -> Callable[..., Any]:
    """A child that tells others something may be ended as soon as they know it."""

    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        _write()
        return original(self, *args, **kwargs)

    return send


def _exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def _exit(status: int) -> None:
        _write()
        original(status)

    return _exit


def _write() -> None:
    """What a forked child has read is written: nobody does that when it ends."""
    if _own:
        flush = getattr(_own[0].session, "flush", None)
        if flush is not None:
            flush()


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        lane = strand()
        if lane is None or ordering(lane) is None:
            return original(self, fn, *args, **kwargs)
        item = lane.spawn("process", of_function(fn))
        forked = forks(getattr(self, "_mp_context", None))
        if forked:
            fn = Item(item, fn)
        else:
            apart(lane)
        token = LANE.set(OUTSIDE)  # whether processes are started depends on which are idle
        _submitting.lane = lane if forked else None
        try:
            return original(self, fn, *args, **kwargs)
        finally:
            LANE.reset(token)
            _submitting.lane = None

    return submit


class Item:
    """What is submitted, on its way to a worker: there it is `function` itself, and the worker is in its lane."""

    def __init__(self, lane: Lane, function: Any) -> None:
        self._lane = lane
        self._function = function

    def lane(self) -> Lane:
        """The lane in which the worker calls what is sent now."""
        return self._lane

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        places: list[tuple[str, str, int]] = []
        lane = self.lane()
        while lane.parent is not None:
            places.append((lane.how, lane.name, lane.number))
            lane = lane.parent
        return _arrived, (_run_of(lane), places, self._function)


def _arrived(run: str, places: list[tuple[str, str, int]], function: Any) -> Any:
    """A worker takes an item: from now on it is in the lane of it, where it was forked by the same run."""
    if _own:
        lane = _own[0].session.root  # type: ignore[attr-defined]
        if _run_of(lane) == run:
            for how, name, number in reversed(places):
                lane = Lane(lane.session, lane, how, name, number)
            LANE.set(lane)
        else:
            LANE.set(OUTSIDE)
    return function


def _run_of(lane: Lane) -> str:
    session: Any = lane.session
    recorded = getattr(session, "recording", session)
    run = getattr(recorded, "run", None)
    return "" if run is None else str(run.run_id)


def forks(context: Any) -> bool:
    """Whether processes are forked there: by a context of multiprocessing, or as it is set."""
    method = getattr(context, "_start_method", None)
    if method is None and context is not None and hasattr(context, "get_start_method"):
        method = context.get_start_method()
    return str(method or multiprocessing.get_start_method()) == _FORK


def apart(lane: Lane) -> None:
    """A child that is not forked is no part of this run."""
    lane.session.note(Note(NoteKind.UNCAPTURED, _APART))


_APART: Final = (
    "what processes of multiprocessing do that are not forked: each is recorded as a run of its own, and runs in a "
    "replay of this one too"
)
