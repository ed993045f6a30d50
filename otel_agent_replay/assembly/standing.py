"""Where a program stood that was ended, from what `faulthandler` says of its threads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_MOST_FRAMES: Final = 4
"""Of each thread, from the innermost on."""


def standing(output: str) -> str:
    """File, line and function of each thread's innermost frames; empty where the output does not tell."""
    _, _, told = output.rpartition("Fatal Python error")
    stacks = [_FRAME.findall(thread)[:_MOST_FRAMES] for thread in told.split("hread 0x")[1:]]
    places = [" < ".join(f"{Path(file).name}:{line} {name}" for file, line, name in frames) for frames in stacks]
    return "; ".join(filter(None, places))
