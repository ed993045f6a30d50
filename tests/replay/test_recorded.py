"""A replay is recorded as a run of its own: what its program asked, what it was given, and whose replay it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_agent_replay import replay, settings
from otel_agent_replay.analysis.summary import RunSummary, summarise
from otel_agent_replay.errors import ReplayOfReplay
from otel_agent_replay.recording import names
from otel_agent_replay.recording.values import End
from otel_agent_replay.store import find
from otel_agent_replay.store.spool import Spool, index
from otel_agent_replay.telemetry.shipping.ledger import Ledger

PROGRAM = """
import asyncio, os, sys, time, uuid
import openai
import otel_agent_replay as oar

@oar.boundary("tool", "lookup")
def lookup(name):
    if name == "missing":
        raise KeyError(name)
    return {"name": name, "at": time.time()}

@oar.boundary("tool", "lines")
def lines(count):
    for number in range(count):
        yield {"line": number}

async def ask(model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return await model.chat.completions.create(model="m1", messages=messages, **more)

async def main():
    async with openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0) as model:
        for reply in await asyncio.gather(*(ask(model, f"same {uuid.uuid4()}") for _ in range(3))):
            print(reply.choices[0].message.content)
        async with await ask(model, "read to its end", stream=True) as stream:
            async for event in stream:
                print(event.choices[0].delta.content, end="")
        async with await ask(model, "left in the middle of it", stream=True) as stream:
            async for event in stream:
                print(event.choices[0].delta.content)
                break

print(lookup("a"))
try:
    lookup("missing")
except KeyError as error:
    print(repr(error))
print(list(lines(3)))
for line in lines(5):
    break
with oar.boundary("tool", "around", {"x": 1}) as around:
    lookup("inside")
    around.value = [1, 2]
asyncio.run(main())
oar.outcome(done=True)
"""

TOOLS = """
import os, uuid
import otel_agent_replay as oar

@oar.boundary("tool", "lookup")
def lookup(name):
    return [name, str(uuid.uuid4())]

def agent(name="first"):
    lookup(name)
    return lookup("second")

if __name__ == "__main__":
    print(agent())
"""


def recorded_as(bench, done):
    """The recording of a replay, which its report names."""
    run_id = done.report["recorded_as"] if hasattr(done, "report") else done
    return find.load(settings.read({"OTEL_AGENT_REPLAY_HOME": str(bench.folder / "home")}), run_id)


def runs(bench) -> list[RunSummary]:
    """What the spool holds, newest first; the command's own list is looked at once below, for it loads the engine."""
    found = [
        each.tally for file in Spool(bench.folder / "home" / "spool").files() for each in index(file).runs.values()
    ]
    return sorted(map(summarise, found), key=lambda run: run.started_ns, reverse=True)


def origin_of(bench) -> RunSummary:
    (origin,) = (run for run in runs(bench) if run.replay_of is None)
    return origin


def spool_files(bench) -> list[str]:
    return sorted(path.name for path in (bench.folder / "home" / "spool").iterdir())


def crossings(recording) -> list[tuple]:
    """All that is to be the same of each crossing of a run and of its replay."""
    return sorted(
        (
            *(str(record.position), record.kind, record.name, record.wire, record.end, record.seq),
            *(json.dumps(each) for each in (record.input, record.outcome, record.items)),
            *(
                (
                    *(each.request.method, each.request.url, sorted(each.request.headers), each.request.body),
                    *(each.head, each.chunks, each.end, each.error, each.seqs),
                )
                for each in record.attempts
            ),
            {name: value for name, value in record.attributes.items() if name not in names.KEPT}
            | {"serving": record.attributes.get(names.SERVING)},
        )
        for record in recording.crossings
    )


