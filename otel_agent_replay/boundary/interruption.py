"""Calls that ended because the handler of a signal raised into them: in a replay they wait until it does again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_agent_replay.boundary.completions import NEVER, Completion
from otel_agent_replay.boundary.handlers import raised_by, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.regate import ReplayGate


class Interruption(Completion):
    """Where the handler of a signal raised into a call: waits until it does again. Never comes by itself.

    Args:
        place: of the signal.
        error: what the call, or its attempt, raised then; None where that is not known.
        unbroken: makes what is raised where the handler returns, or is not called at all.
    """

    __slots__ = ("_unbroken", "_was", "signal")

    def __init__(
        self,
        gate: ReplayGate,
        lane: Lane,
        place: int,
        error: BaseException | None,
        unbroken: Callable[[], BaseException],
    ) -> None:
        super().__init__(gate, lane, "signal", place, NEVER)
        self.signal = place
        self._was = error
        self._unbroken = unbroken

    def fails(self) -> None:
        """Nothing raises here. Called with the gate's lock held."""
        self.error = self._unbroken()

    def wait(self) -> None:
        made: BaseException | None = None
        try:
            super().wait()
        except BaseException as error:
            made = error if raised_by(error) is None else told(self._was, error)
            if made is error:
                raise
        try:
            if made is not None:
                raise made
            if self.error is not None:
                raise self.error
        finally:
            del made  # no reference cycle through the traceback

    async def wait_async(self) -> None:
        await super().wait_async()
        if self.error is not None:
            raise self.error
