"""The clocks and scales of benchmarks: not the program's, so they are not recorded, and go on in a replay.

Whoever starts a program that measures itself has `EXCLUDE` in its environment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

EXCLUDE = {"OTEL_AGENT_REPLAY_READINGS_EXCLUDE": __name__}


def wall() -> float:
    """Seconds since some moment."""
    return time.perf_counter()


def cpu() -> float:
    """Seconds of CPU that this process has taken."""
    return time.process_time()


def written(folder: Path) -> int:
    """Bytes of the files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