def test_a_replay_is_a_run_that_says_what_its_origin_says(model_bench) -> None:
    model_bench.record(PROGRAM)
    origin_row = origin_of(model_bench)
    done = model_bench.replay()
    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == f"agent-replay: recorded as {done.report['recorded_as']}"

    row, listed_origin = runs(model_bench)
    assert listed_origin == origin_row
    assert (row.run_id, row.replay_of) == (done.report["recorded_as"], origin_row.run_id)
    assert row.trace_id != origin_row.trace_id
    same = ("name", "status", "complete", "crossings", "model_calls", "input_tokens", "output_tokens", "entry", "end")
    assert [getattr(row, name) for name in same] == [getattr(origin_row, name) for name in same]

    origin, again = recorded_as(model_bench, origin_row.run_id), recorded_as(model_bench, done)
    assert crossings(again) == crossings(origin)
    by_span = {f"{record.span_id:016x}": record for record in origin.crossings}
    assert {record.attributes[names.ANSWERED] for record in again.crossings} == {"recorded"}
    for record in again.crossings:
        assert by_span[record.attributes[names.ANSWERED_BY]].position == record.position
        assert again.run.started_ns <= record.started_ns <= record.ended_ns <= again.run.ended_ns
    (inside,) = (record for record in again.crossings if "/call:tool:around" in record.position.lane)
    (around,) = (record for record in again.crossings if record.position.key == "tool:around")
    assert inside.parent_span_id == around.span_id
    assert {record.parent_span_id for record in again.crossings if record is not inside} == {again.run.span_id}

    assert (again.readings, again.order, again.notes, again.missing) == ([], [], [], [])
    assert again.run.entry["argv"][1:] == ["program.py"]
    assert again.run.outcome["stdout"] == origin.run.outcome["stdout"]
    assert again.run.outcome["declared"] == {"done": True}
    result = again.run.outcome["replay"]
    assert (result["verdict"], result["exit_code"], result["divergences"]) == ("holds", 0, [])
    assert "credentials" in again.run.world


def test_only_live_runs_are_listed_found_as_latest_and_replayed(bench) -> None:
    bench.record(TOOLS)
    origin = origin_of(bench)
    first = bench.replay()
    second = bench.replay()
    assert first.report["run_id"] == second.report["run_id"] == origin.run_id
    listed = bench.run(Path(sys.executable).parent / "agent-replay", "runs", "--json")
    assert [row["run_id"] for row in json.loads(listed.stdout)] == [origin.run_id]
    assert [row["replay_of"] for row in bench.runs()] == [origin.run_id, origin.run_id, None]

    again = bench.replay(run=first.report["recorded_as"])
    assert again.code == 128
    assert again.err.strip().endswith(f"agent-replay replay {origin.run_id}")
    assert len(again.err.strip().splitlines()) == 1
    shown = bench.run(Path(sys.executable).parent / "agent-replay", "show", first.report["recorded_as"])
    assert f"replay of   {origin.run_id}" in shown.stdout
    assert "verdict     holds; 2 of 2 calls answered, exit code 0" in shown.stdout


def test_what_a_changed_program_asks_is_in_its_run(bench) -> None:
    bench.record(TOOLS)
    done = bench.replay_changed(TOOLS.replace('"second"', '"other", uuid.uuid4()').replace("(name):", "(name, *_):"))
    assert done.code == 125
    again = recorded_as(bench, done)
    first, second = sorted(again.crossings, key=lambda record: record.position.ordinal)
    assert first.attributes[names.ANSWERED] == "recorded"
    assert (second.attributes[names.ANSWERED], second.end) == ("diverged", End.RAISED)
    assert names.ANSWERED_BY not in second.attributes
    assert second.input["args"][0] == "other"
    assert second.outcome.startswith("DivergenceError: ")
    (reading,) = again.readings  # the uuid that the recording does not know
    assert reading.source == "random:uuid4"
    assert len(reading.values) == 1
    assert again.run.end is End.RAISED
    assert [each["kind"] for each in again.run.outcome["replay"]["divergences"]] == ["diverged"]


def test_a_changed_prompt_is_in_the_run(model_bench) -> None:
    model_bench.record(PROGRAM)
    done = model_bench.replay_changed(PROGRAM.replace('"read to its end"', '"read to its very end"'))
    again = recorded_as(model_bench, done)
    (asked,) = (record for record in again.crossings if record.attributes[names.ANSWERED] == "diverged")
    assert b"read to its very end" in asked.attempts[0].request.body
    assert (asked.attempts[0].head, asked.end) == (None, End.RAISED)
    assert sum(record.attributes[names.ANSWERED] == "recorded" for record in again.crossings) == 9


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--no-record",), {}),
        ((), {"OTEL_AGENT_REPLAY_RECORD_REPLAYS": "off"}),
        ((), {"OTEL_AGENT_REPLAY_MODE": "off"}),
    ],
    ids=["option", "setting", "mode"],
)
def test_it_can_be_left_off(bench, options, environment) -> None:
    bench.record(TOOLS)
    before = spool_files(bench)
    bench.environment |= environment
    done = bench.replay(options=options)
    assert (done.code, done.report["recorded_as"]) == (0, None)
    assert "recorded as" not in done.err
    assert spool_files(bench) == before


