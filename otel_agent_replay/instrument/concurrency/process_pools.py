"""multiprocessing.Pool: each call and each chunk of elements has a lane, whichever worker takes it.

How elements are cut into chunks follows from their number and that of the workers. When results come, and in which
order from `imap_unordered`, is not ordered with anything.
"""

from __future__ import annotations

import functools
import multiprocessing.pool as mpool
from itertools import count
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.lanes import Lane, strand
from otel_agent_replay.boundary.order import ordering
from otel_agent_replay.instrument.concurrency.naming import of_function
from otel_agent_replay.instrument.concurrency.processes import Item, apart, forks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument.concurrency.patching import Patches


def install(patches: Patches) -> None:
    """Patch what gives a pool work. Pools of threads are another module's."""
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patches.put(mpool.Pool, name, _giving)


def _giving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def give(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        lane = strand()
        if lane is None or ordering(lane) is None or isinstance(self, mpool.ThreadPool):
            return original(self, func, *args, **kwargs)
        if not forks(self._ctx):
            apart(lane)
            return original(self, func, *args, **kwargs)
        return original(self, _Chunks(lane.spawn("process", of_function(func)), func), *args, **kwargs)

    return give


class _Chunks(Item):
    """A function on its way to workers, once for each chunk: the pool's own thread sends one after the other."""

    def __init__(self, lane: Lane, function: Any) -> None:
        super().__init__(lane, function)
        self._numbers = count()

    def lane(self) -> Lane:
        call = self._lane
        return Lane(call.session, call, call.how, call.name, next(self._numbers))
