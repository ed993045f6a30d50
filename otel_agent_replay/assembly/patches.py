"""Every patch, put in together."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import guard
from otel_agent_replay.instrument import _patch, concurrency, instrumentors
from otel_agent_replay.instrument.libraries import (
    asgi,
    clock,
    commands,
    commands_async,
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


def install(report: Callable[[Note], None], named: Iterable[str] = ()) -> Callable[[], None]:
    """Patch this process. Gives what undoes this call; the patches go with the last of them.

    Args:
        report: told of a library that has an unknown shape.
        named: environment variables that are recorded by value.
    """
    environment.watch(named)
    with ExitStack() as undo:
        undo.callback(concurrency.install(report))
        for own in (clock, randomness, process, environment, sockets, commands, commands_async):
            undo.callback(own.install())
        undo.callback(_patch.install(LIBRARIES, report))
        return undo.pop_all().close


def close_network() -> None:
    """Let no code of this process reach the network, whatever its context."""
    sockets.install()
    guard.close()
