"""asyncio tasks are lanes; event loops are told of threads that call into them, and when they run."""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import ref

from otel_agent_replay.boundary.lanes import LANE, strand
from otel_agent_replay.boundary.loops import watch_of
from otel_agent_replay.boundary.order import CALL, Delivery, ordering
from otel_agent_replay.boundary.stuck import TASKS
from otel_agent_replay.instrument.concurrency.naming import of_coroutine
from otel_agent_replay.instrument.concurrency.ordered import OrderedSet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextvars import Context
    from types import CodeType, FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument.concurrency.patching import Patches

_HOLDER: ContextVar[tuple[int, ref[asyncio.Future[Any]]] | None] = ContextVar("otel_agent_replay_holder", default=None)
"""In a context that was given explicitly: its id, for a copy of it is another one, and the task that has its
lane there."""


def install(patches: Patches) -> None:
    """Patch the loops that derive from asyncio's own, and uvloop's where it is loaded."""
    loop = asyncio.BaseEventLoop
    patches.put(loop, "create_task", _create_task)
    patches.put(loop, "run_forever", _run_forever)
    patches.put(loop, "call_soon_threadsafe", _call_soon_threadsafe)
    patches.put(asyncio.TaskGroup, "__init__", _task_group)


def install_uvloop(patches: Patches) -> None:
    """uvloop: its tasks are lanes."""
    loop = sys.modules["uvloop"].Loop
    patches.put(loop, "create_task", _create_task)
    patches.put(loop, "run_forever", _run_forever)
    patches.put(loop, "call_soon_threadsafe", _call_soon_threadsafe)


def _create_task(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_task(self: Any, coro: Any, **options: Any) -> Any:
        parent = strand()
        gate = ordering(parent)
        if parent is None or gate is None:
            return original(self, coro, **options)
        lane = parent.spawn("task", of_coroutine(coro))
        top = asyncio._get_running_loop() is None
        gate.spawned(top=top)  # an eager task runs before it is there
        try:
            task = _created(original, self, coro, options, lane)
        except BaseException:
            gate.ended(top=top)
            raise
        _follow(gate, self, task, lane, top=top)
        return task

    return create_task


def _created(original: Callable[..., Any], loop: Any, coro: Any, options: dict[str, Any], lane: Lane) -> Any:
    """The task, in its lane and the context that was given, if any."""
    given = options.get("context")
    if given is None:
        token = LANE.set(lane)  # the task copies the context that it is created in
        try:
            return original(loop, coro, **options)
        finally:
            LANE.reset(token)
    if not _claim(given, lane):
        return original(loop, LaneCoroutine(coro, lane), **options)
    task = original(loop, coro, **options)
    if isinstance(task, asyncio.Future):
        given.run(_HOLDER.set, (id(given), ref(task)))
    return task


def _follow(gate: Delivery, loop: Any, task: Any, lane: Lane, *, top: bool) -> None:
    if not isinstance(task, asyncio.Future) or task.done():
        gate.ended(top=top)  # what a task factory made is no task, or was eager and is over
        return
    TASKS[task] = lane
    watch = gate.meet(loop)
    task.add_done_callback(lambda _: gate.ended(top=top), context=watch.context)


def _claim(context: Context, lane: Lane) -> bool:
    """Put the lane into a context that was given explicitly; False where another task has its own there.

    asyncio.run gives its main task such a context, which nothing else runs in; a test runner gives one
    context to many tasks, one after the other or at once.
    """
    holder = context.get(_HOLDER)
    task = holder[1]() if holder is not None and holder[0] == id(context) else None
    if task is not None and not task.done():
        return False
    try:
        context.run(LANE.set, lane)
    except RuntimeError:  # it is entered just now: its code goes on in the lane that it has
        return False
    return True


class LaneCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine that shares its context with others: its lane is there only while it runs."""

    def __init__(self, coroutine: Any, lane: Lane) -> None:
        self._coroutine = coroutine
        self._lane: Lane | None = lane
        self.__name__ = getattr(coroutine, "__name__", "coroutine")
        self.__qualname__ = getattr(coroutine, "__qualname__", "coroutine")

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        token = LANE.set(self._lane)
        try:
            return advance(*args)
        finally:
            self._lane = LANE.get()
            LANE.reset(token)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._step(self._coroutine.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("this coroutine is a task's")

    @property
    def cr_code(self) -> CodeType | None:
        return getattr(self._coroutine, "cr_code", None)

    @property
    def cr_frame(self) -> FrameType | None:
        return getattr(self._coroutine, "cr_frame", None)

    @property
    def cr_running(self) -> bool:
        return bool(getattr(self._coroutine, "cr_running", False))

    @property
    def cr_await(self) -> Any:
        return getattr(self._coroutine, "cr_await", None)


def _run_forever(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_forever(self: Any) -> Any:
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None:
            return _run(original, self)
        gate.meet(self)
        if gate.holds:
            gate.here(lane)
        token = LANE.set(None)  # what the loop does between callbacks belongs to no lane
        try:
            return _run(original, self)
        finally:
            LANE.reset(token)

    return run_forever


def _run(original: Callable[..., Any], loop: Any) -> Any:
    watch = watch_of(loop)
    if watch is not None:
        watch.started()
    try:
        return original(loop)
    finally:
        watch = watch_of(loop)
        if watch is not None:
            watch.stopped()
            if strand() is None:
                for gate in watch.gates:
                    party = gate.parties.get(get_ident())
                    if party is not None:
                        gate.leave(party)


def _call_soon_threadsafe(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        watch = watch_of(self)
        ident = get_ident()
        lane = strand()
        gate = ordering(lane)
        if (watch is not None and watch.ident == ident) or (gate is None and watch is None):
            return original(self, callback, *args, context=context)
        if gate is not None and lane is not None and asyncio._get_running_loop() is None and _by_program():
            gate.event(lane, CALL).wait()
        if lane is not None and context is None and LANE.get() is None:
            context = _within(lane)  # the lane of the process is no other thread's, but what it hands over is its own
        for gate in () if watch is None else watch.gates:
            caller, party = gate.parties.get(ident), gate.parties.get(watch.ident) if watch is not None else None
            if caller is not None and party is not None and watch is not None and watch.running:
                if lane is None and context is None and caller.lane is not None:
                    context = _within(caller.lane)  # a worker of anyio reports a result: it is the program's
                with gate.lock:  # the loop must not be seen idle in between
                    gate.woken(party)
                    return original(self, callback, *args, context=context)
        return original(self, callback, *args, context=context)

    return call_soon_threadsafe


def _within(lane: Lane) -> Context:
    """This context, in a lane."""
    context = copy_context()
    context.run(LANE.set, lane)
    return context


def _by_program() -> bool:
    """Whether it was not the end of a Future, which has its place in the order already."""
    return sys._getframe(2).f_globals.get("__name__") != "asyncio.futures"


def _task_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any) -> None:
        original(self)
        if ordering(strand()) is not None:
            self._tasks = OrderedSet(self._tasks)  # it cancels its tasks in the order of this set

    return init
