"""`opentelemetry-instrument` with us installed: real launcher, real processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay import environment_variables, settings
from otel_agent_replay.telemetry.distro import choose_exporters

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCHER = Path(sys.executable).with_name("opentelemetry-instrument")
LIMIT = 60

PROBE = """
import json, os, random, sys
from opentelemetry import trace
provider = trace.get_tracer_provider()
span = trace.get_tracer("t").start_span("s")
print(json.dumps({
    "environ": {k: v for k, v in os.environ.items() if k.startswith("OTEL_") or k == "PYTHONHASHSEED"},
    "provider": type(provider).__module__,
    "ids": type(getattr(provider, "id_generator", None)).__name__,
    "exporters": [type(p).__name__ for p in provider._active_span_processor._span_processors],
    "loaded": sorted(m for m in sys.modules if m.startswith(("opentelemetry.exporter", "grpc", "google.protobuf"))),
    "hash": hash("a"),
}))
"""


def environment(home: Path, **values: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHONHASHSEED", "COV"))
    }
    return {**kept, settings.OTEL_AGENT_REPLAY_HOME: str(home), settings.OTEL_AGENT_REPLAY_MODE: "off", **values}


def probe(home: Path, *flags: str, **values: str) -> dict[str, object]:
    done = subprocess.run(
        [str(LAUNCHER), *flags, sys.executable, "-c", PROBE],
        env=environment(home, **values),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    found["stderr"] = done.stderr
    return found


@contextmanager
def collectors() -> Iterator[list[socket.socket]]:
    """What would see a connection to the default ports of a collector; those that are free here."""
    with ExitStack() as stack:
        found = []
        for port in (4317, 4318):
            listening = stack.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                listening.bind(("127.0.0.1", port))
                listening.listen()
                listening.settimeout(0.05)
                found.append(listening)
        yield found


def test_without_an_endpoint_nothing_is_exported(tmp_path: Path) -> None:
    with collectors() as listening:
        first, second = probe(tmp_path), probe(tmp_path)
        for one in listening:
            with pytest.raises(TimeoutError):
                one.accept()
    environ = first["environ"]
    assert isinstance(environ, dict)
    assert {environ[f"OTEL_{signal}_EXPORTER"] for signal in ("TRACES", "METRICS", "LOGS")} == {"none"}
    assert environ["OTEL_PYTHON_DISTRO"] == environ["OTEL_PYTHON_CONFIGURATOR"] == "agent_replay"
    assert (first["provider"], first["ids"]) == ("opentelemetry.sdk.trace", "EntropyIdGenerator")
    assert first["exporters"] == []
    loaded = first["loaded"]
    assert isinstance(loaded, list)
    assert [name for name in loaded if "otlp" in name or name.startswith(("grpc", "google"))] == []
    assert 1 <= int(environ["PYTHONHASHSEED"]) <= 2**32 - 1
    assert first["hash"] != second["hash"]
    assert first["stderr"] == ""


def test_what_the_user_sets_is_left_alone(tmp_path: Path) -> None:
    found = probe(
        tmp_path,
        "--distro",
        "other",
        "--agent_replay_name",
        "night-agent",
        PYTHONHASHSEED="7",
        OTEL_TRACES_EXPORTER="console",
        OTEL_PYTHON_ID_GENERATOR="random",
    )
    environ = found["environ"]
    assert isinstance(environ, dict)
    assert environ["PYTHONHASHSEED"] == "7"
    assert environ["OTEL_AGENT_REPLAY_NAME"] == "night-agent"
    assert environ["OTEL_TRACES_EXPORTER"] == "console"
    assert (found["ids"], found["exporters"]) == ("RandomIdGenerator", ["BatchSpanProcessor"])


def test_with_an_endpoint_traces_go_there(tmp_path: Path) -> None:
    found = probe(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_TIMEOUT="0.1",
    )
    environ = found["environ"]
    assert isinstance(environ, dict)
    assert [environ[f"OTEL_{signal}_EXPORTER"] for signal in ("TRACES", "METRICS", "LOGS")] == ["otlp", "none", "none"]
    assert found["exporters"] == ["BatchSpanProcessor"]


@pytest.mark.parametrize(
    "values",
    [{"OTEL_TRACES_EXPORTER": "nowhere"}, {"OTEL_CONFIG_FILE": "/nowhere.yaml"}],
    ids=["an exporter that is not installed", "a configuration file that cannot be read"],
)
def test_a_setting_that_cannot_be_followed_costs_the_export_only(tmp_path: Path, values: dict[str, str]) -> None:
    found = probe(tmp_path, **values)
    assert (found["provider"], found["ids"]) == ("opentelemetry.sdk.trace", "EntropyIdGenerator")
    lines = str(found["stderr"]).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("OpenTelemetry could not be set up, so nothing is exported: ")


def test_the_end_of_the_program_is_not_held_up(tmp_path: Path) -> None:
    program = (
        "import atexit, time\n"
        "from opentelemetry import trace\n"
        "with trace.get_tracer('t').start_as_current_span('s'): pass\n"
        "print(time.time(), flush=True)\n"
    )
    done = subprocess.run(
        [str(LAUNCHER), sys.executable, "-c", program],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert time.time() - float(done.stdout) < 3  # an exporter without a collector takes ten seconds and more


def test_another_distro_beside_ours_does_not_win(tmp_path: Path) -> None:
    package = tmp_path / "site" / "aaa_distro-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: aaa-distro\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[opentelemetry_distro]\nother = other_distro:Distro\n"
        "[opentelemetry_configurator]\nother = other_distro:Configurator\n"
    )
    (tmp_path / "site" / "other_distro.py").write_text("raise RuntimeError('the other distro was loaded')\n")
    found = probe(tmp_path / "home", PYTHONPATH=str(tmp_path / "site"))
    assert (found["provider"], found["ids"]) == ("opentelemetry.sdk.trace", "EntropyIdGenerator")
    assert "the other distro was loaded" not in str(found["stderr"])


def test_every_setting_is_offered_as_a_flag(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(LAUNCHER), "--help"], env=environment(tmp_path), capture_output=True, text=True, timeout=LIMIT, check=True
    )
    names = [name for name in vars(settings) if name.startswith("OTEL_AGENT_REPLAY_")]
    assert len(names) >= 6
    for name in names:
        assert f"--{name.removeprefix('OTEL_').lower()} " in done.stdout


def test_only_the_launcher_changes_the_environment(tmp_path: Path) -> None:
    program = (
        "import os; before = dict(os.environ); import otel_agent_replay.environment_variables as module; "
        "assert dict(os.environ) == before; assert module.OTEL_AGENT_REPLAY_HOME == 'OTEL_AGENT_REPLAY_HOME'"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(tmp_path), timeout=LIMIT, check=True)


def test_what_the_launcher_prepares() -> None:
    environ = {"PYTHONHASHSEED": "random", "OTEL_PYTHON_DISTRO": "mine"}
    environment_variables.prepare(environ)
    assert environ["OTEL_PYTHON_DISTRO"] == "mine"
    assert environ["OTEL_PYTHON_CONFIGURATOR"] == "agent_replay"
    assert 1 <= int(environ["PYTHONHASHSEED"]) <= 2**32 - 1
    seeds = set()
    for _ in range(20):
        fresh: dict[str, str] = {}
        environment_variables.prepare(fresh)
        seeds.add(fresh["PYTHONHASHSEED"])
    assert len(seeds) == 20
    fixed = {"PYTHONHASHSEED": "0"}
    environment_variables.prepare(fixed)
    assert fixed["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, ("none", "none", "none")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x"}, ("otlp", "none", "none")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ("none", "none", "none")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "x"}, ("otlp", "none", "none")),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "x"}, ("none", "otlp", "none")),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "x", "OTEL_LOGS_EXPORTER": "console"}, ("none", "none", "console")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_TRACES_EXPORTER": "none"}, ("none", "none", "none")),
    ],
)
def test_exporters(given: dict[str, str], chosen: tuple[str, str, str]) -> None:
    environ = dict(given)
    choose_exporters(environ)
    assert tuple(environ[f"OTEL_{signal}_EXPORTER"] for signal in ("TRACES", "METRICS", "LOGS")) == chosen
