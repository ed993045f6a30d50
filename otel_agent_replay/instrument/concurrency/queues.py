"""An item that a thread puts into a queue has a place in the order."""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import asyncio
import queue
import sys
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import callers
from otel_agent_replay.boundary.lanes import strand
from otel_agent_replay.boundary.order import QUEUE, ordering

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument.concurrency.patching import Patches


def install(patches: Patches) -> None:
    """Patch queue.Queue, and with it its subclasses."""
    patches.put(queue.Queue, "put", _put)


def _put(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(self: Any, item: Any, block: bool = True, timeout: Any = None) -> None:  # noqa: FBT001, FBT002
        lane = strand()
        gate = ordering(lane)
        if lane is not None and gate is not None and asyncio._get_running_loop() is None and _by_program():
            gate.event(lane, QUEUE).wait()
        original(self, item, block, timeout)

    return put


def _by_program() -> bool:
    """Whether it is not the queue of a log handler or of a library that watches the program."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == "queue" and frame.f_back is not None:
        frame = frame.f_back  # put_nowait
    return callers.kind_of(frame) <= callers.DISPATCH
