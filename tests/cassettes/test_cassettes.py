"""Exchanges that real agents had with model APIs: recorded through the real SDKs, replayed with no server.

The recordings of other projects lie outside this one (see `corpus.DATA`); without them the tests are skipped. What
the program prints while it is recorded is held against the cassettes themselves, so that a recorder that changes
what an agent sees is found; what it prints in the replay must be the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cassettes import calls, corpus
from tests.cassettes.expected import misfit
from tests.cassettes.server import CassetteServer, cut

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).parent / "program.py"
COMMANDS = Path(sys.executable).parent
TIMEOUT_S = 400.0
"""Seconds after which a command is given up; it takes about 20 where it has a core to itself."""

KEYS = {
    "OPENAI_API_KEY": "sk-recorded",
    "AZURE_OPENAI_API_KEY": "azure-recorded",
    "ANTHROPIC_API_KEY": "sk-ant-recorded",
}
"""Credentials of the recorded program; a replay gets none."""


@dataclass(frozen=True)
class Corpus:
    """All calls of the cassettes, and what was skipped."""

    every: list[calls.Call]
    skipped: list[corpus.Skipped]

    def asked_for_through(self, client: str) -> list[calls.Call]:
        """The calls that can be made through clients of this HTTP library; `anthropic` takes no `httpx`."""
        return [call for call in self.every if client == "httpx2" or call.last.sdk != "anthropic"]


@pytest.fixture(scope="module")
def cassettes() -> Corpus:
    root = corpus.folder()
    if not root.is_dir():
        pytest.skip(f"no cassettes at {root}; set {corpus.DATA} to a folder that holds them")
    kept, skipped = corpus.read(root)
    return Corpus(calls.calls(kept), skipped)


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print on the terminal though the test passes; of a worker of xdist only standard error gets there."""

    def line(text: str) -> None:
        with capfd.disabled():
            print(f"\n{text}", file=sys.stderr if "PYTEST_XDIST_WORKER" in os.environ else sys.stdout, flush=True)

    return line


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of this installation with a home of its own. Its whole process group ends with it."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "PYTHON", "COV_")) and not name.endswith("_API_KEY")
    }
    process = subprocess.Popen(
        [str(COMMANDS / command[0]), *command[1:]],
        cwd=folder,
        env={**inherited, "OTEL_AGENT_REPLAY_HOME": str(folder / "home"), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def told(some: list[calls.Call], port: int, folder: Path, *, legacy: bool) -> list[str]:
    """Write down what the program is to call, and give its command line."""
    listed = folder / "calls.jsonl"
    listed.write_text("".join(json.dumps(call.told()) + "\n" for call in some), encoding="utf-8")
    return [sys.executable, str(PROGRAM), str(listed), str(port), *(["--legacy"] if legacy else [])]


def check_against_cassettes(some: list[calls.Call], output: str) -> None:
    """Each line came from an exchange of its own that was asked for in just this way.

    Requests that are alike and run at once may get one another's replies.
    """
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["id"] for line in lines] == [call.last.source for call in some]
    unused: dict[str, list[calls.Call]] = defaultdict(list)
    for call in some:
        unused[_key(call)].append(call)
    wrong: list[str] = []
    for call, line in zip(some, lines, strict=True):
        alike = sorted(unused[_key(call)], key=lambda other: other is not call)
        taken = next((other for other in alike if misfit(other.last, line) is None), None)
        if taken is None:
            wrong.append(f"{call.last.source}: {misfit(call.last, line)}")
        else:
            unused[_key(call)].remove(taken)
    assert not wrong, "\n".join(wrong)


def _key(call: calls.Call) -> str:
    one = call.last
    return calls.request_key(one.method, one.path, one.query, calls.sent_body(one)) + calls.style(one)


def served(some: list[calls.Call]) -> CassetteServer:
    return CassetteServer(exchange for call in some for exchange in call.attempts)


def exchanges_of(some: list[calls.Call]) -> int:
    return sum(len(call.attempts) for call in some)


@pytest.mark.parametrize("client", ["httpx2", "httpx"])
def test_every_exchange_is_replayed_as_it_was_recorded(
    cassettes: Corpus, tmp_path: Path, say: Callable[[str], None], client: str
) -> None:
    legacy = client == "httpx"
    some = cassettes.asked_for_through(client)
    with served(some) as server:
        command = told(some, server.port, tmp_path, legacy=legacy)
        # Some answers hold signed addresses, which come back masked unless masking is off.
        recorded = run(
            ["opentelemetry-instrument", *command], tmp_path, KEYS | {"OTEL_AGENT_REPLAY_MASK_DEFAULTS": "off"}
        )
        assert recorded.returncode == 0, recorded.stderr[-4000:]
        assert (server.unmatched, server.left) == ([], [])
        check_against_cassettes(some, recorded.stdout)
        server.retire()
        report = tmp_path / "report.json"
        replayed = run(["agent-replay", "replay", "latest", "--report", str(report)], tmp_path, {})
        assert server.visits_after_retirement == 0
    differing = _differing(recorded.stdout, replayed.stdout)
    same = exchanges_of([call for call in some if call.last.source not in differing])
    of = exchanges_of(some)
    say(f"cassettes through {client}: {same} of {of} exchanges identical in the replay")
    assert not differing, _shown(differing)
    assert replayed.returncode == 0, replayed.stderr[-4000:]
    assert same == of
    assert replayed.stdout == recorded.stdout
    said = json.loads(report.read_text("utf-8"))
    crossings = len(some) + 1  # the program reads a file that says which calls to make
    assert (said["verdict"], said["answered"], said["crossings"]) == ("holds", crossings, crossings)
    assert [said[name] for name in ("divergences", "moved", "notes", "warnings")] == [[], [], [], []]


def _differing(recorded: str, replayed: str) -> dict[str, tuple[str, str]]:
    """Pairs of lines that differ, by the id of the call."""
    pairs = zip_longest(recorded.splitlines(), replayed.splitlines(), fillvalue="")
    return {json.loads(was or got)["id"]: (was, got) for was, got in pairs if was != got}


def _shown(differing: dict[str, tuple[str, str]]) -> str:
    """The first few that differ, from a little before the place where they do."""
    shown: list[str] = []
    for name, (was, got) in list(differing.items())[:8]:
        place = next((at for at, (one, other) in enumerate(zip(was, got, strict=False)) if one != other), 0)
        start = max(0, place - 60)
        shown.append(f"{name}\n  recorded …{was[start : start + 200]}\n  replayed …{got[start : start + 200]}")
    return f"{len(differing)} differ\n" + "\n".join(shown)


def test_every_exchange_is_accounted_for(cassettes: Corpus, say: Callable[[str], None]) -> None:
    reasons = Counter(one.reason for one in cassettes.skipped)
    driven = exchanges_of(cassettes.every)
    invented = sum(exchange.invented for call in cassettes.every for exchange in call.attempts)
    lines = [
        f"cassettes: {driven} of {driven + len(cassettes.skipped)} exchanges are asked for by the SDKs "
        f"({invented} of them, recorded as a reply alone, by a request of ours); the others:",
        *(f"{count:6} {reason}" for reason, count in reasons.most_common()),
    ]
    say("\n".join(lines))
    sources = [exchange.source for call in cassettes.every for exchange in call.attempts]
    assert len(set(sources)) == len(sources) == driven
    assert driven >= (1 if corpus.DATA in os.environ else 1300)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["httpx2", "httpx"])
