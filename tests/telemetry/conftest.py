from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.boundary import shield

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def faults_raise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fault of the recorder fails the test that it happens in; each test starts with none said."""
    monkeypatch.setenv(shield.OTEL_AGENT_REPLAY_RAISE, "1")
    before = set(shield._seen)
    shield._seen.clear()
    yield
    shield._seen.update(before)
