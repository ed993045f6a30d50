"""What is submitted to a pool is a lane; the threads of the pool are none.

It belongs to who submitted it, whichever worker runs it. An item is busy from the moment that a worker is
free for it, before the worker has taken it.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import concurrent.futures.thread as cft
import functools
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary.lanes import GROUND, LANE, OUTSIDE, Lane, here, strand
from otel_agent_replay.boundary.order import BEGIN, FUTURE, POOLED, Delivery, ordering
from otel_agent_replay.boundary.parties import Party
from otel_agent_replay.instrument.concurrency.naming import in_context, of_function
from otel_agent_replay.instrument.concurrency.ordered import DONE, SUBMITTED, stamp
from otel_agent_replay.instrument.concurrency.waits import begin, block

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.completions import WaitTurn
    from otel_agent_replay.instrument.concurrency.patching import Patches


class Pool:
    """What is known of one ThreadPoolExecutor. Guarded by the lock of the gate that asks."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.taken = 0
        """Items that a worker runs, or is free for."""
        self.queued: deque[Item] = deque()
        self.emptied: list[WaitTurn] = []
        """Who waits for the last item to end."""

    def submitted(self, item: Item) -> None:
        """Mark an item as busy, if a worker is free for it."""
        if self.taken < self.workers:
            self.taken += 1
            item.awaited()
        else:
            self.queued.append(item)

    def ended(self) -> None:
        """An item has ended: its worker takes the next one."""
        while self.queued:
            item = self.queued.popleft()
            if not item.begun:  # a worker may have been free for it before we knew
                item.awaited()
                return
        self.taken -= 1
        if not self.taken:
            waiting, self.emptied = self.emptied, []
            for turn in waiting:
                turn.notify()


