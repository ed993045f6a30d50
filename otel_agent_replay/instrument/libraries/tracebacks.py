"""Tracebacks as `traceback` shows them, without the frames of the recorder and of other instrumentations.

A replay does not go through the same code of the recorder as a recording, and loads no other instrumentation; a
program that shows a traceback to its model, or prints it, shows the same in both, and its own code only.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from otel_agent_replay.instrument._ambient import Installation, Patches, like
from otel_agent_replay.recording.tracebacks import is_hidden, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

_OF_TRACES = ("walk_tb", "_walk_tb_with_full_positions")
"""What the functions of `traceback` walk along; the second has been there since Python 3.11."""


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in _OF_TRACES:
        if hasattr(traceback, name):
            patches.put(traceback, name, _of_trace(getattr(traceback, name)))
    patches.put(traceback, "walk_stack", _of_stack(traceback.walk_stack))


_installation = Installation(_put)


def _of_trace(original: Callable[[TracebackType | None], Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def walk(tb: TracebackType | None) -> Iterator[Any]:
        return original(shown(tb))

    like(walk, original, "traceback")
    return walk


def _of_stack(original: Callable[[FrameType | None], Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def walk_stack(f: FrameType | None) -> Iterator[Any]:
        if f is None:
            return original(f)  # it counts the frames from whoever walks
        return (entry for entry in original(f) if not is_hidden(entry[0].f_code.co_filename))

    like(walk_stack, original, "traceback")
    return walk_stack
