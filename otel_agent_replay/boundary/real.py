"""The real clock and the real entropy: the named door for our own code.

Bound when this module is first imported, which is before anything is patched; so it stays real whatever is
recorded or replayed, and nothing read here becomes part of a run.
"""

from __future__ import annotations

import os
import time

time_ns = time.time_ns
"""Nanoseconds since the epoch."""
monotonic = time.monotonic
"""Seconds of a clock that never goes back."""
perf_counter_ns = time.perf_counter_ns
"""Nanoseconds of the finest clock."""
thread_time_ns = time.thread_time_ns
"""Nanoseconds that this thread has run."""
sleep = time.sleep
"""Wait for so many seconds."""
urandom = os.urandom
"""So many bytes of entropy."""
getpid = os.getpid
"""This process."""
