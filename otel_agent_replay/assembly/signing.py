"""Which recordings this user made here: only their commands and entries are run unasked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from otel_agent_replay.telemetry import trust

if TYPE_CHECKING:
    from pathlib import Path

    from otel_agent_replay.recording.values import RunRecord

SIGNATURE = "signature"
"""Where the signature stands in a run's world."""


def sign(home: Path, run: RunRecord) -> None:
    """Sign what a replay would run: the command or entry, the interpreter, and the directory."""
    run.world[SIGNATURE] = trust.sign(home, run.run_id, _what(run), str(run.world.get("directory")))


def is_own(home: Path, run: RunRecord) -> bool:
    """Whether this user signed it with the key of this home, and nothing of it was changed since."""
    signature = run.world.get(SIGNATURE)
    directory = str(run.world.get("directory"))
    return isinstance(signature, str) and trust.verify(home, run.run_id, _what(run), directory, signature)


def _what(run: RunRecord) -> list[str]:
    return [str(run.world.get("executable")), json.dumps(run.entry, sort_keys=True)]
