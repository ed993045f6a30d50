"""The only place that knows every part: it builds sessions from settings."""

from __future__ import annotations

import logging
import os

from otel_agent_replay import settings
from otel_agent_replay.assembly.handover import VARIABLE
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.errors import AgentReplayError

_logger = logging.getLogger("otel_agent_replay")


def start() -> None:
    """Record this process, unless the settings say otherwise or it is a replay.

    Called by `opentelemetry-instrument` before any instrumentation is loaded, so that ours is innermost: the
    spans of others stay around a call, recorded or replayed. Never raises: the program runs in any case.
    """
    if VARIABLE in os.environ:
        return
    try:
        wanted = settings.read()
        if wanted.mode == "off":
            return
        from otel_agent_replay.assembly import record  # noqa: PLC0415 (only where something is recorded)

        record.start(wanted)
    except AgentReplayError as error:
        _logger.warning("not recording: %s", error)
    except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
        fault("starting to record", error)
