"""Lanes and order over asyncio, threads, pools, queues and processes.

`install` patches the standard library for good, or until what it returns is called. Without a run each
patch is one look at a context variable. Runs are found by the context that code runs in; see
`boundary.lanes.strand`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import wrapt

from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.instrument.concurrency import (
    anyio_threads,
    locks,
    ordered,
    pools,
    process_pools,
    processes,
    queues,
    tasks,
    thread_pools,
    threads,
    timers,
    waits,
)
from otel_agent_replay.instrument.concurrency.patching import Patches
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_installed: list[Patches] = []
_users: set[object] = set()
"""Whoever has installed them, and not undone that."""
_lock = threading.RLock()


def _install_uvloop(patches: Patches) -> None:
    tasks.install_uvloop(patches)
    timers.install_uvloop(patches)


LATER: dict[str, Callable[[Patches], None]] = {
    "anyio._backends._asyncio": anyio_threads.install,
    "uvloop": _install_uvloop,
}
"""What is patched once the program has imported it."""


def install(note: Callable[[Note], None] | None = None) -> Callable[[], None]:
    """Patch this process, unless it is. Returns what undoes this call; the patches go with the last of them.

    Args:
        note: told of a library that has an unknown shape and is left alone.
    """
    user = object()
    with _lock:
        _users.add(user)
        if not _installed:
            _put(note)
    return partial(_leave, user)


def _put(note: Callable[[Note], None] | None) -> None:
    patches = Patches()
    _installed.append(patches)
    for part in (tasks, timers, waits, locks, threads, pools, queues, thread_pools, processes, process_pools, ordered):
        part.install(patches)
    for module, patch in LATER.items():
        wrapt.register_post_import_hook(partial(_imported, patches, patch, note), module)


def _imported(
    patches: Patches,
    patch: Callable[[Patches], None],
    note: Callable[[Note], None] | None,
    module: ModuleType,
) -> None:
    if patches not in _installed:
        return
    try:
        patch(patches)
    except (AttributeError, LookupError) as error:
        what = f"{module.__name__} has an unknown shape, so its threads and tasks are no lanes: {error!r}"
        if note is None:
            fault(what, error)
        else:
            note(Note(NoteKind.UNKNOWN_SHAPE, what))


def _leave(user: object) -> None:
    with _lock:
        _users.discard(user)
        while _installed and not _users:
            _installed.pop().undo()
