"""`agent-replay show`."""

from __future__ import annotations

import base64
import shutil
import sys

import pytest

from otel_agent_replay.recording import codec, names
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.layout import encode
from otel_agent_replay.recording.values import NoteKind

STREAM = (
    b"".join(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % word for word in (b"one ", b"two ", b"three"))
    + b"data: [DONE]\n\n"
)


def everything(home):
    """A run with two lanes, a stream, an error, readings and notes."""
    recorder = home.recorder()
    run = recorder.start(
        "agent.py",
        entry={"kind": "process", "argv": ["python", "my agent.py", "--fast"]},
        world={
            "directory": "/somewhere",
            "python": "3.11.7",
            "hash_seed": "42",
            "git": {"commit": "abc123", "branch": "main"},
            "environment": {"REGION": "eu", "ZONE": None},
        },
    )
    run.model(0)
    run.readings([1.5, 2.5, 3.5])
    run.model(1, answer=STREAM)
    run.tool(0, codec.encode({"query": "shoes"}), lane="main/task:search#0", outcome=codec.encode(["a", "b"]))
    run.tool(1, codec.encode("x"), lane="main/task:search#0", outcome=codec.encode(ValueError("no shoes")), raised=True)
    run.model(2, finish=False)
    run.note(NoteKind.UNCAPTURED, incomplete=False)
    run.end(
        exit_status=3,
        packages={"openai": "3.57.0"},
        git_dirty=True,
        exception={"type": "builtins:ValueError", "message": "no\nshoes"},
    )
    recorder.close()
    return run


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_is_shown_by_lane(home, stored):
    run = everything(home)
    if stored:
        home.json("runs")
        shutil.rmtree(home.spool)
    done = home.command("show", run.run_id[:10])
    assert (done.returncode, done.stderr) == (0, "")
    head, *lanes = done.stdout.split("\n\n")
    facts = [line.split(None, 1) for line in head.splitlines()]
    assert ["run", run.run_id] in facts
    for line in (
        "name        agent.py  (process, error, complete)",
        "command     python 'my agent.py' --fast",
        "directory   /somewhere",
        "python      3.11.7",
        "hash seed   42",
        "git         abc123 main, with changes",
        "packages    openai 3.57.0",
        "environment REGION=eu",
        "environment ZONE is not set",
        "tokens      10 in, 14 out; 3 model calls",
        "exit status 3",
        "exception   builtins:ValueError: no\\nshoes",
        "uncaptured  a socket was opened (agent.py:3); does no harm",
    ):
        assert line in head.splitlines()
    main, task = lanes
    assert main.splitlines()[0] == "main  3 crossings; 3 readings (clock:time.time 3)"
    rows = [line.split() for line in main.splitlines()[2:]]
    assert rows[0][:3] == ["0", "0", "model:openai.chat"]
    assert "user: question 0  answer 0" in main
    assert "200" in rows[0]
    assert "one two three" in main
    assert "unfinished" in rows[2]
    assert task.splitlines()[0] == "main/task:search#0  2 crossings"
    assert '{"query":"shoes"}' in task
    assert "ValueError: no shoes" in task
    assert "raised" in task


def test_inputs_and_outcomes_are_shortened_unless_asked_for_whole(home):
    recorder = home.recorder()
    run = recorder.start()
    body = b'{"messages":[{"role":"user","content":"' + b"long " * 500 + b'"}]}'
    run.model(0, body, answer=b"first line\nsecond line \x1b[31m")
    run.end()
    recorder.close()
    short = home.command("show", "latest").stdout
    assert "(+2,446)" in short
    assert len(short) < 1500
    whole = home.command("show", "latest", "--full").stdout
    assert body.decode() in whole
    assert "      first line\n      second line \\x1b[31m\n" in whole
    assert "POST http://127.0.0.1:1/v1/chat" in whole


@pytest.mark.parametrize("stored", [False, True])
def test_json_holds_everything(home, stored):
    run = everything(home)
    if stored:
        home.json("runs")
        shutil.rmtree(home.spool)
    shown = home.json("show", "latest")
    assert shown["run"] == home.json("runs")[0]
    assert shown["entry"] == run.run.entry
    assert shown["world"] == run.run.world
    assert shown["outcome"] == run.run.outcome
    assert shown["notes"] == [
        {"kind": "uncaptured", "what": "a socket was opened", "where": "agent.py:3", "incomplete": False}
    ]
    assert shown["missing"] == []
    assert shown["lanes"] == {
        "main": {"crossings": 3, "readings": 3},
        "main/task:search#0": {"crossings": 2, "readings": 0},
    }
    assert shown["readings"] == [
        {"lane": "main", "source": "clock:time.time", "site": "agent.py:1", "first": 0, "values": [1.5, 2.5, 3.5]}
    ]
    assert shown["order"] == [{"lane": "main", "key": "timer", "ordinal": 0, "seq": 0}]
    first, second, *_ = shown["crossings"]
    assert (first["lane"], first["key"], first["ordinal"], first["end"], first["wire"]) == (
        "main",
        "model:openai.chat",
        0,
        "returned",
        True,
    )
    attempt = second["attempts"][0]
    assert attempt["response_body"] == STREAM.decode()
    assert (attempt["status"], attempt["chunks"], attempt["offsets_us"], attempt["end"]) == (
        200,
        [len(STREAM)],
        [1500],
        "ended",
    )
    assert first["attributes"]["gen_ai.usage.input_tokens"] == 5
    assert first["attributes"]["gen_ai.response.finish_reasons"] == ["stop"]
    assert {crossing["kind"] for crossing in shown["crossings"]} == {"model", "tool"}


