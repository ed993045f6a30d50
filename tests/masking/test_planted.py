"""Credentials are planted wherever a program meets one; none may be found in what is written, sent or stored."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.variables import TOKEN
from otel_agent_replay.store.clickhouse import Engine
from tests.masking.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.values import Recording

PROGRAM = Path(__file__).with_name("program.py")
BIN = Path(sys.executable).parent

ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
WORD = st.text(ALNUM, min_size=12, max_size=20).filter(lambda word: any(letter.isdigit() for letter in word))


def shaped(before: str, size: int, letters: str = ALNUM) -> st.SearchStrategy[str]:
    return st.text(letters, min_size=size, max_size=size).map(lambda rest: before + rest)


JWT = st.tuples(WORD, WORD, WORD).map(lambda parts: "eyJ" + ".eyJ".join(parts[:2]) + "." + parts[2])
PEM = st.lists(st.text(ALNUM + "+/", min_size=64, max_size=64), min_size=2, max_size=4).map(
    lambda lines: "-----BEGIN PRIVATE KEY-----\n" + "\n".join(lines) + "\n-----END PRIVATE KEY-----"
)
SHAPED = st.one_of(
    shaped("sk-proj-", 32), shaped("sk-ant-api03-", 40), shaped("AKIA", 16, UPPER), shaped("AIza", 35),
    shaped("ghp_", 36), shaped("github_pat_", 60), shaped("xoxb-", 30), JWT,
)  # fmt: skip
"""What is found by its shape, wherever it stands, and stands for itself everywhere."""

ANYWHERE = [
    "argv",
    "prompt",
    "nested",
    "answer",
    "argument",
    "split",
    "streamed",
    "claude",
    "escaped",
    "input",
    "outcome",
    "binary",
    "error",
    "item",
    "attribute",
    "event",
    "status",
    "link",
    "log",
    "reading",
    "stdout",
    "declared",
    "note",
]
BY_NAME = ["header", "url", "query", "named", "basic", "cookie", "form", "granted", "given", "config"]


def secrets() -> st.SearchStrategy[dict[str, str]]:
    """One for each place, no two the same."""
    texts = st.one_of(SHAPED, PEM)
    found: dict[str, Any] = dict.fromkeys(ANYWHERE, SHAPED) | dict.fromkeys(BY_NAME, WORD)
    found |= dict.fromkeys(("outcome", "input", "prompt", "error"), texts)
    return st.fixed_dictionaries(found).filter(lambda made: len(set(made.values())) == len(made))


class Agent:
    """The program in a folder of its own, recorded and replayed there."""

    def __init__(self, bench: Any, server: Server, planted: dict[str, str]) -> None:
        self.bench = bench
        self.server = server
        self.planted = planted
        bench.base_url = server.url
        bench.environment = {
            "OPENAI_API_KEY": f"sk-proj-{planted['argv'][-12:]}0123456789",
            "ANTHROPIC_API_KEY": f"sk-ant-{planted['argv'][-12:]}0123456789",
            "CONFIG_URL": f"postgres://me:{planted['config']}@db.test/x",
            "OTEL_AGENT_REPLAY_ENVIRONMENT": "CONFIG_URL",
            "DECISIONS": str(bench.folder / "decisions.json"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_AGENT_REPLAY_CAPTURE": "process,human,machine",  # what is planted comes out of a file
            "OTEL_AGENT_REPLAY_SHIP": "off",  # what is shipped is what the spool holds, and that is looked at
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "otlp",
            "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "true",
            "OTEL_RESOURCE_ATTRIBUTES": f"deploy.note={planted['note']}",
            "OTEL_BLRP_SCHEDULE_DELAY": "200",
        }

    def record(self, *options: str) -> str:
        shutil.copy(PROGRAM, self.bench.folder / "program.py")
        self.plant(self.planted)
        line = [BIN / "opentelemetry-instrument", sys.executable, "program.py", "--api-key", self.planted["argv"]]
        done = self.bench.run(*line, *options)
        assert done.returncode == 0, done.stderr
        assert "incomplete" not in done.stderr, done.stderr
        return done.stdout

    def plant(self, found: dict[str, str]) -> None:
        (self.bench.folder / "secrets.json").write_text(json.dumps(found))

    @property
    def decisions(self) -> Any:
        return json.loads((self.bench.folder / "decisions.json").read_text())

    @property
    def every(self) -> dict[str, str]:
        keys = {name: self.bench.environment[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
        return self.planted | keys

    def spool(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.bench.folder / "home" / "spool").iterdir()))

    def recordings(self) -> list[Recording]:
        frames = [item for item in scan(self.spool()) if isinstance(item, Frame)]
        return list(assemble(frames).values())

    def stored(self) -> Iterator[bytes]:
        """Every row of every table, once the spool is loaded."""
        assert self.bench.runs()
        engine = Engine(f"chdb://{self.bench.folder / 'home' / 'store'}")
        try:
            tables = [
                str(row[0]) for row in engine.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")
            ]
            for table in tables:
                if table.endswith("_view"):
                    continue
                yield from (str(row[0]).encode() for row in engine.rows(f"SELECT toString(tuple(*)) FROM `{table}`"))
        finally:
            engine.close()


def forms(secret: str) -> set[bytes]:
    """How a secret may stand in bytes."""
    plain = {secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret))[3:-3], quote(secret, safe="")}
    data = {form.encode() for form in plain}
    if "\n" in secret:
        data |= {line.encode() for line in secret.split("\n")[1:-1]}
    return data


def leaks(planted: dict[str, str], data: bytes) -> list[str]:
    decoded = [base64.b64decode(found[: len(found) // 4 * 4]) for found in _BASE64.findall(data)]
    data = b"\n".join([data, *decoded])
    return [name for name, secret in planted.items() if any(form in data for form in forms(secret))]


_BASE64 = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{16,}(?![A-Za-z0-9+/])")


def everything(recording: Recording) -> bytes:
    """A recording as it is read: contents joined, bodies whole, and what the pieces of streams say joined."""
    parts: list[object] = [recording.run, recording.notes, recording.readings]
    told: list[str] = []
    for crossing in recording.crossings:
        parts += [crossing.input, crossing.outcome, crossing.items, crossing.attributes, crossing.name]
        for attempt in crossing.attempts:
            request = attempt.request
            body = b"".join(attempt.chunks)
            parts += [request.method, request.url, request.headers, request.body, attempt.head, body, attempt.error]
            told += re.findall(r'"(?:content|text|arguments)": ?"((?:[^"\\]|\\.)*)"', body.decode("utf-8", "replace"))
            parts += [json.loads(f'"{text}"') for text in told]
    texts = [part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in parts]
    return "\n".join([*texts, "".join(told), "".join(json.loads(f'"{text}"') for text in told)]).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server({})
    yield made
    made.stop()


def check(agent: Agent) -> None:
    every = agent.every
    assert leaks(every, agent.spool()) == []
    recordings = agent.recordings()
    assert [found for recording in recordings for found in leaks(every, everything(recording))] == []
    for path, bodies in agent.server.exported.items():
        assert bodies, path
        assert leaks(every, b"\n".join(bodies)) == [], path
    assert leaks(every, b"\n".join(agent.stored())) == []


@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
    database=None,
)
@given(first=secrets(), second=secrets())
def test_no_planted_credential_is_written_sent_or_stored(
    bench: Any, server: Server, first: dict[str, str], second: dict[str, str]
) -> None:
    for folder in ("home", "decisions.json"):
        path = bench.folder / folder
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for bodies in server.exported.values():
        bodies.clear()
    server.secrets = first
    agent = Agent(bench, server, first)
    agent.record()
    (recording,) = agent.recordings()
    assert recording.complete, (recording.missing, recording.notes)
    assert recording.run.outcome["masked"]
    recorded = agent.decisions
    check(agent)

    # On a machine that has no key, no server, and other credentials where the program looks for them.
    (bench.folder / "decisions.json").unlink()
    (bench.folder / "home" / "mask.key").unlink()
    agent.plant(second)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CONFIG_URL"):
        del bench.environment[name]
    bench.environment = {name: value for name, value in bench.environment.items() if not name.startswith("OTEL_")}
    bench.base_url = "http://127.0.0.1:9"
    env = {name: value for name, value in bench.env.items() if name not in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
    replayed = bench.replay(env=env)
    assert (replayed.code, replayed.divergences) == (0, []), replayed.report
    assert agent.decisions == recorded


def test_what_is_masked_is_counted(bench: Any, server: Server) -> None:
    planted = {name: f"sk-proj-{name}{'0' * 24}" for name in (*ANYWHERE, *BY_NAME)}
    server.secrets = planted
    Agent(bench, server, planted).record()
    (listed,) = bench.runs()
    assert listed["masked"] > 20
    shown = json.loads(bench.run(BIN / "agent-replay", "show", "latest", "--json").stdout)
    assert shown["run"]["masked"] == listed["masked"] == sum(shown["outcome"]["masked"].values())
    line = next(
        line
        for line in bench.run(BIN / "agent-replay", "show", "latest").stdout.splitlines()
        if line.startswith("masked")
    )
    assert line.split()[1:3] == [str(listed["masked"]), "values"]
    assert f"{shown['outcome']['masked']['openai-key']} openai-key" in line


def test_equal_values_have_equal_tokens(bench: Any, server: Server) -> None:
    same = "sk-proj-" + "7" * 30
    planted = dict.fromkeys((*ANYWHERE, *BY_NAME), same)
    server.secrets = planted
    agent = Agent(bench, server, planted)
    agent.record("--declare")
    (recording,) = agent.recordings()
    tokens = set(re.findall(rb"masked\.[a-z-]+\.([0-9a-f]{20})", everything(recording)))
    keys = {bench.environment[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
    assert len(tokens) == 1 + len(keys)
    assert TOKEN.search(str(recording.run.outcome["declared"]))
    check(agent)
