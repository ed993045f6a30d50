"""Shows that a recording was made by this user, here: only such a recording's command is run without being asked.

The key lies in the home of this user's recordings; who cannot read it can sign nothing, so a recording that came
from elsewhere, or whose command or directory was changed, does not verify.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KEY_FILE = "trust.key"
"""Under the home; 32 bytes that only this user may read."""

_KEY_BYTES = 32


def sign(home: Path, run_id: str, argv: Sequence[str], cwd: str) -> str:
    """The signature of a run's command and directory: 64 hex digits; empty where no key can be made."""
    own = key(home)
    return "" if own is None else hmac.digest(own, _message(run_id, argv, cwd), "sha256").hex()


def verify(home: Path, run_id: str, argv: Sequence[str], cwd: str, signature: str) -> bool:
    """Whether `sign` gave this signature for the same run with this user's key."""
    own = key(home, make=False)
    if own is None or not signature:
        return False
    expected = hmac.digest(own, _message(run_id, argv, cwd), "sha256").hex()
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def _message(run_id: str, argv: Sequence[str], cwd: str) -> bytes:
    """Each part with its length before it, so that no two commands give the same message."""
    parts = [os.fsencode(part) if _is_native(part) else part.encode("utf-8", "surrogatepass") for part in argv]
    parts = [run_id.encode("utf-8", "surrogatepass"), cwd.encode("utf-8", "surrogatepass"), *parts]
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


def _is_native(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def key(home: Path, name: str = KEY_FILE, *, make: bool = True) -> bytes | None:
    """The key of this name; None where there is none, or where others could have read it or put it there."""
    path = home / name
    for _ in range(2):
        found = _read(path)
        if found is not None or not make:
            return found
        _make(home, path)
    return None


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        found = os.read(descriptor, _KEY_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found if len(found) == _KEY_BYTES else None


def _make(home: Path, path: Path) -> None:
    """Make the key, whole from the first moment that it has its name; whoever is first wins."""
    draft = home / f".{path.name}.{real.getpid()}.{real.urandom(6).hex()}"
    with suppress(OSError):
        home.mkdir(0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, real.urandom(_KEY_BYTES))
        finally:
            os.close(descriptor)
        with suppress(OSError):
            os.link(draft, path)
    with suppress(OSError):
        draft.unlink()
