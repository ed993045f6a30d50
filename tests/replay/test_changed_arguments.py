"""Calls behind the public door that change what they are handed: a replay does the same to the very same objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otel_agent_replay.recording import names
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.names import FrameKind
from tests.conftest import BIN, Bench

PROGRAM = Path(__file__).with_name("changed_arguments.py").read_text()

NAMES = [
    line.removeprefix("def ").partition("(")[0]
    for before, line in zip(PROGRAM.splitlines(), PROGRAM.splitlines()[1:], strict=False)
    if before == "@kind"
]


def by_name(out: str) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in out.splitlines() if "\t" in line)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each kind of program says, recorded and replayed, and the report."""
    bench = Bench(tmp_path_factory.mktemp("changed"))
    recorded = by_name(bench.record(PROGRAM))
    again = bench.replay()
    return recorded, by_name(again.out), again


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_changes_the_same_objects(told, name: str) -> None:
    recorded, replayed, again = told
    assert not recorded[name].startswith(("SystemError", "AttributeError", "TypeError")), recorded[name]
    assert replayed.get(name) == recorded[name], again.err[-2000:]


def test_every_call_was_answered(told) -> None:
    _, _, again = told
    assert (again.code, again.divergences) == (0, []), again.err
    assert again.report["answered"] == again.report["crossings"] > len(NAMES)


def shown(bench: Bench, run: str = "latest") -> dict:
    return json.loads(bench.run(BIN / "agent-replay", "show", run, "--json").stdout)


def payloads(bench: Bench) -> list[dict]:
    """The payload of every crossing that ended, as it was written."""
    frames = [item for path in (bench.folder / "home").rglob("*.spool") for item in scan(path.read_bytes())]
    ended = [item for item in frames if isinstance(item, Frame) and item.kind is FrameKind.CROSSING]
    return [json.loads(str(item.attributes[names.PAYLOAD])) for item in ended]


UNCHANGED = """
import asyncio, dataclasses, threading
from otel_agent_replay import boundary

@dataclasses.dataclass
class Note:
    tags: list

class Toolbox:
    def __init__(self):
        self.items, self.lock = [1], threading.Lock()
    @boundary("tool", "method")
    def look(self, state):
        return len(self.items)

@boundary("tool", "plain")
def look(state, *more, **named):
    return len(str(state))

@boundary("tool", "generator")
def each(state):
    yield from list(state)

@boundary("tool", "coroutine")
async def later(state):
    return None

def main():
    box, lock = Toolbox(), threading.Lock()
    for state in ({"a": [1]}, [1], {1}, Note([]), box, lock, "text", 7, bytearray(b"x"), {"deep": ({"x": 1},)}):
        look(state, state, by=state)
    box.look({"x": box})
    list(each({"a": 1}))
    asyncio.run(later([1]))
    with boundary("human", "ask", {"state": [1]}) as crossing:
        crossing.value = 1
    boundary("tool", "call", {"q": 1}).call(look.__wrapped__, [1])

main()
"""


def test_where_nothing_changes_nothing_more_is_written(bench) -> None:
    bench.record(UNCHANGED)
    found = payloads(bench)
    assert len(found) == 15
    assert all(payload.keys() <= {"i", "I", "o", "O", "y", "Y"} for payload in found), found
    assert shown(bench)["notes"] == []


LOST = """
import io, threading
from otel_agent_replay import boundary

class Toolbox:
    def __init__(self):
        self.lock = None
    @boundary("tool", "own")
    def own(self):
        self.lock = threading.Lock()

@boundary("tool", "lock")
def lock(state):
    state["lock"] = threading.Lock()
    state["n"] = 1

@boundary("tool", "text")
def text(buffer):
    buffer.write("more")

box = Toolbox()
box.own()
state = {}
lock(state)
text(io.StringIO())
print(state["n"], sorted(state))
if USES:
    state["lock"].acquire()
print("done")
"""


