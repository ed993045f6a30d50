"""Sets of tasks and futures that are iterated in a fixed order.

Objects that compare by identity lie in a set by their address, which no replay can repeat: what waits for
several tasks hands them out, or cancels them, in another order each time. They are ordered by when they
were spawned, concurrent Futures that are done by when they were done.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import itertools
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

from otel_agent_replay.boundary.lanes import strand
from otel_agent_replay.boundary.order import monotonic, ordering
from otel_agent_replay.boundary.stuck import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_agent_replay.instrument.concurrency.patching import Patches

T = TypeVar("T")

SUBMITTED = "_otel_agent_replay_submitted"
"""On a concurrent Future: how-manyth it was submitted."""
DONE = "_otel_agent_replay_done"
"""On a concurrent Future: how-manyth it was done."""

_base: Any = cf._base
_stamps = itertools.count()


class OrderedSet(set[T]):
    """A set that is iterated in the order in which its members were put in."""

    def __init__(self, members: Iterable[T] = ()) -> None:
        self._order = dict.fromkeys(members)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[T]:
        return iter([member for member in self._order if member in self])

    def add(self, member: T) -> None:
        if member not in self:
            self._order.pop(member, None)
            self._order[member] = None
        super().add(member)

    def discard(self, member: object) -> None:
        self._order.pop(cast("T", member), None)
        super().discard(cast("T", member))

    def remove(self, member: T) -> None:
        super().remove(member)
        self._order.pop(member, None)

    def pop(self) -> T:
        """Remove and return the first member. Raises KeyError where there is none."""
        for member in self:
            self.remove(member)
            return member
        raise KeyError("pop from an empty set")


def stamp(future: Any, name: str) -> None:
    """Number a future."""
    setattr(future, name, next(_stamps))


def install(patches: Patches) -> None:
    """Order what asyncio and concurrent.futures hand out."""
    for owner, name, make in (
        (asyncio.tasks, "wait", _wait),
        (asyncio.tasks, "as_completed", _as_completed),
        (asyncio.tasks, "all_tasks", _all_tasks),
        (_base, "wait", _wait_concurrent),
        (_base, "as_completed", _as_completed_concurrent),
    ):
        patches.put(owner, name, make)
        public = asyncio if owner is asyncio.tasks else cf
        patches.same(public, name, getattr(owner, name))


def _serial(future: Any) -> tuple[int, int]:
    lane = TASKS.get(future)
    return (0, lane.serial) if lane is not None else (1, 0)


def _sorted(futures: Iterable[Any], given: Any) -> list[Any]:
    """In the order of spawning; what is no task of a run, in the order in which it was given."""
    places = {id(future): place for place, future in enumerate(given)} if isinstance(given, list | tuple) else {}
    return sorted(futures, key=lambda future: (*_serial(future), places.get(id(future), 0)))


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    async def wait(
        fs: Any,
        *,
        timeout: Any = None,  # noqa: ASYNC109 (asyncio's own signature)
        return_when: Any = asyncio.ALL_COMPLETED,
    ) -> Any:
        if ordering(strand()) is None:
            return await original(fs, timeout=timeout, return_when=return_when)
        given = fs if asyncio.isfuture(fs) or not hasattr(fs, "__iter__") else list(fs)
        done, pending = await original(given, timeout=timeout, return_when=return_when)
        return OrderedSet(_sorted(done, given)), OrderedSet(_sorted(pending, given))

    return wait


def _all_tasks(original: Callable[..., Any]) -> Callable[..., Any]:
    def all_tasks(loop: Any = None) -> Any:
        tasks = original(loop)
        return OrderedSet(_sorted(tasks, ())) if ordering(strand()) is not None else tasks

    return all_tasks


def _as_completed(original: Callable[..., Any]) -> Callable[..., Any]:
    if sys.version_info >= (3, 13):

        def as_completed(fs: Any, *, timeout: Any = None) -> Any:
            if ordering(strand()) is None or asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
                return original(fs, timeout=timeout)
            return _first_done_first(original, _spawned(fs), timeout)

    else:

        def as_completed(fs: Any, *, timeout: Any = None) -> Any:
            if ordering(strand()) is None or asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
                yield from original(fs, timeout=timeout)
            else:
                iterator = original(futures := _spawned(fs), timeout=timeout)
                with _ReadyInOrder(futures):
                    first = list(itertools.islice(iterator, 1))
                yield from first
                yield from iterator

    return as_completed


def _first_done_first(original: Callable[..., Any], futures: list[Any], timeout: Any) -> Any:
    with _ReadyInOrder(futures):
        return original(futures, timeout=timeout)


def _spawned(fs: Iterable[Any]) -> list[Any]:
    """The futures of what is given, spawned in its order; a set of tasks in the order of spawning."""
    given = _sorted(fs, ()) if isinstance(fs, set | frozenset) else dict.fromkeys(fs)
    return [asyncio.ensure_future(future) for future in given]


class _ReadyInOrder:
    """Around code that adds a callback to each of several futures.

    Those that are done already have it called in the order of the futures.
    """

    def __init__(self, futures: list[Any]) -> None:
        self._done = {id(future): place for place, future in enumerate(futures) if future.done()}

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, *_: object) -> None:
        ready = getattr(asyncio._get_running_loop(), "_ready", None)
        if ready is None or len(self._done) < 2:
            return
        places = [index for index, handle in enumerate(ready) if self._place(handle) is not None]
        handles = sorted((ready[index] for index in places), key=lambda handle: self._place(handle) or 0)
        for index, handle in zip(places, handles, strict=True):
            ready[index] = handle

    def _place(self, handle: Any) -> int | None:
        name = getattr(handle._callback, "__name__", "")
        if name not in ("_on_completion", "_handle_completion") or not handle._args:
            return None
        return self._done.get(id(handle._args[0]))


def _done_stamp(future: Any) -> int:
    return int(getattr(future, DONE, -1))


def _wait_concurrent(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(fs: Any, timeout: Any = None, return_when: Any = cf.ALL_COMPLETED) -> Any:
        if ordering(strand()) is None:
            return original(fs, timeout, return_when)
        fs = list(fs)
        waits = return_when == cf.FIRST_COMPLETED and not any(future.done() for future in fs)
        done, not_done = original(fs, timeout, return_when)
        if waits and len(done) > 1:  # what comes while it wakes up comes after it
            first = min(done, key=_done_stamp)
            done, not_done = {first}, (not_done | done) - {first}
        left = sorted(not_done, key=lambda future: getattr(future, SUBMITTED, -1))
        return _base.DoneAndNotDoneFutures(OrderedSet(sorted(done, key=_done_stamp)), OrderedSet(left))

    return wait


def _as_completed_concurrent(original: Callable[..., Any]) -> Callable[..., Any]:
    def as_completed(fs: Any, timeout: Any = None) -> Iterator[Any]:
        if ordering(strand()) is None:
            yield from original(fs, timeout)
        else:
            yield from _as_they_come(list(dict.fromkeys(fs)), None if timeout is None else monotonic() + timeout)

    return as_completed


def _as_they_come(futures: list[Any], end: float | None) -> Iterator[Any]:
    """What concurrent.futures.as_completed does, in a fixed order and by the clock of timeouts."""
    total = len(futures)
    with _base._AcquireFutures(futures):
        ended = (_base.CANCELLED_AND_NOTIFIED, _base.FINISHED)
        done = sorted((future for future in futures if future._state in ended), key=_done_stamp)
        left = [future for future in futures if future._state not in ended]
        waiter = _base._create_and_install_waiters(left, _base._AS_COMPLETED)
    del futures
    try:
        while done or left:
            if not done:
                wait = None if end is None else end - monotonic()
                if wait is not None and wait < 0:
                    raise TimeoutError(f"{len(left)} (of {total}) futures unfinished")
                waiter.event.wait(wait)
                with waiter.lock:
                    done, waiter.finished_futures = waiter.finished_futures, []
                    waiter.event.clear()
            while done:
                if done[0] in left:
                    left.remove(done[0])
                    _forget(done[0], waiter)
                yield done.pop(0)  # kept by no variable: it may be the last reference to a large result
    finally:
        for future in left:
            _forget(future, waiter)


def _forget(future: Any, waiter: Any) -> None:
    with future._condition:
        future._waiters.remove(waiter)
