"""A model server, everything patched, and a tape to record on and replay from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.shield import OTEL_AGENT_REPLAY_RAISE
from otel_agent_replay.instrument._patch import install
from otel_agent_replay.instrument.wired import LIBRARIES
from tests.instrument.model_server import ModelServer
from tests.instrument.tapes import RealTape, Tape

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from otel_agent_replay.recording.values import Note


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.stop()


@pytest.fixture
def release(server: ModelServer) -> Iterator[threading.Event]:
    """Lets go what the server holds back: a stream that is holding, an answer that is slow."""
    server.release.clear()
    yield server.release
    server.release.set()


@pytest.fixture(autouse=True)
def patched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Note]]:
    """Everything installed; faults are raised; no run in this process."""
    monkeypatch.setenv(OTEL_AGENT_REPLAY_RAISE, "1")
    assert lanes.current() is None
    notes: list[Note] = []
    uninstall = install(LIBRARIES, notes.append)
    if "unpatched" in request.fixturenames:
        uninstall()
    yield notes
    uninstall()
    assert notes == []


@pytest.fixture
def unpatched() -> None:
    """No library is patched in this test."""


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    return Tape(monkeypatch)


@pytest.fixture
def real_tape(monkeypatch: pytest.MonkeyPatch) -> RealTape:
    return RealTape(monkeypatch)