def test_program_gets_what_the_cassettes_hold(cassettes: Corpus, tmp_path: Path, client: str) -> None:
    legacy = client == "httpx"
    some = cassettes.asked_for_through(client)
    with served(some) as server:
        finished = run(told(some, server.port, tmp_path, legacy=legacy), tmp_path, KEYS)
        assert finished.returncode == 0, finished.stderr[-4000:]
        assert (server.unmatched, server.left) == ([], [])
    check_against_cassettes(some, finished.stdout)


def test_streams_are_cut_through_characters_and_through_fields() -> None:
    body = "".join(f'data: {{"text": "événement numéro {number} 中文"}}\n\n' for number in range(60)).encode()
    pieces = list(cut(body, "seed"))
    assert b"".join(pieces) == body
    assert pieces == list(cut(body, "seed")) != list(cut(body, "another"))
    assert all(pieces)
    assert any(_incomplete(piece) for piece in pieces)
    assert any(piece.endswith(b"da") for piece in pieces) or any(piece.startswith(b"ta:") for piece in pieces)


def _incomplete(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return True
    return False


def test_a_cassette_in_each_form_is_read(tmp_path: Path) -> None:
    """Forms that other corpora hold: compressed and plain bodies, a retry, redacted headers, a body that is no JSON."""
    interaction: dict[str, Any] = {
        "request": {
            "method": "POST",
            "uri": "https://api.openai.com/v1/chat/completions",
            "body": '{"model": "m", "messages": []}',
            "headers": {"x-stainless-retry-count": ["0"]},
        },
        "response": {"status": {"code": 429}, "headers": {}, "body": {"string": '{"error": {"code": "slow"}}'}},
    }
    again = {
        "request": {**interaction["request"], "headers": {"x-stainless-retry-count": ["1"]}},
        "response": {
            "status_code": 200,
            "headers": {"content-encoding": ["br"]},
            "content": '{"id": "plain after all"}',
        },
    }
    upload = {
        "request": {**interaction["request"], "uri": "https://api.openai.com/v1/files", "body": "--boundary"},
        "response": interaction["response"],
    }
    (tmp_path / "one.yaml").write_text(json.dumps({"interactions": [interaction, again, upload], "version": 1}))
    kept, skipped = corpus.read(tmp_path)
    (only,) = calls.calls(kept)
    assert [exchange.reply.status for exchange in only.attempts] == [429, 200]
    assert only.told()["retries"] == 1
    assert only.last.reply.encoding == ""
    assert ("content-type", "application/json") in only.last.reply.headers
    assert [one.reason for one in skipped] == ["the request's body is not JSON"]
