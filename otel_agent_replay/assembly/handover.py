"""What a replaying command hands to the process that it starts: environment variables and two files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "OTEL_AGENT_REPLAY_HANDOVER"
"""Path of the handover file; set only by the replaying command, for its child."""

STARTED_BY = "OTEL_AGENT_REPLAY_STARTED_BY"
"""Process id and run of the recorded program; set by its recorder, for the commands that it starts."""


@dataclass(frozen=True, slots=True)
class Handover:
    """How a process is to be replayed."""

    recording: str
    """Path of a spool file that holds the run, and the runs that it began."""
    run_id: str
    report: str
    """Path that the child writes its report to."""
    expected: tuple[str, ...] = ()
    stop_at: str = ""
    home: str = ""
    """Directory of the local state that the replay is recorded in; empty where it is not recorded."""
    strict: bool = False
    """Whether a reading that was not recorded is a divergence."""
    free: tuple[str, ...] = ()
    """What is captured beside calls and is left to this machine all the same; see `Session.captured`."""
    taken: str = ""
    """Path of the file that the first process of the replay creates: the others stay offline."""
    pins: bool = False
    """A call that asks something else is answered by its place all the same, and told of."""
    disturbance: str = ""
    """What is made different in the process on purpose; see `disturbance`."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Handover:
        """Read what `write` wrote. Raises OSError, ValueError."""
        values = json.loads(path.read_text("utf-8"))
        return cls(**{**values, "expected": tuple(values["expected"]), "free": tuple(values["free"])})
