"""The exceptions that an HTTP attempt may end with, by reference: what a replay may raise from a recording."""

from __future__ import annotations

import functools
import importlib
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from otel_agent_replay.recording.allowed import Allowed, allowed_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

FAMILIES = ("httpx", "httpx2")
"""HTTP libraries of the same shape."""

BENEATH = ("httpcore", "httpcore2", "h11", "h2.exceptions", "hpack.exceptions", "anyio")
"""What they are built on: its exceptions are the causes of theirs."""

RAISED = (Exception, KeyboardInterrupt, SystemExit)
"""What ends an attempt, or its body, with an error: an interrupt and an exit are raised by the handlers of signals into
whatever waits. Anything else, such as a cancellation or the close of a generator, leaves it."""


def transport_errors() -> Mapping[str, type]:
    """The exceptions that an attempt may end with, and their causes, by reference.

    Those of every family that the program has imported, and what its signal handlers can see: they raise into whatever
    runs, a timeout of `signal.alarm` for one.
    """
    return _of(*[name for name in FAMILIES if name in sys.modules])


@functools.cache
def _of(*names: str) -> Mapping[str, type]:
    return _Errors(Allowed(lambda: (*(error for name in names for error in _in(sys.modules[name])), *_beneath())))


class _Errors(Mapping[str, type]):
    """Those of the libraries, and what the handlers of signals can see that are there when somebody asks."""

    def __init__(self, own: Allowed) -> None:
        self._own = own

    def __getitem__(self, name: str) -> type:
        if name in self._own:
            return self._own[name]
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and (found := allowed_from(handler).get(name)) is not None:
                return found
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def _beneath() -> Iterator[type[Exception]]:
    """Of what the families are built on. A replay, which connects to nothing, may not have imported it."""
    for name in BENEATH:
        with suppress(ImportError):
            yield from _in(importlib.import_module(name))


def _in(module: ModuleType) -> Iterator[type[Exception]]:
    for thing in vars(module).values():
        if isinstance(thing, type) and issubclass(thing, Exception):
            yield thing
