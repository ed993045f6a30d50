"""The real clock and the real entropy: the named door for our own code.

Made when this module is first imported, which is before anything is patched; so it stays real whatever is
recorded or replayed, and nothing read here becomes part of a run. Twins, for a function that the program holds too
may be changed itself.
"""

from __future__ import annotations

import os
import time

from otel_agent_replay.boundary.twins import twin

time_ns = twin(time.time_ns)
"""Nanoseconds since the epoch."""
monotonic = twin(time.monotonic)
"""Seconds of a clock that never goes back."""
perf_counter_ns = twin(time.perf_counter_ns)
"""Nanoseconds of the finest clock."""
thread_time_ns = twin(time.thread_time_ns)
"""Nanoseconds that this thread has run."""
sleep = twin(time.sleep)
"""Wait for so many seconds."""
urandom = twin(os.urandom)
"""So many bytes of entropy."""
getpid = twin(os.getpid)
"""This process."""
