"""Makes a process different on purpose, in what no program should depend on."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

COLLECT_OFTEN: Final = "collect-often"
COLLECT_NEVER: Final = "collect-never"
SWITCH_OFTEN: Final = "switch-often"

_MADE: dict[str, Callable[[], None]] = {
    COLLECT_OFTEN: lambda: gc.set_threshold(20, 2, 2),
    COLLECT_NEVER: gc.disable,
    SWITCH_OFTEN: lambda: sys.setswitchinterval(1e-6),
}


def disturb(how: str) -> None:
    """Let the garbage collector or the threads run otherwise; nothing where `how` is empty."""
    if how:
        _MADE[how]()