@pytest.mark.parametrize("uses", [False, True])
def test_what_cannot_be_put_back_is_said_and_fails_where_it_is_used(bench, uses: bool) -> None:
    out = bench.record(LOST.replace("USES", str(uses)))
    found = shown(bench)
    notes = {note["what"].partition(": ")[0].split()[1]: note for note in found["notes"]}
    assert {name: note["incomplete"] for name, note in notes.items()} == {
        "tool:own": False,
        "tool:lock": True,
        "tool:text": True,
    }
    assert notes["tool:lock"]["what"].endswith("Lock")
    assert not found["run"]["complete"]
    again = bench.replay()
    if uses:
        assert again.code == 1
        assert "could not be written down" in again.err
    else:
        assert (again.code, again.out) == (0, out), again.err
    assert any("tool:lock changes" in warning for warning in again.report["warnings"])


SECRETS = """
from otel_agent_replay import boundary

@boundary("tool", "login")
def login(state, memory):
    state["password"] = "correct horse battery"
    state["user"]["email"] = "ann@example.com"
    state["user"]["n"] = 2
    memory.token = "sk-proj-" + "a1B2" * 12

class Memory:
    def __init__(self):
        self.held = []

state, memory = {"user": {"email": "", "key": "sk-proj-" + "c3D4" * 12}}, Memory()
login(state, memory)
print(state["user"]["n"], state["user"]["key"] == "sk-proj-" + "c3D4" * 12)
"""


def test_what_was_changed_is_masked_as_all_else(bench) -> None:
    bench.environment["OTEL_AGENT_REPLAY_MASK_PATHS"] = "$.args[0].user.email"
    out = bench.record(SECRETS)
    written = b"".join(path.read_bytes() for path in (bench.folder / "home").rglob("*.spool"))
    for secret in (b"correct horse", b"ann@example.com", b"a1B2a1B2", b"c3D4c3D4"):
        assert secret not in written
    again = bench.replay()
    assert (again.code, again.out) == (0, out), again.err


def test_a_replay_is_recorded_with_what_was_changed(bench) -> None:
    bench.record(
        "from otel_agent_replay import boundary\n\ndef add(s):\n    s.append(1)\n\n"
        "state = []\nboundary('tool', 't').call(add, state)\nprint(state)\n"
    )
    again = bench.replay()
    assert (again.code, again.out) == (0, "[1]\n"), again.err
    (live,), (replayed,) = (
        shown(bench, run)["crossings"] for run in (again.report["run_id"], again.report["recorded_as"])
    )
    assert live["after"] == replayed["after"] == {"args": [[1]], "kwargs": {}}
    assert live["input"] == {"args": [[]], "kwargs": {}}


def test_a_changed_program_sees_its_own_changes_beside_those_of_the_call(bench) -> None:
    program = (
        "import dataclasses\nfrom otel_agent_replay import boundary\n\n@boundary('tool', 't')\ndef add(s):\n"
        "    s['found'] = [1]\n\nstate = {}\nadd(state)\nprint(len(state['found']))\n"
    )
    bench.record(program)
    changed = program.replace("print(", "state['found'].append(2)\nprint(")
    again = bench.replay_changed(changed)
    assert (again.code, again.out) == (1, "2\n"), again.err
    assert again.divergences == []


HALF_CHANGED = """
import asyncio
from otel_agent_replay import boundary

@boundary("tool", "t")
async def tool(state, name):
    state["log"].append(name)
    await asyncio.sleep(0.02)

async def main():
    state = {"log": []}
    await asyncio.gather(tool(state, "a"), tool(state, "b"))
    print(state)

asyncio.run(main())
"""


def test_what_another_lane_saw_before_a_call_ended_is_no_silent_loss(bench) -> None:
    bench.record(HALF_CHANGED)
    again = bench.replay()
    assert again.code == 125
    assert [kind for kind, _ in again.divergences] == ["diverged"]


def test_an_own_object_that_holds_too_much_is_left_alone_and_named(bench) -> None:
    out = bench.record(
        """
from otel_agent_replay import boundary

class Agent:
    def __init__(self):
        self.rows = [(number,) for number in range(30_000)]
        self.calls = 0

    @boundary("tool", "count")
    def count(self, state):
        self.calls += 1
        state["calls"] = self.calls

agent, state = Agent(), {}
for _ in range(3):
    agent.count(state)
    print(state)
"""
    )

    replayed = bench.replay()

    assert (replayed.code, replayed.out) == (0, out), replayed.err
    found = shown(bench)
    assert "its own object holds too much" in json.dumps(found["notes"])
    assert found["run"]["complete"]
