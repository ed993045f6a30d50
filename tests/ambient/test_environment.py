"""Credentials of the environment are recorded by name and answered where there are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.instrument.libraries import environment
from otel_agent_replay.instrument.libraries import process as process_id


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "api_key",
        "APIKEY",
        "GITHUB_TOKEN",
        "TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_PASSWORD",
        "PGPASSWD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "CLIENT_SECRET",
        "SECRET_KEY",
        "MY_PRIVATE_KEY",
        "HF_TOKENS",
    ],
)
def test_names_of_credentials(name):
    assert environment.is_credential(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "MAX_TOKENS_PER_CALL",
        "MAX_TOKENS",
        "OPENAI_MAX_OUTPUT_TOKENS",
        "NUM_TOKENS",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "SECRETARY",
        "LANG",
        "",
        "MONKEY",
        "XAUTHORITY",
    ],
)
def test_other_names(name):
    assert not environment.is_credential(name)


READS = {
    "getenv": lambda name: os.getenv(name),
    "get": lambda name: os.environ.get(name),
    "item": lambda name: os.environ[name] if name in os.environ else None,  # noqa: SIM401 (another way to read it)
    "default": lambda name: os.environ.get(name, None),
    "bytes": lambda name: (lambda value: value.decode() if value is not None else None)(os.getenvb(name.encode())),
}


@pytest.mark.parametrize("read", READS)
def test_a_laptop_without_the_key_replays(read, ambient, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-live")
    monkeypatch.delenv("OTHER_API_KEY", raising=False)
    recording = ambient()
    with recording.here():
        assert READS[read]("SOME_API_KEY") == "sk-live" and READS[read]("OTHER_API_KEY") is None
        assert os.environ["PATH"]
    assert recording.credentials == {"SOME_API_KEY": True, "OTHER_API_KEY": False}
    monkeypatch.delenv("SOME_API_KEY")
    with ambient(recording).here():
        assert READS[read]("SOME_API_KEY") == "placeholder" and READS[read]("OTHER_API_KEY") is None
    assert READS[read]("SOME_API_KEY") is None


def test_errors_and_changes_are_those_of_a_mapping(ambient, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-live")
    recording = ambient()
    with recording.here():
        os.environ.get("SOME_API_KEY")
    monkeypatch.delenv("SOME_API_KEY")
    with ambient(recording).here():
        with pytest.raises(KeyError, match="NEVER_API_KEY"):
            os.environ["NEVER_API_KEY"]
        with pytest.raises(KeyError, match="NOWHERE"):
            os.environ["NOWHERE"]
        with pytest.raises(KeyError):
            del os.environ["NOWHERE"]
        with pytest.raises(TypeError):
            os.environ[3]
        assert os.environ.get("NEVER_API_KEY", "x") == "x" and "SOME_API_KEY" in os.environ
        assert os.environ.pop("SOME_API_KEY", None) == "placeholder"
        os.environ["SOME_API_KEY"] = "its own"
        try:
            assert os.environ["SOME_API_KEY"] == "its own"
            assert dict(os.environ)["SOME_API_KEY"] == "its own"
        finally:
            del os.environ["SOME_API_KEY"]


def test_watched_names_are_asked_for_too(ambient, monkeypatch):
    monkeypatch.setenv("PLAN_NAME", "gold")
    environment.watch(["PLAN_NAME"])
    try:
        recording = ambient()
        with recording.here():
            assert os.environ["PLAN_NAME"] == "gold"
        assert recording.credentials == {"PLAN_NAME": True}
    finally:
        environment._named.clear()
        environment._judged.clear()


def test_it_goes_out_again():
    kind = type(os.environ)
    before = kind.__getitem__, kind.__setitem__, kind.__delitem__
    undo = environment.install()
    assert kind.__getitem__ is not before[0]
    undo()
    assert (kind.__getitem__, kind.__setitem__, kind.__delitem__) == before


def test_telemetry_reads_its_own(ambient, monkeypatch):
    from opentelemetry.sdk.resources import OTELResourceDetector

    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b")
    environment.watch(["OTEL_RESOURCE_ATTRIBUTES"])
    try:
        recording = ambient()
        with recording.here():
            OTELResourceDetector().detect()
        assert recording.credentials == {}
    finally:
        environment._named.clear()
        environment._judged.clear()


def test_the_process_id_is_recorded_for_the_program_only(ambient):
    recording = ambient()
    with recording.here():
        assert os.getpid() == os.getpid()
    assert recording.sources() == {"process:getpid": 2}
    for values in recording.values.values():
        values[:] = [4_000_000 for _ in values]

    def run():
        return os.getpid(), os.getpid()

    first = ambient()
    with first.here():
        run()
    for values in first.values.values():
        values[:] = [4_000_000]
    replay = ambient(first)
    with replay.here():
        assert run() == (4_000_000, 4_000_000)
        assert (
            subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout.strip() == b"1"
        )


def test_a_signal_to_itself_reaches_itself(ambient):
    def pid():
        return os.getpid()

    recording = ambient()
    with recording.here():
        pid()
    for values in recording.values.values():
        values[:] = [4_000_001]
    got = []
    before = signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    try:
        with ambient(recording).here():
            own = pid()
            assert own == 4_000_001
            os.kill(own, signal.SIGUSR1)
            assert os.getpgid(own) == os.getpgrp()
            psutil = sys.modules.get("psutil")
            assert psutil is None or psutil.Process(own).pid != own
    finally:
        signal.signal(signal.SIGUSR1, before)
        process_id._recorded.clear()
    assert got == [1]
    with pytest.raises(ProcessLookupError):
        os.kill(4_000_001, 0)
    assert LANE.get() is None
