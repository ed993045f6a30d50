"""Replay inside a living process: the code in a `with` block is answered from a recording, nothing else is.

with replay(run_id) as replayed:
    my_agent()
print(replayed.report.lines())
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from otel_agent_replay import settings
from otel_agent_replay.assembly import patches, replays
from otel_agent_replay.assembly.answers import Answers
from otel_agent_replay.assembly.ending import run_outcome
from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording.values import Raised, Returned
from otel_agent_replay.replay.record import RecordSession
from otel_agent_replay.replay.report import Report, report, unconsumed
from otel_agent_replay.store import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from otel_agent_replay.recording.divergence import Divergence
    from otel_agent_replay.replay.answer import ReplaySession


class Replayed:
    """A replay in this context; see `replay`.

    Attributes:
        report: what came of it; None until the block has ended.
    """

    def __init__(
        self,
        wanted: str,
        *,
        partial: bool = False,
        strict: bool = False,
        free: Iterable[str] = (),
        record: bool | None = None,
    ) -> None:
        self._wanted = wanted
        self._strict = strict
        self._free = tuple(free)
        self._partial = partial
        self._record = record
        self._recorder: replays.ReplayRecorder | None = None
        self._answers: Answers | None = None
        self._token: Any = None
        self.report: Report | None = None

    @property
    def session(self) -> ReplaySession:
        """The session that answers. Raises RuntimeError outside of the block."""
        if self._answers is None:
            raise RuntimeError("this replay has not begun; enter it with `with`")
        return self._answers.main

    @property
    def divergences(self) -> Sequence[Divergence]:
        """What was raised into the program, so far."""
        return self.session.divergences

    def openai_client(self, **options: Any) -> Any:
        """An `openai.OpenAI` that is answered by this replay wherever it is used, also without its context."""
        from otel_agent_replay.instrument import clients  # noqa: PLC0415 (only where asked for)

        return clients.openai_client(self.session.root, **options)

    def async_openai_client(self, **options: Any) -> Any:
        """The same for `openai.AsyncOpenAI`."""
        from otel_agent_replay.instrument import clients  # noqa: PLC0415

        return clients.async_openai_client(self.session.root, **options)

    def anthropic_client(self, **options: Any) -> Any:
        """The same for `anthropic.Anthropic`."""
        from otel_agent_replay.instrument import clients  # noqa: PLC0415

        return clients.anthropic_client(self.session.root, **options)

    def async_anthropic_client(self, **options: Any) -> Any:
        """The same for `anthropic.AsyncAnthropic`."""
        from otel_agent_replay.instrument import clients  # noqa: PLC0415

        return clients.async_anthropic_client(self.session.root, **options)

    def __enter__(self) -> Self:
        self._begin(find.load_for_replay(settings.read(), self._wanted))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    async def __aenter__(self) -> Self:
        self._begin(await asyncio.to_thread(find.load_for_replay, settings.read(), self._wanted))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def _begin(self, loaded: find.Loaded) -> None:
        self._answers = Answers(loaded.recordings, loaded.run_id, strict=self._strict, free=self._free)
        self._answers.main.apart = True
        found = settings.read()
        if replays.wanted(self._record, found, command=False):
            self._recorder = replays.shared(found)
        if self._recorder is not None:
            self._answers.record(self._recorder)
        patches.choose(self._answers.main.recording.run.world)
        self._unpatch = patches.install(self._answers.main.note)
        outer = lanes.current()
        if outer is not None and isinstance(outer.session, RecordSession):
            outer.session.flush()  # no frame remembers any more where its readings are kept
        self._token = LANE.set(self._answers.main.root)

    def _end(self, error: BaseException | None) -> None:
        session = self.session
        LANE.reset(self._token)
        session.order.finish()
        self._unpatch()
        # How the process ended is another matter than how this block did: only the calls are judged here.
        outcome = session.recording.run.outcome
        if session.declared:
            outcome = {**outcome, "declared": dict(session.declared)}
        self.report = report([session], outcome, [], partial=self._partial)
        if self._recorder is not None and session.transcript is not None:
            ended = run_outcome(session.declared, Returned(None) if error is None else Raised(error))
            self._recorder.end(session.transcript, ended, self.report)
        if error is not None:
            return
        if session.divergences:
            raise DivergenceError(session.divergences[0])
        left = [] if self._partial else unconsumed(session)
        if left:
            raise DivergenceError(left[0])


def replay(
    run_id: str,
    *,
    partial: bool = False,
    strict: bool = False,
    free: Iterable[str] = (),
    record: bool | None = None,
) -> Replayed:
    """Answer the calls of a block from a recording: `with` or `async with`, many at once, each in its context.

    Args:
        run_id: a run id, a trace id, a unique beginning of one, or ``latest``.
        partial: the block is a part of the program: recorded calls that it does not make are no divergence.
        strict: a reading of the clock or of entropy that was not recorded is a divergence.
        free: what is left to this machine though it was recorded: ``process`` (commands), ``filesystem``, ``human``,
            ``machine``, ``environment``.
        record: record this replay too, as a run of its own; by default as OTEL_AGENT_REPLAY_RECORD_REPLAYS says, and
            not at all where that says nothing. Its id is `report.recorded_as`.

    Raises:
        RecordingError: the run is unknown or unreadable.
        DivergenceError: in the block, where a call has no recorded answer; at its end, where one was swallowed
            or a recorded call was never made.
    """
    return Replayed(run_id, partial=partial, strict=strict, free=free, record=record)
