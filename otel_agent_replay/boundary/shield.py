"""The one door through which a fault of ours is swallowed while recording. A replay is never shielded.

Recording must not hurt the agent: what goes wrong here is logged once for each place, counted, and noted in
the run, which is then incomplete. With OTEL_AGENT_REPLAY_RAISE set (the tests set it) it is raised instead.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from otel_agent_replay.boundary.handlers import came_out_of
from otel_agent_replay.recording.values import Note, NoteKind
from otel_agent_replay.recording.variables import beginning

if TYPE_CHECKING:
    from collections.abc import Callable

OTEL_AGENT_REPLAY_RAISE = "OTEL_AGENT_REPLAY_RAISE"
"""Set to anything: faults of the recorder are raised into the program. For its own tests."""

_logger = logging.getLogger("otel_agent_replay")
_seen: set[str] = set()


def fault(where: str, error: BaseException, note: Callable[[Note], None] | None = None) -> None:
    """Swallow `error`, which happened in our own code at `where`.

    Raises:
        BaseException: `error` itself, under OTEL_AGENT_REPLAY_RAISE; and what the handler of a signal has raised, which
            is the program's.
    """
    if os.environ.get(OTEL_AGENT_REPLAY_RAISE) or came_out_of(error) is not None:
        raise error
    if where not in _seen:
        _seen.add(where)
        _logger.warning("recording is incomplete: %s failed: %s: %s", where, type(error).__name__, error)
    if note is not None:
        note(Note(NoteKind.FAULT, beginning(f"{where}: {type(error).__name__}: {error}", 300)))
