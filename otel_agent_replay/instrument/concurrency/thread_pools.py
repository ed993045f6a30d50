"""multiprocessing.pool.ThreadPool: each call and each element is a lane.

A worker hands a result to another thread of the pool, which hands it to who waits. From its turn until
then it is busy, so that no other result overtakes it.
"""

from __future__ import annotations

import multiprocessing.pool as mp
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary.lanes import LANE, Lane, strand
from otel_agent_replay.boundary.order import POOLED, Delivery, ordering
from otel_agent_replay.boundary.parties import Party
from otel_agent_replay.instrument.concurrency.naming import of_function
from otel_agent_replay.instrument.concurrency.pools import in_lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_agent_replay.instrument.concurrency.patching import Patches

_carried: WeakKeyDictionary[Any, list[Party]] = WeakKeyDictionary()
"""By pool: results on their way from a worker to who waits."""


def install(patches: Patches) -> None:
    """Patch pools, of which only those of threads are looked at, and their results."""
    patches.put(mp.Pool, "apply_async", _apply_async)
    patches.put(mp.Pool, "_map_async", _map_async)
    patches.put(mp.Pool, "imap", _imap)
    patches.put(mp.Pool, "imap_unordered", _imap)
    for result in (mp.ApplyResult, mp.MapResult, mp.IMapIterator):
        patches.put(result, "_set", _set)


@contextmanager
def _taken(pool: Any, gate: Delivery, lane: Lane) -> Iterator[None]:
    """Around what a worker runs: at its end, its turn, and the way of its result."""
    party = Party(gate)
    party.lane, party.serves = lane, True
    if gate.holds:
        gate.enter(party)
    try:
        yield
    finally:
        token = LANE.set(lane)
        try:
            gate.event(lane, POOLED).wait()
        finally:
            LANE.reset(token)
            with gate.lock:
                if gate.holds:
                    carrier = Party(gate)
                    carrier.lane = party.lane
                    gate.woken(carrier)
                    _carried.setdefault(pool, []).append(carrier)
                gate.leave(party)


class _Call:
    """A function that is called once, in its lane."""

    def __init__(self, pool: Any, gate: Delivery, lane: Lane, function: Callable[..., Any]) -> None:
        self._pool, self._gate, self._lane = pool, gate, lane
        self._call = in_lane(lane, function)
        gate.spawned()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with _taken(self._pool, self._gate, self._lane):
                return self._call(*args, **kwargs)
        finally:
            self._gate.ended()


class _Chunk:
    """Runs a chunk of elements, each of which brings its lane; what `mapstar` is to elements without."""

    def __init__(self, pool: Any, gate: Delivery, *, star: bool) -> None:
        self._pool, self._gate, self._star = pool, gate, star

    def __call__(self, batch: tuple[Callable[..., Any], Any]) -> list[Any]:
        function, elements = batch
        try:
            with _taken(self._pool, self._gate, elements[0][0]):
                return [self._one(function, *element) for element in elements]
        finally:
            for _ in elements:
                self._gate.ended()

    def _one(self, function: Callable[..., Any], lane: Lane, value: Any) -> Any:
        call = in_lane(lane, function)
        return call(*value) if self._star else call(value)


def _taking(pool: Any) -> tuple[Lane, Delivery] | None:
    lane = strand()
    gate = ordering(lane)
    return (lane, gate) if lane is not None and gate is not None and isinstance(pool, mp.ThreadPool) else None


def _apply_async(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        taking = _taking(self)
        if taking is not None:
            lane, gate = taking
            func = _Call(self, gate, lane.spawn("pool", of_function(func)), func)
        return original(self, func, *args, **kwargs)

    return apply_async


def _map_async(original: Callable[..., Any]) -> Callable[..., Any]:
    def _map_async(self: Any, func: Any, iterable: Any, mapper: Any, *args: Any, **kwargs: Any) -> Any:
        taking = _taking(self)
        if taking is not None:
            lane, gate = taking
            name = of_function(func)
            iterable = [(lane.spawn("pool", name), value) for value in iterable]
            for _ in iterable:
                gate.spawned()
            mapper = _Chunk(self, gate, star=mapper is mp.starmapstar)  # type: ignore[attr-defined]
        return original(self, func, iterable, mapper, *args, **kwargs)

    return _map_async


def _imap(original: Callable[..., Any]) -> Callable[..., Any]:
    def imap(self: Any, func: Any, iterable: Any, chunksize: int = 1) -> Any:
        taking = _taking(self)
        if taking is None:
            return original(self, func, iterable, chunksize)
        lane, gate = taking
        name = of_function(func)
        parent = lane.spawn("pool", name)  # another thread draws the elements

        def calls() -> Iterator[Any]:
            for value in iterable:
                yield _Call(self, gate, parent.spawn("item", name), func), value

        return original(self, _apply, calls(), 1)  # a chunk would be one result

    return imap


def _apply(call: tuple[_Call, Any]) -> Any:
    return call[0](call[1])


def _set(original: Callable[..., Any]) -> Callable[..., Any]:
    def _set(self: Any, *args: Any) -> None:
        carried = _carried.get(self._pool) if _carried and self._pool is not None else None
        original(self, *args)
        while carried:
            carrier = carried.pop()
            carrier.gate.settle(carrier)

    return _set
