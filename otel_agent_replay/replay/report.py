"""What came of a replay, as plain data and as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.recording import hashing
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass
from otel_agent_replay.recording.values import End, NoteKind
from otel_agent_replay.replay.expectation import Judgement, Verdict, judge, not_started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_agent_replay.recording.values import Json
    from otel_agent_replay.replay.answer import ReplaySession
    from otel_agent_replay.replay.crossing import Pinned
    from otel_agent_replay.replay.expectation import Expectation

DIVERGENCE = "DivergenceError"
"""Name of the exception that a program ends with where it does not swallow a divergence."""

PINNED_TEXT = 1 << 20
"""Characters of what was asked that stand beside a call which was answered by its place."""

UNCONSUMED_REMEDY = "A call went away: if that is meant, give an expectation with --expect; else put the call back."


@dataclass(slots=True)
class Report:
    """The end of a replay."""

    run_id: str
    judgement: Judgement
    divergences: list[dict[str, Json]] = field(default_factory=list)
    """What was raised into the program, then what was never asked for."""
    text: list[str] = field(default_factory=list)
    """The divergences as text."""
    moved: list[Json] = field(default_factory=list)
    """Calls found in another lane of the same name."""
    new_readings: list[Json] = field(default_factory=list)
    """Call sites that the recording does not know, answered with a derived value."""
    unread: list[Json] = field(default_factory=list)
    """Recorded readings never asked for."""
    notes: list[Json] = field(default_factory=list)
    answered: int = 0
    crossings: int = 0
    outcome: dict[str, Json] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    recorded_as: str | None = None
    """Id of the run that this replay is recorded as; None where it is not."""
    pinned: list[Json] = field(default_factory=list)
    """Divergences that were answered by their place all the same, where that was asked for."""

    @property
    def exit_code(self) -> int:
        return self.judgement.verdict.exit_code

    def as_json(self) -> dict[str, Json]:
        """Plain data for ``--report``."""
        return {
            "run_id": self.run_id,
            "trace_id": self.run_id.partition("-")[0],
            "verdict": str(self.judgement.verdict),
            "exit_code": self.exit_code,
            "reasons": list(self.judgement.reasons),
            "divergences": list(self.divergences),
            "answered": self.answered,
            "crossings": self.crossings,
            "moved": self.moved,
            "new_readings": self.new_readings,
            "unread": self.unread,
            "notes": self.notes,
            "outcome": self.outcome,
            "warnings": list(self.warnings),
            "recorded_as": self.recorded_as,
            **({"pinned": self.pinned} if self.pinned else {}),
        }

    def lines(self) -> list[str]:
        """What a person is told, a line each."""
        lines = list(self.text)
        lines.extend(
            f"moved: {move['asked']} was answered from {move['recorded_lane']}"
            for move in self.moved
            if isinstance(move, dict)
        )
        lines.extend(f"new: {site}" for site in self.new_readings)
        lines.extend(f"not read again: {site}" for site in self.unread)
        lines.extend(f"warning: {warning}" for warning in self.warnings)
        verdict = {
            Verdict.HOLDS: "replayed: the program ends as expected",
            Verdict.FAILS: "replayed, but the program does not end as expected",
            Verdict.CANNOT_JUDGE: "diverged" if self.divergences else "replayed, but cannot be judged",
        }[self.judgement.verdict]
        reasons = f" ({'; '.join(self.judgement.reasons)})" if self.judgement.reasons else ""
        lines.append(
            f"{self.run_id}: {verdict}{reasons}; {self.answered} of {self.crossings} calls answered, none live"
        )
        if self.recorded_as is not None:
            lines.append(f"recorded as {self.recorded_as}")
        return lines


def unconsumed(session: ReplaySession) -> list[Divergence]:
    """A divergence for each recorded call that completed and was never asked for."""
    return [
        Divergence(
            DivergenceClass.UNCONSUMED, None, record.position, "recorded, and never asked for", (), UNCONSUMED_REMEDY
        )
        for record in session.unconsumed()
    ]


def report(
    sessions: Sequence[ReplaySession],
    outcome: dict[str, Json],
    expected: Sequence[Expectation],
    *,
    partial: bool = False,
) -> Report:
    """Judge a replay that has ended as `outcome` says.

    Args:
        sessions: the replayed run, then the runs that it began.
        outcome: how the program ended now.
        expected: explicit expectations, if there are any.
        partial: recorded calls that were never made are no divergence.
    """
    main = sessions[0]
    raised = [divergence for session in sessions for divergence in session.divergences]
    # A program cut short by a divergence did not come to ask the rest: that is no finding of its own.
    cut_short = bool(raised) and DIVERGENCE in str(outcome.get("exception"))
    left = [] if partial or cut_short else [divergence for session in sessions for divergence in unconsumed(session)]
    judgement = judge(
        main.recording.run.outcome,
        outcome,
        diverged=bool(raised),
        unconsumed=len(left),
        ended=main.recording.run.end is not End.UNFINISHED,
        expected=expected,
        bound=main.bound,
    )
    answered = sum(session.answered for session in sessions)
    if judgement.verdict is not Verdict.HOLDS and not raised and not answered:
        why = not_started(main.recording.run.outcome, outcome)
        if why is not None:
            judgement, left = Judgement(Verdict.CANNOT_JUDGE, [why]), []
    found = [*raised, *left]
    return Report(
        run_id=main.recording.run.run_id,
        judgement=judgement,
        divergences=[divergence.as_json() for divergence in found],
        text=[str(divergence) for divergence in found],
        moved=[{"asked": str(asked), "recorded_lane": lane} for session in sessions for asked, lane in session.moved],
        new_readings=[
            line
            for session in sessions
            for line in (
                *session.readings.new(),
                *(f"{position}, from what it wrote" for position in session.unrecorded),
            )
        ],
        unread=[] if cut_short else [line for session in sessions for line in session.unread()],
        notes=[[str(note.kind), note.what, note.where] for session in sessions for note in session.notes],
        answered=answered,
        crossings=sum(len(session.matcher) for session in sessions),
        outcome=outcome,
        pinned=[_pinned(each) for session in sessions for each in session.pinned],
        warnings=[
            warning for session in sessions for warning in _warnings(session, held=judgement.verdict is Verdict.HOLDS)
        ],
    )


def _pinned(each: Pinned) -> Json:
    texts: Json = {"recorded": each.recorded[:PINNED_TEXT], "asked": each.asked[:PINNED_TEXT]}
    return {**each.divergence.as_json(), "site": each.site, "texts": texts}


def _warnings(session: ReplaySession, *, held: bool) -> list[str]:
    """Why this replay may not show everything."""
    recording = session.recording
    noted = [f"not captured when recorded: {note.what}" for note in recording.notes if note.incomplete]
    raced = [note.what for note in recording.notes if note.kind is NoteKind.OBSERVED and not held]
    hashed = None if held else hashing.differs(recording.run.world)
    noted += [hashed] if hashed is not None else []
    files = [
        f"{name} is not what it was; the replay reads it as it was recorded (OTEL_AGENT_REPLAY_FILES_EXCLUDE leaves "
        "a file to the disk)"
        for name in sorted(session.changed.values())
    ]
    if session.variables:
        files.append(
            f"{', '.join(sorted(session.variables))} of the environment: other values here than those that were "
            "recorded, which the replay gives (--free environment gives those that are here)"
        )
    return [*files, *recording.missing, *noted, *(f"the recorded order may not be exact: {what}" for what in raced)]
