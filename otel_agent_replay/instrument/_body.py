"""Request bodies: read before they are sent, so that they are written down first, and then sent as they were."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import wrapt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

_unsent: WeakKeyDictionary[Any, deque[bytes]] = WeakKeyDictionary()
"""What was read from an iterator and never sent, because no connection came about: a program may send the
same iterator again, and its first items must not be lost."""


class HeldBody(wrapt.BaseObjectProxy[Any]):
    """A request stream that has been read: gives the same chunks once, then is what it wraps.

    Reading it twice then does what it would have done, be that a second reading or `StreamConsumed`.
    """

    def __init__(self, stream: Any, chunks: Sequence[bytes]) -> None:
        super().__init__(stream)
        source = getattr(stream, "_stream", None)
        self._self_source = source
        self._self_waiting = deque((*_take_back(source), *chunks))
        self._self_body = b"".join(self._self_waiting)
        self._self_started = False

    @property
    def body(self) -> bytes:
        """The whole of it."""
        return self._self_body

    def __iter__(self) -> Iterator[bytes]:
        if self._self_started:
            yield from self.__wrapped__
            return
        self._self_started = True
        while self._self_waiting:
            yield self._self_waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._self_started:
            async for chunk in self.__wrapped__:
                yield chunk
            return
        self._self_started = True
        while self._self_waiting:
            yield self._self_waiting.popleft()

    def sent(self) -> None:
        """It was sent without being iterated: a replay served the answer."""
        self._self_started = True
        self._self_waiting.clear()

    def give_back(self) -> None:
        """Sending failed: what was not taken goes back to where it came from."""
        waiting, source = self._self_waiting, self._self_source
        if not waiting or source is None:
            return
        try:
            if hasattr(source, "seek"):
                source.seek(source.tell() - sum(map(len, waiting)))
            elif _is_iterator(source):
                _unsent[source] = waiting
        except (OSError, TypeError, ValueError):
            return  # it cannot be taken back: not seekable, not hashable, closed


def _take_back(source: Any) -> deque[bytes]:
    try:
        return _unsent.pop(source, None) or deque()
    except TypeError:  # not hashable, so nothing was kept for it
        return deque()


def _is_iterator(source: Any) -> bool:
    """Whether reading it uses it up, as a generator and unlike a list."""
    if hasattr(source, "__aiter__"):
        return source.__aiter__() is source
    return iter(source) is source
