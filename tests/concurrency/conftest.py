"""Everything patched while a test runs, and sessions that a test runs code in."""

from __future__ import annotations

import contextvars
import faulthandler
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.shield import OTEL_AGENT_REPLAY_RAISE
from otel_agent_replay.instrument import concurrency
from tests.concurrency.tiny import Recorder, Replayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60
"""Seconds after which a test that hangs is given up, on a busy machine."""


@pytest.fixture(autouse=True)
def unpatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    monkeypatch.setenv(OTEL_AGENT_REPLAY_RAISE, "1")
    uninstall = concurrency.install()
    yield uninstall
    uninstall()


def inside(session: Any, program: Callable[[], Any]) -> Any:
    """Run a program in the first lane of a session, in a thread of its own; gives what it gives."""
    outcome: list[Any] = []

    def run() -> None:
        lanes.LANE.set(session.root)
        try:
            outcome.append((True, program()))
        except BaseException as error:
            outcome.append((False, error))
        finally:
            lanes.LANE.set(lanes.OUTSIDE)
            session.order.finish()

    thread = threading.Thread(target=contextvars.Context().run, args=(run,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not outcome:
        faulthandler.dump_traceback(sys.__stderr__)
    assert outcome, "the program hangs"
    returned, value = outcome[0]
    if returned:
        return value
    raise value


def record(program: Callable[[], Any], *, strict: bool = True) -> tuple[Any, Recorder]:
    """Run a program, recorded."""
    session = Recorder(strict=strict)
    return inside(session, program), session


def replay(program: Callable[[], Any], recorded: Recorder) -> tuple[Any, Replayer]:
    """Run a program, answered from what was recorded."""
    session = Replayer(recorded.tape())
    return inside(session, program), session


def keys(session: Recorder) -> list[tuple[str, str]]:
    """Lane, without its beginning, and key of each completion, in the order that the program saw."""
    seen = sorted((event for event in session.events if event[3] >= 0), key=lambda event: event[3])
    return [(lane.rpartition("/")[2], key) for lane, key, _, _ in seen]
