"""Record replays: each is a run of its own that names its origin, in a spool file that is shipped nowhere."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from otel_agent_replay import settings
from otel_agent_replay.boundary import real
from otel_agent_replay.errors import UsageError
from otel_agent_replay.recording.tally import CHILD
from otel_agent_replay.recording.values import End, Note, NoteKind, RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.values import Json, Recording
    from otel_agent_replay.replay.answer import ReplaySession
    from otel_agent_replay.replay.report import Report
    from otel_agent_replay.replay.transcript import Transcript
    from otel_agent_replay.settings import Settings

_logger = logging.getLogger("otel_agent_replay")

MOST_DIVERGENCES = 20
"""So many are kept with the run, each as its report has it."""

_KEPT_ENTRY = ("kind", "module", "qualname", "file", "input", "method", "path", "target", "scope", "environ")
"""Of the entry of the origin: what it was called with. Where it began is no matter of a replay."""


class ReplayRecorder:
    """Records the replays of this process.

    Args:
        wanted: the settings of this process.

    Attributes:
        trouble: why something could not be written, last; empty for nothing.
    """

    def __init__(self, wanted: Settings) -> None:
        from otel_agent_replay.assembly import masking  # noqa: PLC0415 (only where a replay is recorded)
        from otel_agent_replay.telemetry import entropy, spool, world  # noqa: PLC0415
        from otel_agent_replay.telemetry.recorder import SpoolRecorder  # noqa: PLC0415

        self.settings = wanted
        self.trouble = ""
        self._masker, self._troubles = masking.made(wanted)
        self._writer = spool.SpoolWriter(
            wanted.spool, self._failed, limit=wanted.spool_limit, suffix=spool.REPLAY_SUFFIX
        )
        self._sink = SpoolRecorder
        self._entropy = entropy
        self._world: Mapping[str, Json] = world.describe_world(wanted, os.environ)
        self._end = world.describe_end

    def begin(self, session: ReplaySession, within: Transcript | None = None) -> Transcript:
        """Record a replay from now on.

        Args:
            session: what answers it.
            within: that of the replayed run that this one begins in.
        """
        recording = session.recording
        origin = recording.run
        run = RunRecord(
            trace_id=self._entropy.trace_id(),
            span_id=self._entropy.span_id(),
            parent_span_id=0,
            name=origin.name,
            started_ns=real.time_ns(),
            entry=_entry(recording, within),
            world={**self._world, "environment": origin.world.get("environment", {})},
        )
        masker = None
        if self._masker is not None:
            masker = self._masker.another()
            masker.begun(run)
        from otel_agent_replay.replay.transcript import Transcript  # noqa: PLC0415 (only where a replay is recorded)

        transcript = Transcript(run, self._sink(self._writer, masker, shown=False))
        for trouble in self._troubles:
            transcript.note(Note(NoteKind.FAULT, trouble, incomplete=False))
        session.record_as(transcript)
        return transcript

    def end(
        self, transcript: Transcript, outcome: Mapping[str, Json], result: Report, *, process: bool = False
    ) -> None:
        """A replay has ended as `outcome` says, and was judged. `process` has ended with it."""
        whole: dict[str, Json] = {**outcome, "replay": _result(result)}
        if process:
            whole.update(self._end(self.settings))
        finish(transcript, whole)
        if transcript.lost:
            result.warnings.append(f"this replay is not recorded: {self.trouble or 'a write failed'}")
        else:
            result.recorded_as = transcript.run.run_id

    def close(self) -> None:
        """End the spool file; a later replay begins another."""
        self._writer.close()

    def _failed(self, why: str) -> None:
        self.trouble = why


def finish(transcript: Transcript, outcome: dict[str, Json]) -> None:
    """End a transcript: whether the run raised is told by its exception or exit status, as of any run."""
    failed = "exception" in outcome or outcome.get("exit_status") not in (0, None)
    transcript.end(End.RAISED if failed else End.RETURNED, outcome)


def _entry(recording: Recording, within: Transcript | None) -> dict[str, Json]:
    """What the replay is an execution of: this process, or the origin's function or request."""
    origin = recording.run
    entry: dict[str, Json] = {name: origin.entry[name] for name in _KEPT_ENTRY if name in origin.entry}
    if entry.get("kind") in ("process", CHILD):
        entry["argv"] = list(sys.orig_argv)
    if within is not None:
        entry["within"] = {"run": within.run.run_id}
    return {**entry, "origin": origin.run_id}


def _result(result: Report) -> dict[str, Json]:
    """What came of it, for its own run: the report without what the run says already."""
    return {
        "verdict": str(result.judgement.verdict),
        "exit_code": result.exit_code,
        "reasons": list(result.judgement.reasons),
        "answered": result.answered,
        "crossings": result.crossings,
        "divergences": list(result.divergences[:MOST_DIVERGENCES]),
        "divergence_count": len(result.divergences),
    }


_shared: list[ReplayRecorder] = []
_lock = threading.Lock()
_told: set[str] = set()


def recorder(wanted: Settings) -> ReplayRecorder | str:
    """What records replays here, or why nothing can: one sentence."""
    try:
        return ReplayRecorder(wanted)
    except (UsageError, OSError) as error:
        return f"this replay is not recorded: {error}"


def shared(wanted: Settings) -> ReplayRecorder | None:
    """The recorder of all replays in this process: one spool file for a thousand of them. None where none can be made.

    Another home begins another; what the one before still writes begins a file of its own.
    """
    with _lock:
        if _shared and _shared[0].settings == wanted:
            return _shared[0]
        made = recorder(wanted)
        if isinstance(made, str):
            if made not in _told:
                _told.add(made)
                _logger.warning("%s", made)
            return None
        for before in _shared:
            before.close()
        _shared[:] = [made]
        return made


def wanted(given: bool | None, found: Settings, *, command: bool) -> bool:  # noqa: FBT001 (as the caller was asked)
    """Whether a replay is to be recorded.

    Args:
        given: what the caller asked for; None for nothing.
        found: the settings of this process.
        command: it is a replay of the command line, which is recorded unless somebody says otherwise; one in a
            program is not: tests would fill a home that nobody looks at.
    """
    if given is not None:
        return given
    if found.record_replays != settings.AUTO:
        return found.record_replays == "on"
    return command and found.mode != "off"
