"""What a recorded and a replayed call have in common: how it ended, what is kept of it, which call it was made in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from otel_agent_replay.boundary.session import was_cancelled
from otel_agent_replay.recording.values import End, Ended, Raised, Returned
from otel_agent_replay.recording.variables import beginning

if TYPE_CHECKING:
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.divergence import Position
    from otel_agent_replay.recording.values import Attempt, CrossingRecord, Outcome

M = TypeVar("M")

LINE = 500
"""Characters that are kept of an error which is raised again by who raised it, or which no recording holds."""


def end_of(outcome: Outcome) -> End:
    """How a call ended that gave `outcome`; a caller that was cancelled, or left a generator, abandoned it."""
    if isinstance(outcome, Returned):
        return End.RETURNED
    if isinstance(outcome, Ended):
        return End.ENDED
    left = was_cancelled(outcome) or (isinstance(outcome, Raised) and isinstance(outcome.error, GeneratorExit))
    return End.ABANDONED if left else End.RAISED


def line_of(error: BaseException) -> str:
    """An error as a line for people to read."""
    return beginning(f"{type(error).__name__}: {error}", LINE)


def item_key(position: Position) -> str:
    """What the items of a generator are called in the order of its run, in the lane that called it."""
    return f"item:{position.key}#{position.ordinal}"


def enclosing(lane: Lane | None, kind: type[M]) -> M | None:
    """The call of this kind that a lane runs inside, however deep its tasks and threads nest."""
    while lane is not None:
        if isinstance(lane.mark, kind):
            return lane.mark
        lane = lane.parent
    return None


def as_it_stands(record: CrossingRecord) -> CrossingRecord:
    """A copy of a record whose attempts another thread may still add to, whole as far as it goes."""
    return replace(record, attempts=list(map(_attempt_as_it_stands, list(record.attempts))))


def _attempt_as_it_stands(attempt: Attempt) -> Attempt:
    offsets = list(attempt.offsets)  # a chunk has its offset after it is there
    count = len(offsets)
    return replace(attempt, chunks=attempt.chunks[:count], offsets=offsets, seqs=attempt.seqs[:count])
