"""Every patch, put in together."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import callers, guard
from otel_agent_replay.instrument import _ambient, _commands, _filesystem, _patch, concurrency, wired
from otel_agent_replay.instrument.libraries import (
    asgi,
    changes,
    children,
    clock,
    commands,
    commands_async,
    commands_protocol,
    descriptors,
    environment,
    files,
    listings,
    machine,
    people,
    process,
    randomness,
    signals,
    sockets,
    spawned,
    sqlite,
    torch,
    tracebacks,
    wsgi,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_agent_replay.recording.values import Json, Note

LIBRARIES = (*wired.LIBRARIES, *asgi.LIBRARIES, *wsgi.LIBRARIES)
"""Libraries that are patched when the program imports them."""


OWN = (
    clock,
    randomness,
    process,
    environment,
    sockets,
    commands,
    commands_async,
    commands_protocol,
    spawned,
    children,
    descriptors,
    files,
    listings,
    changes,
    sqlite,
    people,
    machine,
    signals,
    tracebacks,
)
"""What is patched of the standard library."""


def install(report: Callable[[Note], None], named: Iterable[str] = ()) -> Callable[[], None]:
    """Patch this process. Gives what undoes this call; the patches go with the last of them.

    Args:
        report: told of a library that has an unknown shape.
        named: environment variables that are recorded by value.
    """
    environment.watch(named)
    _commands.mask(environment.CREDENTIAL)
    with ExitStack() as undo:
        undo.callback(concurrency.install(report))
        with _ambient.together():
            for own in OWN:
                undo.callback(own.install())
            undo.callback(torch.install(report))
        undo.callback(_patch.install(LIBRARIES, report))
        return undo.pop_all().close


def choose(world: Mapping[str, Json]) -> None:
    """Let the modules read for the program that a run was recorded with, by what `world` says of it."""
    chosen = world.get("readings")
    chosen = chosen if isinstance(chosen, dict) else {}
    include, exclude = (chosen.get(name) for name in ("include", "exclude"))
    callers.choose(*([str(name) for name in names] if isinstance(names, list) else [] for names in (include, exclude)))


def take_process(folder: str = "") -> None:
    """The whole process is recorded or replayed: what the program reads of its standard input belongs to its run.

    Args:
        folder: where a replay may keep files.
    """
    people.watch_stdin()
    if folder:
        _filesystem.keep_in(folder)


def close_network() -> None:
    """Let no code of this process reach the network, whatever its context."""
    sockets.install()
    guard.close()
