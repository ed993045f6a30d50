"""Every patch, put in together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_agent_replay.boundary import guard
from otel_agent_replay.instrument import _patch, concurrency, instrumentors
from otel_agent_replay.instrument.libraries import (
    asgi,
    clock,
    environment,
    process,
    randomness,
    sockets,
    wsgi,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_agent_replay.recording.values import Note

LIBRARIES = (*instrumentors.LIBRARIES, *asgi.LIBRARIES, *wsgi.LIBRARIES)
"""Libraries that are patched when the program imports them."""


def install(report: Callable[[Note], None], named: Iterable[str] = ()) -> None:
    """Patch this process for good.

    Args:
        report: told of a library that has an unknown shape.
        named: environment variables that are recorded by value.
    """
    environment.watch(named)
    concurrency.install(report)
    for own in (clock, randomness, process, environment, sockets):
        own.install()
    _patch.install(LIBRARIES, report)


def close_network() -> None:
    """Let no code of this process reach the network, whatever its context."""
    sockets.install()
    guard.close()
