"""What a recorded process does so that somebody ships, in processes that are not as most are."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from otel_agent_replay.telemetry.shipping import custody, destination
from otel_agent_replay.telemetry.spool import SpoolWriter


def eventually(holds) -> None:
    until = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < until, "it never held"
        time.sleep(0.05)


def children() -> set[str]:
    """Process ids of what this process has started and not waited for; other tests may have left some."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(status.parent.name)
    return found


@pytest.fixture
def recorded(home, servers):
    """Records a run in this process, which has a receiver, in the environment that it has just now."""
    server = servers("grpc")
    to = destination.read(home.to(server, "grpc").environ)
    assert to is not None

    def record() -> object:
        keeps = custody.Custody(home.path, to, {"service.name": "shop"}, 3_500_000)
        recorder = home.recorder()
        recorder.writer = SpoolWriter(home.path / "spool", recorder.faults.append, custody=keeps)
        run = recorder.start()
        run.call("tool:t", "one")
        run.end()
        recorder.close()
        assert not recorder.faults
        return server

    return record


def test_what_the_program_does_to_its_environment_does_not_move_the_receiver(home, recorded, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    server = recorded()
    eventually(lambda: not home.files())
    assert server.inbox.spans


def test_without_a_shell_the_program_gets_no_child(home, recorded, monkeypatch) -> None:
    monkeypatch.setattr(custody, "_SHELL", "/nowhere/sh")
    before = children()
    server = recorded()
    assert children() <= before
    eventually(lambda: not home.files())
    assert server.inbox.spans


@pytest.mark.parametrize("how", ["frozen", "embedded", "nameless"])
def test_what_is_no_interpreter_is_not_started(home, recorded, monkeypatch, caplog, how: str) -> None:
    """It would be the agent once more."""
    again, other = home.path.parent / "again", home.path.parent / ("python3" if how == "frozen" else "agent")
    other.write_text(f"#!/bin/sh\ntouch {again}\n")
    other.chmod(0o700)
    monkeypatch.setattr(sys, "executable", None if how == "nameless" else str(other))
    monkeypatch.setattr(sys, "frozen", how == "frozen", raising=False)
    recorded()
    monkeypatch.undo()
    assert "no Python interpreter" in caplog.text
    assert not again.exists()
    assert home.command("ship")["waiting"] == 0
