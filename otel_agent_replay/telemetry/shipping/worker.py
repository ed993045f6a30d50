"""The process that ships: one for each home and destination, started by whoever records there.

It lives as long as somebody records in its home, and then until all is shipped or nothing gets through any more. It
holds a lock that was taken by whoever started it, so there is never a second one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import AgentReplayError
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.ledger import Ledger, is_written
from otel_agent_replay.telemetry.shipping.receivers import connect
from otel_agent_replay.telemetry.shipping.shipper import Shipper, StoppedError

if TYPE_CHECKING:
    from otel_agent_replay.telemetry.shipping.destination import Destination

POLL = 0.1
"""Seconds between two looks at files that are being written …"""
SLOWEST_POLL = 0.5
"""… and at most, while nothing is written."""

LINGERS = 2.0
"""Seconds that it waits for another process to record, once everything is shipped."""

GIVES_UP = 60.0
"""Seconds that it goes on once nobody records any more and nothing gets through; the next process ships the rest."""


def main(asked: str) -> None:
    """Run until there is nothing more to do. `asked` is JSON: `home`, `batch_bytes`."""
    said: dict[str, Any] = json.loads(asked)
    ledger = Ledger(Path(said["home"]))
    to = None
    try:
        to = destination.read(os.environ)
        if to is not None:
            _Worker(ledger, to, int(said["batch_bytes"])).run()
    except AgentReplayError as error:
        if to is not None:
            ledger.say_failing(to.name, str(error))


class _Worker:
    def __init__(self, ledger: Ledger, to: Destination, batch_bytes: int) -> None:
        self._ledger = ledger
        self._to = to
        self._live = real.monotonic()
        """When somebody was last seen to record."""
        self._looked = 0.0
        self._origins: dict[str, str] = {}
        self._receiver = connect(to)
        self._shipper = Shipper(ledger, self._receiver, to.name, batch_bytes=batch_bytes, stopped=self._stopped)

    def run(self) -> None:
        self._ledger.sweep()
        poll = POLL
        try:
            while self._ledger.spool.is_dir():
                moved = self._shipper.round(self._wanted, self._ignored)
                if not moved and real.monotonic() - self._live > LINGERS:
                    break
                poll = POLL if moved else min(poll * 1.3, SLOWEST_POLL)
                real.sleep(poll)
        except StoppedError:
            pass
        finally:
            self._receiver.close()

    def _destination(self, path: Path) -> str:
        named = self._origins.get(path.name)
        if named is None:
            origin = self._ledger.origin(path.name)
            named = self._origins[path.name] = origin.destination if origin is not None else ""
        return named

    def _ignored(self, path: Path) -> bool:
        """Files of processes that had no receiver: those stay until somebody asks for them."""
        return not self._destination(path)

    def _wanted(self, path: Path, written: bool) -> bool:  # noqa: FBT001 (as the shipper calls it)
        """Files that are written for this destination, and leftovers of processes that shipped anywhere."""
        named = self._destination(path)
        if written and named == self._to.name:
            self._live = real.monotonic()
        return named == self._to.name if written else bool(named)

    def _stopped(self) -> bool:
        """Nobody records any more, and nothing has got through for long. Asked while nothing gets through."""
        now = real.monotonic()
        if now - self._looked > 1:
            self._looked = now
            for path in self._ledger.files():
                if self._ignored(path):
                    continue
                try:
                    self._wanted(path, is_written(path))
                except FileNotFoundError:
                    continue
        return now - self._live > GIVES_UP or not self._ledger.spool.is_dir()
