"""The key that masked values are digested under: made once in the home of this user's recordings, read by nobody else.

Without it nobody can try out guesses on a recording. A replay does not need it.
"""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import UsageError
from otel_agent_replay.telemetry import trust

if TYPE_CHECKING:
    from pathlib import Path

KEY_FILE = "mask.key"
"""Under the home; 32 bytes, mode 0600."""

SHORTEST = 16
"""Characters that a key given by a setting has at least."""


def given(secret: str, setting: str) -> bytes:
    """The key that a setting gives. Raises UsageError where it is too short to keep guesses out."""
    if len(secret) < SHORTEST:
        raise UsageError(
            f"{setting} has {len(secret)} characters, too few to keep a secret; give at least {SHORTEST}, or unset it."
        )
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32, person=b"mask key").digest()


def of_home(home: Path) -> tuple[bytes, str]:
    """The key of this home, made where there is none, and what is wrong with it; empty where nothing is.

    Where there can be none (a home that cannot be written, a file that others can read) this process has a key of
    its own: its tokens are then equal to no other process's.
    """
    key = trust.key(home, KEY_FILE)
    if key is not None:
        return key, ""
    return real.urandom(32), _why(home / KEY_FILE)


def _why(path: Path) -> str:
    try:
        status = path.lstat()
    except OSError:
        return f"{path} cannot be made, so masked values are equal within this process only"
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
        return f"{path} can be read by others, so it is not used; give it mode 0600, or remove it"
    return f"{path} is no key of this user, so it is not used; remove it"
