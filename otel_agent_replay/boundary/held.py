"""Whether a file has an owner: who holds an advisory lock on it for as long as it lives."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_held(path: Path) -> bool:
    """Whether somebody holds an exclusive lock on a file; where nobody can tell it counts as held.

    Raises FileNotFoundError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
