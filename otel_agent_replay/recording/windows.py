"""Frames of a file that is too large to be held: it is read a window at a time, by whoever knows how to read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from otel_agent_replay.recording.frames import Damage, Frame, Harm, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WINDOW = 8 << 20
"""Bytes of a file that are read at a time …"""

LARGEST_FRAME = 512 << 20
"""… and at most, where a single frame is longer."""

_REASON = re.compile(r"\((.*)\)$")


def scan_windows(read: Callable[[int, int], bytes], base: int, end: int) -> Iterator[Frame | Damage]:
    """Frames and damage between two offsets, their offsets those in the file.

    Args:
        read: gives so many bytes from an offset on; fewer only at the end of the file.
        base: where the first frame begins.
        end: how long the file is taken to be.
    """
    window = WINDOW
    while base < end:
        data = read(base, min(window, end - base))
        if not data:
            return
        last = base + len(data) >= end
        done = 0
        for item in scan(data):
            size = item.size if isinstance(item, Frame) else item.length
            if isinstance(item, Damage) and item.offset + size == len(data) and not last and window < LARGEST_FRAME:
                break  # perhaps only cut by the window
            done = item.offset + size
            yield _moved(item, base)
        base += done
        window = WINDOW if done else 4 * window


def _moved(item: Frame | Damage, base: int) -> Frame | Damage:
    """The same, its offset counted from the beginning of the file."""
    if base == 0:
        return item
    offset = item.offset + base
    if isinstance(item, Frame):
        item.offset = offset
        return item
    if item.harm in (Harm.TORN, Harm.NEWER):
        return Damage(offset, item.length, item.why, item.harm)
    reason = _REASON.search(item.why)
    why = f"{item.length} bytes at {offset} are damaged ({reason[1] if reason else 'no frame begins there'})"
    return Damage(offset, item.length, why, Harm.DAMAGED)
