"""Commands that a protocol of the program's own listens to: recorded, and not started in a replay."""

from __future__ import annotations

import sys

import pytest

WATCHED = """
import asyncio, os, subprocess, sys, time
STARTED = []
def _watch(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec", "os.kill"):
        STARTED.append(event)
sys.addaudithook(_watch)
TOOL = os.path.abspath("tool")

class Told(asyncio.SubprocessProtocol):
    def __init__(self):
        self.seen, self.ended = [], asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.seen.append("made")

    def pipe_data_received(self, fd, data):
        self.seen.append((fd, data, time.time()))

    def pipe_connection_lost(self, fd, exc):
        self.seen.append(("lost", fd, exc))

    def process_exited(self):
        self.seen.append(("exited", self.transport.get_returncode()))

    def connection_lost(self, exc):
        self.seen.append(("end", exc))
        self.ended.set_result(self.seen)
"""
TOLD = """
print("started", len(STARTED), file=sys.stderr)
"""
TOOL = """#!/bin/sh
echo "$$" >>ran
echo "$$ $*"
echo "err $1" >&2
while read line; do echo "heard $line"; sleep 0.02; done
exit "${2:-0}"
"""

PROGRAMS = {
    "exec": """
async def main():
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Told, TOOL, "a", "3", stdin=subprocess.DEVNULL)
    print(transport.get_pid(), transport.get_protocol() is told)
    print(transport.get_pipe_transport(0), transport.is_closing())
    print(await told.ended, transport.get_returncode())
    transport.close()
    print(transport.is_closing(), isinstance(transport, asyncio.SubprocessTransport))
    transport, told = await loop.subprocess_shell(Told, "echo $$; exit 4", stderr=subprocess.STDOUT)
    print(await told.ended)
    try:
        await loop.subprocess_exec(Told, "no-such-program-here")
    except FileNotFoundError as error:
        print(repr(error), error.filename)
    try:
        await loop.subprocess_exec(Told, TOOL, bufsize=9)
    except ValueError as error:
        print(repr(error))
asyncio.run(main())
""",
    "speak": """
class Asking(Told):
    def connection_made(self, transport):
        super().connection_made(transport)
        transport.get_pipe_transport(0).write(b"one\\n")

    def pipe_data_received(self, fd, data):
        super().pipe_data_received(fd, data)
        to = self.transport.get_pipe_transport(0)
        if b"heard one\\n" in data:
            to.writelines([b"t", b"wo\\n"])
        elif b"heard two\\n" in data:
            to.write_eof()
            self.seen.append((to.is_closing(), to.can_write_eof(), to.get_write_buffer_size() >= 0))

async def main():
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Asking, TOOL, "b")
    print(await told.ended)
asyncio.run(main())
""",
    "signals": """
async def main():
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Told, TOOL, "c")
    await asyncio.sleep(0.05)
    print(transport.get_returncode())
    transport.kill()
    print(await told.ended)
    try:
        transport.send_signal(15)
    except ProcessLookupError as error:
        print(repr(error))
    transport, told = await loop.subprocess_exec(Told, TOOL, "d")
    os.kill(transport.get_pid(), 15)
    print(await told.ended)
    transport, told = await loop.subprocess_exec(Told, TOOL, "e")
    transport.close()
    print(await told.ended)
asyncio.run(main())
""",
    "several": """
async def one(name):
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Told, TOOL, name, stdin=subprocess.DEVNULL)
    await told.ended
    done.append(name)
    return told.seen

async def main():
    print(await asyncio.gather(*map(one, "abcde")), done)
done = []
asyncio.run(main())
""",
    "left": """
async def main():
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Told, "sleep", "30", stdin=None)
    print(told.seen, transport.get_pid())
    return transport, told
loop = asyncio.new_event_loop()
transport, told = loop.run_until_complete(main())
transport.kill()
loop.run_until_complete(asyncio.sleep(0.1))
transport.close()
loop.close()
""",
    "errors": """
class Broken(Told):
    def pipe_data_received(self, fd, data):
        raise ValueError(f"{fd} {data}")

async def main():
    loop = asyncio.get_running_loop()
    raised = []
    loop.set_exception_handler(lambda _, told: raised.append(repr(told["exception"])))
    transport, told = await loop.subprocess_exec(Broken, TOOL, "f", stdin=subprocess.DEVNULL)
    print(await told.ended, raised)
asyncio.run(main())
""",
    "uvloop": """
import uvloop
async def main():
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Told, TOOL, "g", "2")
    transport.get_pipe_transport(0).write(b"one\\ntwo\\n")
    transport.get_pipe_transport(0).close()
    print(type(loop), await told.ended)
uvloop.run(main())
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_command_is_not_started_in_a_replay(bench, name: str) -> None:
    tool = bench.write(TOOL, "tool")
    tool.chmod(0o755)
    out = bench.record(WATCHED + PROGRAMS[name] + TOLD)
    (row,) = bench.runs()
    assert row["complete"]
    ran = bench.folder / "ran"
    assert name == "left" or ran.exists()
    tool.unlink()
    ran.unlink(missing_ok=True)
    for _ in range(2):
        replayed = bench.replay()
        assert (replayed.code, replayed.out) == (0, out), replayed.err
        assert "started 0" in replayed.err and "destroyed" not in replayed.err
        assert not replayed.report["new_readings"] and not replayed.report["unread"]
    assert not ran.exists()


WHOLE = """
class Whole(Told):
    def pipe_data_received(self, fd, data):
        super().pipe_data_received(fd, data)
        data = b"".join(data for fd, data, _ in [one for one in self.seen if len(one) == 3 and one[0] == 1])
        if b"heard one" in data and not self.transport.get_pipe_transport(0).is_closing():
            self.transport.get_pipe_transport(0).close()

async def main():
    loop = asyncio.get_running_loop()
    transport, told = await loop.subprocess_exec(Whole, TOOL, "a", "3")
    transport.get_pipe_transport(0).write(b"one\\n")
    seen = await told.ended
    for number in (1, 2):
        data = b"".join(one[1] for one in seen if one[0] == number)
        print(data if number == 2 else data.partition(b" ")[2])
    print(sorted(repr(one) for one in seen if type(one[0]) is str), transport.get_returncode(), seen[0], seen[-1])
asyncio.run(main())
"""


def test_a_recorded_program_is_told_what_it_is_told_unrecorded(bench) -> None:
    tool = bench.write(TOOL, "tool")
    tool.chmod(0o755)
    recorded = bench.record(WATCHED + WHOLE)
    assert "heard one" in recorded and "('exited', 3)" in recorded
    assert bench.run(sys.executable, "program.py").stdout == recorded


def test_what_is_asked_of_a_command_is_compared(bench) -> None:
    tool = bench.write(TOOL, "tool")
    tool.chmod(0o755)
    program = WATCHED + PROGRAMS["speak"] + TOLD
    bench.record(program)
    (bench.folder / "ran").unlink()
    for one, other in (('TOOL, "b"', 'TOOL, "c"'), ('b"one', 'b"three'), ('b"wo', 'b"hree')):
        replayed = bench.replay_changed(program.replace(one, other))
        assert replayed.code == 125 and "diverged" in replayed.err
    assert not (bench.folder / "ran").exists()
