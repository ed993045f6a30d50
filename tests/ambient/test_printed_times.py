"""Times that libraries put before what the program prints are part of its output, and those of the recording."""

from __future__ import annotations

import pytest

PROGRAMS = {
    "rich": """
from rich.console import Console

console = Console(width=100)
for number in range(3):
    console.log("step", number)
    time.sleep(1.1)
""",
    "structlog": """
import structlog

log = structlog.get_logger()
for number in range(3):
    log.info("step", number=number)
    time.sleep(0.01)
""",
    "loguru": """
import sys
from loguru import logger

logger.remove()
logger.add(sys.stdout, format="{time:YYYY-MM-DD HH:mm:ss.SSSSSS} {message}")
for number in range(3):
    logger.info("step {}", number)
    time.sleep(0.01)
""",
}


@pytest.mark.parametrize("library", PROGRAMS)
def test_they_come_again(bench, library) -> None:
    out = bench.record("import time\n" + PROGRAMS[library])
    assert out.count("step") == 3

    replayed = bench.replay()

    assert (replayed.code, replayed.out) == (0, out), replayed.err
