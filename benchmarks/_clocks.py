"""The clocks that benchmarks measure by: not the program's, so they are not recorded, and go on in a replay.

Whoever starts a program that measures itself has `EXCLUDE` in its environment.
"""

from __future__ import annotations

import time

EXCLUDE = {"OTEL_AGENT_REPLAY_READINGS_EXCLUDE": __name__}


def wall() -> float:
    """Seconds since some moment."""
    return time.perf_counter()


def cpu() -> float:
    """Seconds of CPU that this process has taken."""
    return time.process_time()
