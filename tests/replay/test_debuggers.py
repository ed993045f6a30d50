"""A debugger works in a replay: it stops for as long as wanted, and the program goes on to its recorded end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

PROGRAM = """
import asyncio, time
from otel_agent_replay import boundary

@boundary("tool", "fetch")
async def fetch(n):
    await asyncio.sleep(0.01)
    return n, time.time_ns()

async def main():
    answers = await asyncio.gather(*(fetch(n) for n in range(3)))
    total = len(answers)
    print(answers)

asyncio.run(main())
"""

BIN = Path(sys.executable).parent
PROMPT = r"\(Pdb\) "


@pytest.fixture
def recorded(bench):
    return bench, bench.record(PROGRAM).strip()


def spawn(bench, *options: str, command: tuple[str, ...] = ()) -> pexpect.spawn:
    line = [*options, *(["--", *command] if command else [])]
    return pexpect.spawn(
        str(BIN / "agent-replay"), ["replay", "latest", *line], env=bench.env, cwd=str(bench.folder), timeout=60,
        encoding="utf-8", dimensions=(50, 300), use_poll=True,
    )  # fmt: skip


def ended(child: pexpect.spawn) -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_pdb_stops_steps_and_goes_on(recorded) -> None:
    bench, out = recorded
    child = spawn(bench, command=(sys.executable, "-m", "pdb", "program.py"))
    child.expect(PROMPT)
    child.sendline("break 12")
    child.expect(PROMPT)
    child.sendline("continue")
    child.expect("total = len")
    child.expect(PROMPT)
    time.sleep(3)  # longer than anything in a replay takes
    child.sendline("next")
    child.expect(PROMPT)
    child.sendline("p total")
    child.expect("3")
    child.expect(PROMPT)
    child.sendline("continue")
    child.expect_exact(out)
    child.expect(PROMPT)
    child.sendline("quit")
    ended(child)


def test_stop_at_a_crossing(recorded) -> None:
    bench, out = recorded
    child = spawn(bench, "--stop-at", "tool:fetch#0")
    child.expect("stopped at")
    child.expect(PROMPT)
    time.sleep(2)
    child.sendline("continue")
    child.expect_exact(out)
    assert ended(child) == 0


class Editor:
    """What an editor does with debugpy, over the Debug Adapter Protocol."""

    def __init__(self, port: int) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                self.connection = socket.create_connection(("127.0.0.1", port), 5)
                break
            except OSError:
                assert time.monotonic() < end, "no debugger listens"
                time.sleep(0.05)
        self.connection.settimeout(60)
        self.file = self.connection.makefile("rwb")
        self.count = 0

    def close(self) -> None:
        self.file.close()
        self.connection.close()

    def send(self, command: str, **arguments: Any) -> int:
        self.count += 1
        message = {"seq": self.count, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self.file.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        self.file.flush()
        return self.count

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        number = self.send(command, **arguments)
        answer = self.until("response", number)
        assert answer["success"], answer
        return answer.get("body") or {}

    def until(self, kind: str, what: int | str) -> dict[str, Any]:
        """Read up to the response to a request, or up to an event."""
        while True:
            length = 0
            while (line := self.file.readline()) != b"\r\n":
                assert line, "the debugger has hung up"
                length = int(line.partition(b":")[2]) if line.lower().startswith(b"content-length") else length
            message = json.loads(self.file.read(length))
            if message["type"] == kind and what in (message.get("request_seq"), message.get("event")):
                return message


def test_an_editor_attaches_by_debugpy(recorded) -> None:
    bench, out = recorded
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    debugger = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}"]
    command = [BIN / "agent-replay", "replay", "latest", "--", *debugger, "--wait-for-client", "program.py"]
    replaying = subprocess.Popen(
        command, env=bench.env, cwd=bench.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    editor = Editor(port)
    try:
        editor.ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
        attached = editor.send("attach", justMyCode=True)
        editor.until("event", "initialized")
        source = {"path": str(bench.folder / "program.py")}
        (placed,) = editor.ask("setBreakpoints", source=source, breakpoints=[{"line": 12}])["breakpoints"]
        assert placed["verified"]
        editor.send("configurationDone")
        editor.until("response", attached)
        thread = editor.until("event", "stopped")["body"]["threadId"]
        frame = editor.ask("stackTrace", threadId=thread)["stackFrames"][0]
        assert (frame["name"], frame["line"]) == ("main", 12)
        time.sleep(0.5)
        answers = editor.ask("evaluate", expression="answers", frameId=frame["id"], context="repl")["result"]
        assert answers == out
        editor.ask("continue", threadId=thread)
        editor.until("event", "terminated")
        editor.close()  # until then debugpy keeps the process
        printed, told = replaying.communicate(timeout=60)
    finally:
        editor.close()
        if replaying.poll() is None:
            replaying.kill()
            replaying.communicate()
    assert (replaying.returncode, printed.strip()) == (0, out), told
