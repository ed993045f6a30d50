"""The threads that take part in a run, as its gate sees them.

A thread that runs an event loop stands for its loop. A party is *busy* from the moment something wakes it
until it has settled: until it blocks where we can see it, arrives at the gate, or ends; a loop, when no
callback of the program is left to run.
"""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_agent_replay.boundary.delivery import Delivery
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.loops import LoopWatch

UNBORN = 0
"""Ident of a party whose thread is not known yet: a pool item that a worker is about to take."""


class Party:
    """One thread, as one gate sees it."""

    __slots__ = (
        "__weakref__",
        "daemon",
        "gate",
        "ident",
        "lane",
        "native",
        "passes",
        "quiet",
        "ran",
        "serves",
        "since",
        "strikes",
        "unheld",
        "watch",
    )

    def __init__(self, gate: Delivery, ident: int = UNBORN, native: int = 0) -> None:
        self.gate = gate
        self.ident = ident
        self.native = native
        """The operating system's id of the thread."""
        self.lane: Lane | None = None
        """The lane that it runs, or ran last."""
        self.watch: LoopWatch | None = None
        """The event loop that runs in it just now."""
        self.daemon = True
        self.serves = False
        """Its thread runs one item after the other, and between two of them takes no part."""
        self.quiet = False
        """Settled, and nothing at all is left to run in it, not even code beneath a crossing."""
        self.unheld = False
        """Recording: it never settles, so nothing is held back for it any more."""
        self.strikes = 0
        """How often in a row it was given up."""
        self.since = 0
        """Number of the sampler's latest look when it was woken: what that look saw was before."""
        self.passes = 0
        """Passes of its loop since something is held back for it."""
        self.ran = 0
        """Replaying: nanoseconds that it has run since it was woken, as far as the sampler saw."""

    def born(self) -> None:
        """The calling thread is this party."""
        self.ident = get_ident()
        self.native = threading.get_native_id()
        thread = threading._active.get(self.ident)  # type: ignore[attr-defined]  # noqa: SLF001 (current_thread makes one up)
        self.daemon = thread is None or thread.daemon

    def __repr__(self) -> str:
        return f"<Party {self.ident} {self.lane}>"


THREADS: dict[int, Party] = {}
"""By ident: the party that a thread was last. A worker thread stays one until it blocks between two items."""
