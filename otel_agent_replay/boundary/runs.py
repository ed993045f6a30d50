"""Runs that begin inside a process: a function marked as one, a request that is served.

The assembly says how a run begins here; where it says nothing, there are no runs.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.recording.values import Raised, Returned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.values import Json, Outcome


class Begun(Protocol):
    """A run that has begun."""

    lane: Lane
    """Its root lane."""

    def declare(self, values: dict[str, Json]) -> None:
        """Add to how it ended, such as the response that was sent."""

    def end(self, outcome: Outcome) -> None:
        """It ended; what it returned is its declared outcome, where it declared none."""


class Runs(Protocol):
    """Begins runs."""

    def begin(self, name: str, entry: dict[str, Json], parent: tuple[int, int] | None) -> Begun | None:
        """Begin a run; None where code here belongs to no recording and no replay.

        Args:
            name: what the run is called.
            entry: how to call it again; `kind` and what that kind needs.
            parent: trace id and span id of the caller in another service, which the run then shares.
        """


_runs: list[Runs] = []


def install(runs: Runs) -> None:
    """Let `runs` begin the runs of this process, in place of what did before."""
    _runs[:] = [runs]


@contextmanager
def begun(name: str, entry: dict[str, Json], parent: tuple[int, int] | None = None) -> Iterator[Begun | None]:
    """A run around the body; None where there is nothing to record or answer it."""
    run = _runs[0].begin(name, entry, parent) if _runs else None
    if run is None:
        yield None
        return
    token = LANE.set(run.lane)
    leave = run.lane.enter() if run.lane.enter is not None else None
    outcome: Outcome = Returned(None)
    try:
        yield run
    except BaseException as error:
        outcome = Raised(error)
        raise
    finally:
        LANE.reset(token)
        if leave is not None:
            leave()
        run.end(outcome)
