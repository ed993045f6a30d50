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
from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.errors import AgentReplayError
from otel_agent_replay.telemetry.shipping import destination
from otel_agent_replay.telemetry.shipping.delivery import StoppedError
from otel_agent_replay.telemetry.shipping.ledger import Ledger
from otel_agent_replay.telemetry.shipping.receivers import connect
from otel_agent_replay.telemetry.shipping.shipper import Shipper

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

LEFT_FOR = 600.0
"""Seconds after the last write for which a file is left to those who ship where its process shipped to."""


def main(asked: str) -> None:
    """Run until there is nothing more to do. `asked` is JSON: `home`, `destination` (its name), `batch_bytes`."""
    said: dict[str, Any] = json.loads(asked)
    ledger = Ledger(Path(said["home"]))
    try:
        to = destination.read(os.environ)
        if to is not None:
            _Worker(ledger, to, int(said["batch_bytes"])).run()
    except AgentReplayError as error:
        ledger.say_failing(said["destination"], str(error))
    except Exception as error:  # nobody else hears of it; what its text holds may be no business of a log
        ledger.say_failing(said["destination"], f"the process that ships failed: {type(error).__name__}")
        raise


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
                patience = GIVES_UP if self._shipper.stuck else LINGERS
                if not moved and real.monotonic() - self._live > patience:
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
            if origin is None:  # it may yet be said
                return ""
            named = self._origins[path.name] = origin.destination
        return named

    def _ignored(self, path: Path) -> bool:
        """Files of processes that had no receiver: those stay until somebody asks for them."""
        return not self._destination(path)

    def _wanted(self, path: Path, written: bool) -> bool:  # noqa: FBT001 (as the shipper calls it)
        """Files of this destination, and what another one has had nobody for, long after their processes ended."""
        named = self._destination(path)
        if named == self._to.name:
            if written:
                self._live = real.monotonic()
            return True
        if written or not named:
            return False
        left_ns = real.time_ns() - path.stat().st_mtime_ns
        return left_ns > LEFT_FOR * 1e9 and not self._ledger.is_served(named)

    def _stopped(self) -> bool:
        """Nobody records any more, and nothing has got through for long. Asked while nothing gets through."""
        now = real.monotonic()
        if now - self._looked > 1:
            self._looked = now
            for path in self._ledger.files():
                if self._ignored(path):
                    continue
                try:
                    self._wanted(path, is_held(path))
                except FileNotFoundError:
                    continue
        return now - self._live > GIVES_UP or not self._ledger.spool.is_dir()
