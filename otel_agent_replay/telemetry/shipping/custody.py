"""What stands in a recorded process: it says who records a file, and sees to it that somebody ships.

No thread, no client: a look at a lock once a second, while frames are written, is all. A fork needs nothing here,
for the child's next frame begins a file of its own.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.telemetry.shipping.ledger import Ledger, Origin, make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from otel_agent_replay.recording.values import Json
    from otel_agent_replay.telemetry.shipping.destination import Destination

_logger = logging.getLogger("otel_agent_replay")

FILE_BYTES = 64 << 20
"""Bytes after which a process that ships begins another file, so that the first can go once it is shipped."""

LOOKS_EVERY = 1.0
"""Seconds between two looks at whether somebody ships …"""
LOOKS_AT_LEAST_EVERY = 60.0
"""… and at most, where those that were started did not live."""

FAILING_FOR = 90.0
"""Seconds for which it is believed that nothing gets through: whoever ships says so again more often than that."""

SETTLING = 0.02
"""Seconds between two looks at whether the last frames are shipped."""

_CODE = """\
import json, os, sys
os.closerange(4, 1 << 16)
sys.path += [each for each in json.loads(sys.argv[1]) if each not in sys.path]
from otel_agent_replay.telemetry.shipping import worker
worker.main(sys.argv[2])
"""
# What the program listens at is not held open, and what lies beside the program does not stand in for a library.
_LOCK = 3
"""The descriptor that the started process holds the lock by."""
_SHELL = "/bin/sh"

# Bound once: what records or replaces these is not about the process that ships.
_spawn, _wait, _open, _close, _stat = os.posix_spawn, os.waitpid, os.open, os.close, os.stat


class Custody:
    """Takes care that what this process records is shipped. No method raises.

    Args:
        home: of the recordings.
        destination: where frames go; None where the spool is their destination.
        resource: the attributes of the process's resource.
        batch_bytes: of a request, at most.
        forked: gives the attributes of a forked child's resource; none where they are its parent's.
    """

    def __init__(
        self,
        home: Path,
        destination: Destination | None,
        resource: Mapping[str, Json],
        batch_bytes: int,
        forked: Callable[[], Mapping[str, Json]] = dict,
    ) -> None:
        self._ledger = Ledger(home)
        self._to = destination
        self._resource = resource
        self._forked = forked
        self._batch_bytes = batch_bytes
        self._look_at = 0.0
        self._wait = LOOKS_EVERY
        self._files: list[str] = []
        self._pid = real.getpid()
        self._told: set[str] = set()

    @property
    def file_bytes(self) -> int:
        """Bytes after which a file is ended; 0 for never."""
        return FILE_BYTES if self._to is not None else 0

    def begins(self, name: str) -> None:
        """A spool file is about to be made."""
        if self._pid != real.getpid():
            self._pid, self._files, self._look_at = real.getpid(), [], 0.0
            with suppress(Exception):  # its parent's does
                self._resource = self._forked() or self._resource
        with suppress(Exception):  # shipped it says less; recording goes on
            self._ledger.describe(name, Origin(self._resource, self._to.name if self._to is not None else ""))
        self._files.append(name)
        del self._files[:-8]

    def wrote(self) -> None:
        """Something was written."""
        if self._to is not None and real.monotonic() >= self._look_at:
            self._look(self._to)

    def settle(self, seconds: float) -> bool:
        """Wait until what this process has written is shipped, at most so long. Whether it is.

        Where nothing gets through at present nothing is waited for: it ships with a later process.
        """
        if self._to is None or not self._files:
            return True
        self._look(self._to)
        until = real.monotonic() + seconds
        while not (done := all(map(self._shipped, self._files))):
            if real.monotonic() >= until or self._ledger.failing(self._to.name, since=FAILING_FOR):
                break
            real.sleep(SETTLING)
        self._report(self._to)
        return done

    def _shipped(self, name: str) -> bool:
        try:
            size = _stat(self._ledger.spool / name).st_size
        except OSError:
            return True
        return self._ledger.progress(name).offset >= size

    def _look(self, to: Destination) -> None:
        """See that somebody ships; start somebody where nobody does."""
        self._look_at = real.monotonic() + self._wait
        try:
            make_private(self._ledger.folder)
            lock = _open(self._ledger.folder / f"{to.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._wait = LOOKS_EVERY
                return
            else:
                self._start(lock)
                self._wait = min(2 * self._wait, LOOKS_AT_LEAST_EVERY)
            finally:
                _close(lock)
        except Exception as error:  # noqa: BLE001 (what is not shipped now is shipped later; the agent goes on)
            self._wait = LOOKS_AT_LEAST_EVERY
            self._tell(f"nothing is shipped for now ({error}); `agent-replay ship` ships what is recorded")
        self._report(to)

    def _start(self, lock: int) -> None:
        """Start a process that ships and is nobody's child: the shell between, where there is one, is waited for.

        It inherits the lock, and from standard input to standard error nothing.
        """
        if not sys.executable:
            raise OSError("no Python interpreter is known")
        asked = json.dumps({"home": str(self._ledger.home), "batch_bytes": self._batch_bytes})
        line = [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path), asked]
        shell = os.access(_SHELL, os.X_OK)
        if shell:
            line = [_SHELL, "-c", '"$@" &', "sh", *line]
        null = os.devnull
        actions = [
            (os.POSIX_SPAWN_DUP2, lock, _LOCK),
            (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, null, os.O_WRONLY, 0),
        ]
        if lock == _LOCK:
            os.set_inheritable(lock, True)  # noqa: FBT003 (as the library has it)
            del actions[0]
        try:
            child = _spawn(line[0], line, dict(os.environ), file_actions=actions, setsid=True)
        except NotImplementedError:  # a system that knows no sessions here
            child = _spawn(line[0], line, dict(os.environ), file_actions=actions)
        if shell:
            with suppress(ChildProcessError):
                _wait(child, 0)

    def _report(self, to: Destination) -> None:
        """Say once what keeps frames of this process from being stored."""
        why = self._ledger.failing(to.name, since=FAILING_FOR)
        if why:
            self._tell(f"nothing gets through to {to.where} ({why}); recorded runs wait in {self._ledger.spool}")
        for name in self._files:
            if (self._ledger.refused / name).exists():
                self._tell(f"{to.where} refuses frames; they are in {self._ledger.refused}, with the reasons")

    def _tell(self, sentence: str) -> None:
        kind = sentence.partition("(")[0]
        if kind not in self._told:
            self._told.add(kind)
            _logger.warning("shipping: %s", sentence)
