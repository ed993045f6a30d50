"""Ids from entropy of our own: never the program's `random`, whose sequence belongs to the run."""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

from otel_agent_replay.boundary import real

_POOL: Final = Struct("<512Q")
"""4 KiB at a time: one call to the system for 512 span ids."""

_pool: list[int] = []


def span_id() -> int:
    """64 random bits, never 0."""
    while True:
        try:
            value = _pool.pop()  # atomic: no two threads are given the same
        except IndexError:
            _pool.extend(_POOL.unpack(real.urandom(_POOL.size)))
            continue
        if value:
            return value


def trace_id() -> int:
    """128 random bits, never 0."""
    return span_id() << 64 | span_id()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)