def test_an_option_outweighs_the_setting(bench) -> None:
    bench.record(TOOLS)
    bench.environment |= {"OTEL_AGENT_REPLAY_RECORD_REPLAYS": "off"}
    assert bench.replay(options=("--record",)).report["recorded_as"]


def test_a_full_spool_costs_one_warning(bench) -> None:
    out = bench.record(TOOLS)
    bench.environment |= {"OTEL_AGENT_REPLAY_SPOOL_LIMIT": "1"}
    (bench.folder / "home" / "spool" / "large.spool").write_bytes(b"\0" * (2 << 20))  # beyond what ends may take
    done = bench.replay()
    assert (done.code, done.out, done.report["recorded_as"]) == (0, out, None)
    (warning,) = done.report["warnings"]
    assert warning.startswith("this replay is not recorded: ")
    assert "OTEL_AGENT_REPLAY_SPOOL_LIMIT" in warning
    assert done.err.count("warning") == 1


def test_a_home_that_cannot_be_written_costs_one_warning(bench) -> None:
    out = bench.record(TOOLS)
    mount = bench.folder / "home"
    options = [["mount", "--bind", mount, mount], ["mount", "-o", "remount,ro,bind", mount]]
    if any(subprocess.run(line, capture_output=True).returncode for line in options):
        subprocess.run(["umount", mount], capture_output=True)
        pytest.skip("a read-only file system cannot be mounted here")
    try:
        done = bench.replay()
    finally:
        subprocess.run(["umount", mount], check=True, capture_output=True)
    assert (done.code, done.out, done.report["recorded_as"]) == (0, out, None), done.err
    assert [warning.partition(":")[0] for warning in done.report["warnings"]] == ["this replay is not recorded"]
    assert done.err.count("warning") == 1


def test_a_setting_that_means_nothing_costs_one_warning(bench) -> None:
    out = bench.record(TOOLS)
    bench.environment |= {"OTEL_AGENT_REPLAY_MASK_PATTERNS": "("}
    done = bench.replay()
    assert (done.code, done.out, done.report["recorded_as"]) == (0, out, None)
    assert done.err.count("OTEL_AGENT_REPLAY_MASK_PATTERNS") == 1


def test_secrets_are_masked_and_tokens_stay(bench) -> None:
    secret, own = "sk-proj-" + "aB3" * 14, "sk-proj-" + "Zx9" * 14
    program = TOOLS.replace('agent(name="first")', 'agent(name={"password": os.environ["SECRET"], "n": 1})')
    bench.environment |= {"SECRET": secret}
    bench.record(program)
    origin = recorded_as(bench, origin_of(bench).run_id)
    bench.environment |= {"SECRET": own}
    done = bench.replay()
    assert done.code == 0, done.err
    for path in (bench.folder / "home" / "spool").iterdir():
        assert secret.encode() not in path.read_bytes()
        assert own.encode() not in path.read_bytes()
    first = min(recorded_as(bench, done).crossings, key=lambda record: record.position.ordinal)
    recorded = min(origin.crossings, key=lambda record: record.position.ordinal)
    given = recorded.input["args"][0]["password"]
    assert given.startswith("masked.")
    assert first.input["args"][0]["password"].startswith("masked.")
    assert first.input["args"][0]["password"] != given  # another secret, so another token …
    assert first.outcome == recorded.outcome  # … and what the program was given holds the recorded one


def test_forked_children_are_in_the_run(bench) -> None:
    fork = "\nif os.fork() == 0:\n    lookup('child')\n    os._exit(0)\nos.wait()\n"
    bench.record(TOOLS + fork)
    done = bench.replay()
    assert done.code == 0, done.err
    again = recorded_as(bench, done)
    assert sorted(record.position.lane for record in again.crossings) == ["main", "main", "main/process:fork#0"]
    assert again.complete
    done = bench.replay()
    assert done.code == 0, "the child's file, which has not the beginning of the replay, is no later run"


