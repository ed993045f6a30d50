"""Another day for a process of a test: a library, loaded before the C library, that moves the wall clock."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SHIFT = 40 * 86_400 + 5 * 3_600 + 7 * 60 + 11
"""Seconds that the wall clock of such a process is ahead: no field of a broken-down time stays what it was."""

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, clock, at);
    if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += SHIFT;
    return (int)failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def another_day(folder: Path) -> dict[str, str] | None:
    """What the environment of a process needs, so that it runs on another day; None where that cannot be had."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return None
    source, library = folder / "another_day.c", folder / "another_day.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", f"-DSHIFT={SHIFT}", "-o", library, source]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return {"LD_PRELOAD": str(library)}
