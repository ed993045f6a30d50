"""What has to be in order when the process forks: a lock that nobody holds, a file and entropy of one's own."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

PATIENCE = 2.0
"""Seconds that a fork waits for a write of ours to end; then it goes on, and the child starts with a fresh lock."""


class Forkable(Protocol):
    """Something with state that two processes must not share."""

    rank: int
    """Lower ones are held first, as they are when something is written."""

    def hold(self, patience: float) -> None:
        """A fork is about to happen: wait until nothing is half done."""

    def go_on(self) -> None:
        """The fork is over; this is the parent."""

    def begin_again(self) -> None:
        """The fork is over; this is the child."""


_watched: WeakSet[Forkable] = WeakSet()


def watch(forkable: Forkable) -> None:
    """Tell it about every fork, as long as it lives."""
    _watched.add(forkable)


def _ranked() -> list[Forkable]:
    for _ in range(100):
        try:
            return sorted(_watched, key=lambda forkable: forkable.rank)
        except RuntimeError:  # another thread has just begun a run
            continue
    return []


def _hold() -> None:
    for forkable in _ranked():
        forkable.hold(PATIENCE)


def _go_on() -> None:
    for forkable in reversed(_ranked()):
        forkable.go_on()


def _begin_again() -> None:
    for forkable in _ranked():
        forkable.begin_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_begin_again)
