"""What the forked children of a replayed process were answered, told to the process that is judged.

Each child has a copy of the sessions: what it takes from the recording, its parent would count as never asked for.
So a child writes a line for each crossing that it was answered and for each divergence, and the parent reads them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.divergence import Difference, Divergence, DivergenceClass, Position

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_agent_replay.recording.values import Json
    from otel_agent_replay.replay.answer import ReplaySession

PATIENCE = 3.0
"""Seconds that the end of a replay waits for children that its program did not wait for."""

_PROCESS = "/process:"

_open, _write, _close = os.open, os.write, os.close


class Elsewhere:
    """The lines of one replay.

    Args:
        path: of a file that is this replay's alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = real.getpid()
        self._read = 0

    def answered(self, run_id: str, span_id: int) -> None:
        """A crossing was answered; nothing to say where that is the process that is judged."""
        if real.getpid() != self._pid:
            self._say({"run": run_id, "span": f"{span_id:016x}"})

    def diverged(self, run_id: str, divergence: Divergence) -> None:
        """The same for a divergence."""
        if real.getpid() != self._pid:
            self._say({"run": run_id, "divergence": divergence.as_json()})

    def collect(self, sessions: Sequence[ReplaySession]) -> None:
        """Take over what the children have told, and wait a little for those that still run."""
        until = real.monotonic() + PATIENCE
        while True:
            self._collect(sessions)
            waiting = any(_PROCESS in each.position.lane for session in sessions for each in session.unconsumed())
            if not waiting or real.monotonic() >= until:
                return
            real.sleep(0.02)

    def _collect(self, sessions: Sequence[ReplaySession]) -> None:
        by_run = {session.recording.run.run_id: session for session in sessions}
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            said: dict[str, Any] = json.loads(line)
            session = by_run.get(said["run"])
            if "divergence" in said:
                (session or sessions[0]).divergences.append(_divergence(said["divergence"]))
            elif session is not None and session.matcher.take(int(said["span"], 16)):
                session.answered += 1

    def _say(self, said: dict[str, Json]) -> None:
        with suppress(OSError):
            descriptor = _open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _write(descriptor, json.dumps(said).encode() + b"\n")
            finally:
                _close(descriptor)


def _divergence(said: dict[str, Any]) -> Divergence:
    return Divergence(
        DivergenceClass(said["kind"]),
        Position(**said["asked"]) if said["asked"] else None,
        Position(**said["nearest"]) if said["nearest"] else None,
        said["summary"],
        tuple(Difference(**each) for each in said["differences"]),
        said["remedy"],
        tuple(said["details"]),
    )