class Item:
    """One call that was submitted, in its lane."""

    def __init__(self, gate: Delivery, lane: Lane, function: Callable[..., Any], pool: Pool | None = None) -> None:
        self.gate = gate
        self.lane = lane
        self.pool = pool
        self.party = Party(gate)
        self.party.lane = lane
        self.party.serves = True
        self.begun = False
        """A worker runs it, or has run it."""
        gate.spawned()
        self.turn = gate.event(lane, BEGIN)
        self._call = in_lane(lane, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def awaited(self) -> None:
        """A worker is about to take it."""
        if self.gate.holds:
            self.gate.woken(self.party)

    def withdraw(self) -> None:
        """It could not be submitted after all."""
        gate, pool = self.gate, self.pool
        gate.ended()
        with gate.lock:
            gate.give_up(self.turn)
            if pool is not None and self in pool.queued:
                pool.queued.remove(self)
            elif pool is not None:
                pool.ended()
            gate.settle(self.party)

    def begin(self) -> None:
        """The calling thread runs it. Raises where a replay cannot go on."""
        with self.gate.lock:
            self.begun = True
        if self.gate.holds:
            self.gate.enter(self.party)
        token = LANE.set(self.lane)
        try:
            self.turn.wait()
        finally:
            LANE.reset(token)

    def done(self) -> None:
        """Wait until the result may be handed on. Raises where a replay cannot go on."""
        token = LANE.set(self.lane)
        try:
            self.gate.event(self.lane, POOLED).wait()
        finally:
            LANE.reset(token)

    def end(self, *, stays: bool = False) -> None:
        """It has ended; its worker `stays` busy until it has handed the result on, and blocks."""
        gate = self.gate
        gate.ended()
        with gate.lock:
            if self.pool is not None:
                self.pool.ended()
            if not stays:
                gate.leave(self.party)


def in_lane(lane: Lane | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run in a lane, also where it is run in a context of its own."""
    if isinstance(function, functools.partial) and in_context(function):
        inner = in_lane(lane, function.args[0])
        return functools.partial(function.func, inner, *function.args[1:], **function.keywords)

    def call(*args: Any, **kwargs: Any) -> Any:
        token = LANE.set(lane)
        thread = get_ident()
        outer = GROUND.get(thread)
        if lane is not None:
            GROUND[thread] = lane
        try:
            return function(*args, **kwargs)
        finally:
            LANE.reset(token)
            if outer is not None:
                GROUND[thread] = outer
            else:
                GROUND.pop(thread, None)

    return call


_pools: WeakKeyDictionary[Any, Pool] = WeakKeyDictionary()


def install(patches: Patches) -> None:
    """Patch concurrent.futures: executors of threads, and futures."""
    executor = cf.ThreadPoolExecutor
    patches.put(executor, "submit", _submit)
    patches.put(executor, "shutdown", _shutdown)
    patches.put(cft._WorkItem, "run", _run)
    for name in ("set_result", "set_exception"):
        patches.put(cf.Future, name, _set)
    patches.put(cf.Future, "add_done_callback", _add_done_callback)


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None:
            # the worker may have been started in a run; what it runs belongs to who submits it
            lane = here()
            return original(self, fn if lane is None else in_lane(lane, fn), *args, **kwargs)
        pool = _pools.get(self)
        if pool is None:
            pool = _pools[self] = Pool(self._max_workers)
        item = Item(gate, lane.spawn("pool", of_function(fn, *args)), fn, pool)
        if gate.holds:
            gate.here(lane)
        try:
            with gate.lock:
                pool.submitted(item)
            future = original(self, item, *args, **kwargs)
        except BaseException:
            item.withdraw()
            raise
        stamp(future, SUBMITTED)
        return future

    return submit


def _item(work: Any) -> Item | None:
    call = getattr(work, "fn", None)
    if call is None:  # 3.14 keeps function and arguments together
        task = getattr(work, "task", None)
        call = task[0] if isinstance(task, tuple) else None
    return call if isinstance(call, Item) else None


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any) -> Any:
        item = _item(self)
        if item is None:
            return original(self, *args)
        token = LANE.set(OUTSIDE)
        try:
            try:
                item.begin()
            except BaseException as error:  # noqa: BLE001 (it is whoever waits for the item that shall see it)
                if self.future.set_running_or_notify_cancel():
                    self.future.set_exception(error)
                return None
            LANE.set(item.lane)
            return original(self, *args)
        finally:
            LANE.reset(token)
            item.end()

    return run


def _shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    def shutdown(self: Any, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        lane = strand()
        gate = ordering(lane)
        pool = _pools.get(self)
        if lane is not None and gate is not None and pool is not None and wait and gate.holds:
            original(self, wait=False, cancel_futures=cancel_futures)
            turn = begin(gate, lane, None)
            with gate.lock:
                if cancel_futures:
                    pool.queued.clear()
                running = pool.taken > 0
                if running:
                    pool.emptied.append(turn)
            if running:
                block(gate, lane, turn, None)
        original(self, wait=wait, cancel_futures=cancel_futures)

    return shutdown


def _set(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_(self: Any, value: Any) -> None:
        lane = strand()
        gate = ordering(lane)
        if lane is not None and gate is not None and asyncio._get_running_loop() is None:
            try:
                gate.event(lane, FUTURE).wait()
            except BaseException as error:  # noqa: BLE001 (it is whoever waits for the Future that shall see it)
                set_exception(self, error)
                return
        stamp(self, DONE)
        original(self, value)

    return set_


def set_exception(future: Any, error: BaseException) -> None:
    """End a Future out of order."""
    token = LANE.set(OUTSIDE)
    try:
        future.set_exception(error)
    finally:
        LANE.reset(token)


def _add_done_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_done_callback(self: Any, fn: Any) -> None:
        lane = strand()
        module = getattr(fn, "__module__", None) or ""
        if lane is None or ordering(lane) is None or module.startswith(("asyncio.", "concurrent.")):
            original(self, fn)
        else:
            original(self, in_lane(lane.spawn("callback", of_function(fn)), fn))

    return add_done_callback
