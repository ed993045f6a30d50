"""anyio: its worker threads run items that are lanes; its scopes cancel their tasks in a fixed order."""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import queue
import sys
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.lanes import strand
from otel_agent_replay.boundary.order import ordering
from otel_agent_replay.instrument.concurrency.naming import of_function
from otel_agent_replay.instrument.concurrency.ordered import OrderedSet
from otel_agent_replay.instrument.concurrency.pools import Item

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument.concurrency.patching import Patches


def install(patches: Patches) -> None:
    """Patch anyio's asyncio backend, which is loaded. Raises where it has an unknown shape."""
    backend = sys.modules["anyio._backends._asyncio"]
    patches.put(backend.AsyncIOBackend, "run_sync_in_worker_thread", _run_sync)
    patches.put(backend.CancelScope, "__init__", _scope)
    patches.put(queue.Queue, "put", _put)


class AnyioItem(Item):
    """Runs in a worker thread of anyio, which stays busy until it has reported the result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.begin()
            return super().__call__(*args, **kwargs)
        finally:
            try:
                self.done()
            finally:
                self.end(stays=True)


def _run_sync(original: Any) -> Any:
    def run_sync(cls: Any, func: Callable[..., Any], args: tuple[Any, ...], *rest: Any, **options: Any) -> Any:
        lane = strand()
        gate = ordering(lane)
        if lane is None or gate is None or asyncio._get_running_loop() is None:
            return original.__func__(cls, func, args, *rest, **options)
        item = AnyioItem(gate, lane.spawn("pool", of_function(func)), func)
        return original.__func__(cls, item, args, *rest, **options)

    return classmethod(run_sync)


def _scope(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if ordering(strand()) is not None:
            self._tasks = OrderedSet(self._tasks)
            self._child_scopes = OrderedSet(self._child_scopes)

    return init


def _put(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(self: Any, item: Any, *args: Any, **kwargs: Any) -> None:
        if type(item) is tuple and len(item) > 1 and isinstance(item[1], AnyioItem):
            item[1].awaited()  # a worker is about to take it
        original(self, item, *args, **kwargs)

    return put