def test_json_takes_what_json_has_no_form_for(home):
    recorder = home.recorder()
    run = recorder.start()
    run.model(0, b"\xff\x00", answer="😀 \0".encode())
    run.tool(0, codec.encode("\ud800"), outcome="\ud800")
    run.tool(1, [float("nan"), float("inf"), 2**70])
    run.end()
    recorder.close()
    crossings = home.json("show", "latest")["crossings"]
    assert base64.b64decode(crossings[0]["attempts"][0]["request_body"]["base64"]) == b"\xff\x00"
    assert crossings[0]["attempts"][0]["response_body"] == "😀 \0"
    assert crossings[1]["outcome"] == "\ud800"
    assert crossings[2]["input"] == ["nan", "inf", 2**70]


def test_what_is_lacking_is_said(home):
    everything(home)
    (path,) = home.spool.glob("*.spool")
    data = bytearray(path.read_bytes())
    hit = [item for item in scan(bytes(data)) if isinstance(item, Frame)][1]
    data[hit.offset + 30] ^= 0xFF
    path.write_bytes(data)
    done = home.command("show", "latest")
    assert done.returncode == 0
    assert (
        f"missing     the spool file {path.name}: {hit.size} bytes at {hit.offset} are damaged (a checksum is wrong)"
        in done.stdout
    )
    assert "(process, error, incomplete)" in done.stdout
    assert home.json("show", "latest")["run"]["complete"] is False


def test_a_run_that_is_still_going_is_shown(home):
    recorder = home.recorder()
    run = recorder.start()
    run.model(0)
    run.model(1, finish=False)
    shown = home.json("show", "latest")
    assert (shown["run"]["live"], shown["run"]["status"], shown["run"]["crossings"]) == (True, "unfinished", 2)
    assert "(process, live, incomplete)" in home.command("show", "latest").stdout
    recorder.close()


def test_on_a_terminal_the_lanes_are_tables(home):
    import pexpect

    everything(home)
    command = "from otel_agent_replay.cli import main; main()"
    child = pexpect.spawn(
        sys.executable,
        ["-c", command, "show", "latest"],
        env={**home.env(), "TERM": "xterm", "COLUMNS": "160"},
        encoding="utf-8",
        use_poll=True,
        timeout=60,
        dimensions=(60, 180),
    )
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "\x1b[1m" in child.before
    assert "ValueError: no shoes" in child.before


def test_unknown_ambiguous_and_unreadable_runs_exit_with_128_and_one_sentence(home):
    home.prepare()
    first = home.record()
    home.record(trace_id=first.run.trace_id)
    for wanted, said in (("nothing", "No run 'nothing' in"), (f"{first.run.trace_id:032x}", "names 2 runs (")):
        done = home.command("show", wanted)
        assert (done.returncode, done.stdout) == (128, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    shutil.rmtree(home.spool)
    home.spool.mkdir()
    odd = home.spool / "odd.spool"
    odd.write_bytes(b"what is this")
    done = home.command("show", "latest")
    assert (done.returncode, done.stdout) == (128, "")
    assert (
        done.stderr
        == f"agent-replay: {odd} cannot be read: it is not a spool file; remove it, or record the run again.\n"
    )


def test_a_file_of_a_newer_version_exits_with_128_and_says_what_to_do(home):
    home.record()
    (path,) = home.spool.glob("*.spool")
    frames = [item for item in scan(path.read_bytes()) if isinstance(item, Frame)]
    for frame in frames:
        frame.attributes[names.SCHEMA] = 99
    path.write_bytes(b"".join(part for frame in frames for part in encode(frame)))
    done = home.command("show", "latest")
    assert done.returncode == 128
    assert f"schema 99; this version reads up to {names.SCHEMA_VERSION}); upgrade otel-agent-replay." in done.stderr
    listed = home.command("runs", "--json")
    assert (listed.returncode, listed.stdout) == (0, "[]\n")
    assert "upgrade otel-agent-replay" in listed.stderr
