"""How much the spool may still take: looked at seldom, because a look reads the directory."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real

if TYPE_CHECKING:
    from pathlib import Path

LOOKED_AT_EVERY = 16 << 20
"""Bytes that this process writes between two looks, at most; as the limit comes near, fewer."""

LEAST = 64 << 10
"""Bytes between two looks, at least."""

FULL_FOR = 1.0
"""Seconds for which a full spool is taken to be full."""

RESERVE = 1 << 20
"""Bytes beyond the limit for the ends of runs, which say that something is lacking."""


class Room:
    """The limit of a spool. Call it under the lock of its writer.

    Args:
        directory: of the spool files.
        limit: bytes that they may take together; 0 for any number.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.limit = limit
        self._directory = directory
        self._left = 0
        self._full_until = 0.0
        self._reserve = 0
        """Bytes that what is vital may take while the spool is full."""

    def take(self, size: int, *, vital: bool = False) -> bool:
        """Whether so many bytes may be written. What is vital may go a little beyond the limit."""
        if not self.limit:
            return True
        if size <= self._left:
            self._left -= size
            return True
        if (now := real.monotonic()) >= self._full_until:
            room = self.limit - self._held()
            self._reserve = room + RESERVE
            if size <= room:
                self._left = min(max((room - size) // 8, LEAST), LOOKED_AT_EVERY, room - size)
                return True
            self._full_until = now + FULL_FOR
        if not vital or size > self._reserve:
            return False
        self._reserve -= size
        return True

    def _held(self) -> int:
        total = 0
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
        return total
