"""One process at a time has the embedded engine open: a lock file that says who holds it."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 30.0
"""Seconds to wait for the process that holds the lock."""

_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that has the engine open."""

    url: str
    """Of its ClickHouse HTTP interface; holds no token."""
    token_file: str
    """Where the token that allows writing is kept, for this user only."""


class EngineLock:
    """An advisory lock on a file, released when the process ends however it ends.

    The file is never removed: whoever waits for it has it open already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, patience: float = PATIENCE) -> None:
        """Wait at most `patience` seconds. Raises StoreError, which says who holds it, at once where a server does."""
        serving = self.acquire_or_find(patience)
        if serving is not None:
            raise StoreError(f"The embedded store is served at {serving.url} by {self.holder()}; use that, or stop it.")

    def acquire_or_find(self, patience: float = PATIENCE) -> Serving | None:
        """Wait at most `patience` seconds for the lock, or for a server to be found that holds it.

        Gives the server; None where the lock is held now. Raises StoreError, which says who holds it.
        """
        try:
            private_directory(self.path.parent)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"The store's lock {self.path} cannot be opened ({error.strerror}); "
                "name a directory that can be written in OTEL_AGENT_REPLAY_HOME."
            ) from error
        try:
            serving = self._wait(descriptor, real.monotonic() + patience, patience)
        except BaseException:
            os.close(descriptor)
            raise
        if serving is not None:
            os.close(descriptor)
            return serving
        self._descriptor = descriptor
        with suppress(OSError):  # the words are a courtesy: a full disk must not keep anybody out
            self._write({})
        return None

    def announce(self, serving: Serving) -> None:
        """Say that this process, which holds the lock, serves the store. Raises OSError."""
        self._write({"serve": {"url": serving.url, "token_file": serving.token_file}})

    def _write(self, more: dict[str, object]) -> None:
        assert self._descriptor is not None
        holder = {"pid": real.getpid(), "command": " ".join(sys.argv)[:200], **more}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, orjson.dumps(holder), 0)

    def release(self) -> None:
        """Let the next process have it. Twice is harmless."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def _wait(self, descriptor: int, deadline: float, patience: float) -> Serving | None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if (serving := self._serving()) is not None:
                    return serving
                if real.monotonic() >= deadline:
                    raise StoreError(
                        f"The embedded store is in use by {self.holder()} and was not free within {patience:g} s; "
                        "try again when that has ended."
                    ) from None
                real.sleep(_PAUSE)
            else:
                return None

    def _serving(self) -> Serving | None:
        """The server that says it holds the lock."""
        try:
            served = orjson.loads(self.path.read_bytes())["serve"]
            return Serving(str(served["url"]), str(served["token_file"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def holder(self) -> str:
        """Who holds the lock, in words."""
        try:
            written = orjson.loads(self.path.read_bytes())
            return f"process {written['pid']} ({written['command']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


def private_directory(path: Path) -> None:
    """Make a directory, and those above it, for this user only. What is there stays as it is. Raises OSError."""
    if path.is_dir():
        return
    if path.parent != path:
        private_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