def test_runs_that_begin_in_it_are_runs_within_it(bench) -> None:
    bench.record(TOOLS.replace("def agent", '@oar.run("inner")\ndef agent'))
    outer, inner = sorted(runs(bench), key=lambda run: run.entry, reverse=True)
    done = bench.replay(run=outer.run_id)
    assert done.code == 0, done.err
    replays = {run.replay_of: run for run in runs(bench) if run.replay_of}
    assert set(replays) == {outer.run_id, inner.run_id}
    assert replays[outer.run_id].run_id == done.report["recorded_as"]
    assert replays[inner.run_id].within == done.report["recorded_as"]
    assert (replays[inner.run_id].crossings, replays[inner.run_id].entry) == (2, "function")
    whole = recorded_as(bench, replays[inner.run_id].run_id)
    assert (whole.run.end, whole.run.outcome) == (End.RETURNED, recorded_as(bench, inner.run_id).run.outcome)

    alone = bench.replay(run=inner.run_id)
    assert alone.code == 0, alone.err
    again = recorded_as(bench, alone)
    assert (again.run.entry["kind"], again.run.entry["origin"]) == ("function", inner.run_id)
    assert crossings(again) == crossings(whole)


def test_what_a_killed_replay_has_answered_is_there(bench) -> None:
    bench.record(TOOLS)
    origin = origin_of(bench)
    done = bench.replay_changed(TOOLS.replace('return lookup("second")', "os.kill(os.getpid(), 9)"))
    assert (done.code, done.report["recorded_as"]) == (125, None)
    (run,) = (run for run in runs(bench) if run.replay_of == origin.run_id)
    assert (run.status, run.crossings) == ("unfinished", 1)


def test_a_replay_is_shipped_nowhere(bench) -> None:
    bench.environment |= {"OTEL_AGENT_REPLAY_SHIP": "off"}
    bench.record(TOOLS)
    bench.environment |= {"OTEL_AGENT_REPLAY_SHIP": "auto", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert bench.replay().report["recorded_as"]
    home = bench.folder / "home"
    assert len(spool_files(bench)) == 2
    assert [path.name.endswith(".replay.spool") for path in Ledger(home).files()] == [False]
    assert not list((home / "shipping").glob("*.replay.spool*"))


@pytest.fixture
def agent(bench, monkeypatch: pytest.MonkeyPatch):
    """A recorded agent as a module of this process."""
    name = f"recorded_agent_{os.getpid()}_{id(bench)}"
    bench.record(TOOLS, name=f"{name}.py")
    monkeypatch.setenv("OTEL_AGENT_REPLAY_HOME", str(bench.folder / "home"))
    monkeypatch.syspath_prepend(str(bench.folder))
    return bench, __import__(name).agent


def test_in_a_program_it_is_recorded_where_asked(agent, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, run_agent = agent
    with replay("latest") as replayed:
        run_agent()
    assert replayed.report.recorded_as is None
    assert len(spool_files(bench)) == 1
    with replay("latest", record=True) as asked:
        out = run_agent()
    monkeypatch.setenv("OTEL_AGENT_REPLAY_RECORD_REPLAYS", "on")
    with replay("latest") as by_setting:
        run_agent()
    ids = {replayed.report.recorded_as for replayed in (asked, by_setting)}
    assert {run.run_id for run in runs(bench) if run.replay_of} == ids
    again = recorded_as(bench, asked.report.recorded_as)
    assert [record.outcome for record in again.crossings][-1] == out
    assert again.complete
    with pytest.raises(ReplayOfReplay, match="a replay itself"), replay(asked.report.recorded_as):
        pass


def test_many_in_one_program_are_in_one_file_and_small(agent) -> None:
    bench, run_agent = agent
    (origin,) = (bench.folder / "home" / "spool").iterdir()
    for _ in range(30):
        with replay("latest", record=True):
            run_agent()
    (file,) = (path for path in (bench.folder / "home" / "spool").iterdir() if path != origin)
    assert sum(run.replay_of is not None for run in runs(bench)) == 30
    assert file.stat().st_size < 30 * origin.stat().st_size


def test_how_a_block_ended_is_told(agent) -> None:
    bench, run_agent = agent
    replayed = replay("latest", record=True, partial=True)
    with pytest.raises(ValueError, match="mine"), replayed:
        run_agent()
        raise ValueError("mine")
    again = recorded_as(bench, replayed.report.recorded_as)
    assert again.run.end is End.RAISED
    assert again.run.outcome["exception"] == {"type": "builtins:ValueError", "message": "mine"}
