"""One HTTP attempt of a replay, served from the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_agent_replay.boundary.session import Answer
from otel_agent_replay.recording.values import End

if TYPE_CHECKING:
    from otel_agent_replay.boundary.session import Turn
    from otel_agent_replay.recording.values import Attempt, WireHead
    from otel_agent_replay.replay.crossing import ReplayedCrossing


class ReplayedExchange:
    """One HTTP attempt, being answered.

    Args:
        crossing: the call that it is made for.
        attempt: what answers it.
        kept: what the transcript holds of it; None where the replay has none.
    """

    def __init__(self, crossing: ReplayedCrossing, attempt: Attempt, kept: Attempt | None = None) -> None:
        self._crossing = crossing
        self._attempt = attempt
        self._kept = kept
        self._read = 0
        """Chunks."""
        parked = crossing.exchange_turn(attempt)
        if parked is None and attempt.head is None and attempt.error is None:
            raise crossing.unanswered()
        if kept is not None and crossing.kept is not None:
            crossing.kept.served(kept, attempt)
        self.answer: Answer | None = Answer(
            head=attempt.head,
            chunks=attempt.chunks,
            error=crossing.error_of(attempt),
            left=attempt.end in (End.ABANDONED, End.UNFINISHED),
            parked=parked,
        )

    def head(self, head: WireHead) -> None:
        """The head is that of the recording."""

    def chunk(self, data: bytes) -> None:
        self._read += 1

    def end(self, how: End, error: BaseException | None = None) -> None:
        if self._kept is not None and self._crossing.kept is not None:
            self._crossing.kept.stream_ended(self._kept, self._attempt, how, self._read)

    def chunk_turn(self, index: int) -> Turn | None:
        return self._crossing.chunk_turn(self._attempt, index)
