"""The processes of commands: ids and descriptors that lead nowhere in a replay, ends that nobody waited for."""

from __future__ import annotations

import pytest

WATCHED = """
import os, sys
ACTED = []
def _watch(event, args):
    if event in ("os.kill", "os.killpg", "signal.pidfd_send_signal", "subprocess.Popen", "os.posix_spawn"):
        ACTED.append(event)
sys.addaudithook(_watch)
"""
TOLD = """
print("acted", len(ACTED), file=sys.stderr)
"""

PROGRAMS = {
    "ids": """
import os, signal, subprocess
def tried(function, *args):
    try:
        return function(*args)
    except OSError as error:
        return repr(error)
p = subprocess.Popen(["sleep", "30"], start_new_session=True)
print(os.getpgid(p.pid) == p.pid, os.getsid(p.pid) == p.pid, tried(os.kill, p.pid, 0))
print(tried(os.waitpid, p.pid, os.WNOHANG), tried(os.setpgid, p.pid, 0))
os.killpg(os.getpgid(p.pid), signal.SIGTERM)
print(p.wait(), tried(os.kill, p.pid, 0), tried(os.getpgid, p.pid), tried(os.waitpid, p.pid, 0))
p = subprocess.Popen(["sleep", "30"], start_new_session=True)
os.kill(-p.pid, signal.SIGKILL)
print(p.wait(), tried(os.killpg, p.pid, 9))
p = subprocess.Popen(["sleep", "30"])
os.kill(p.pid, signal.SIGTERM)
pid, status = os.waitpid(p.pid, 0)
print(pid == p.pid, status, p.poll(), p.wait())
p = subprocess.Popen(["sh", "-c", "exit 9"])
print(os.wait()[1], p.wait())
child = os.fork()
if child == 0:
    os._exit(5)
print(os.wait()[1])
if hasattr(os, "pidfd_open"):
    import resource, select
    p = subprocess.Popen(["sleep", "30"])
    number = os.pidfd_open(p.pid)
    signal.pidfd_send_signal(number, signal.SIGTERM)
    print(select.select([number], [], [], 20)[0] == [number])
    os.close(number)
    print(p.wait())
    p = subprocess.Popen(["sh", "-c", "exit 7"])
    print(os.wait4(p.pid, 0))
    p = subprocess.Popen(["sh", "-c", "exit 8"])
    print(os.waitid(os.P_PID, p.pid, os.WEXITED))
""",
    "ended": """
import asyncio, subprocess, time
p = subprocess.Popen(["true"])
time.sleep(0.3)
p.terminate()
print(p.wait(), p.poll())
PIPE = asyncio.subprocess.PIPE
async def main():
    for waits in (True, False):
        p = await asyncio.create_subprocess_exec("true")
        await (p.wait() if waits else asyncio.sleep(0.3))
        for act in (p.kill, p.terminate, lambda: p.send_signal(9)):
            try:
                print(act())
            except ProcessLookupError as error:
                print("gone", error.args)
    p = await asyncio.create_subprocess_shell("exec <&-; echo; sleep 0.5", stdin=PIPE, stdout=PIPE)
    await p.stdout.readline()
    try:
        for _ in range(5):
            p.stdin.write(b"x" * 100_000)
            await p.stdin.drain()
            await asyncio.sleep(0.01)
    except (BrokenPipeError, ConnectionResetError) as error:
        print("lost", type(error), p.stdin.is_closing())
    p.stdin.close()
    try:
        print(await p.stdin.wait_closed())
    except (BrokenPipeError, ConnectionResetError) as error:
        print("lost", type(error))
    print(await p.wait())
asyncio.run(main())
""",
    "descriptors": """
import os, select, selectors, subprocess
PIPE = subprocess.PIPE
COMMAND = ["sh", "-c", "sleep 0.3; echo $$; echo err >&2; sleep 0.3; echo 2"]
p = subprocess.Popen(COMMAND, stdout=PIPE, stderr=PIPE)
idle, out, number = 0, b"", p.stdout.fileno()
os.set_blocking(number, False)
while True:
    if not select.select([p.stdout], [], [], 0.1)[0]:
        idle += 1
    else:
        data = os.read(number, 100)
        if not data:
            break
        out += data
print(out, idle, p.stderr.read(), p.wait())
p.stdout.close(); p.stderr.close()
p = subprocess.Popen(COMMAND, stdout=PIPE, stderr=PIPE)
found, idle = [], 0
with selectors.DefaultSelector() as selector:
    selector.register(p.stdout, selectors.EVENT_READ, "out")
    selector.register(p.stderr, selectors.EVENT_READ, "err")
    while selector.get_map():
        ready = selector.select(0.1)
        idle += not ready
        for key, _ in ready:
            data = key.fileobj.read1(100) if key.data == "out" else os.read(key.fd, 100)
            found.append((key.data, data))
            if not data:
                selector.unregister(key.fileobj)
print(found, idle, p.wait())
p.stdout.close(); p.stderr.close()
p = subprocess.Popen(COMMAND, stdout=PIPE, stderr=subprocess.STDOUT)
poll, out = select.poll(), []
poll.register(p.stdout, select.POLLIN)
while True:
    ready = poll.poll(100)
    out.append(os.read(ready[0][0], 100) if ready and ready[0][1] & select.POLLIN else len(ready))
    if out[-1] == 1:
        break
print(out, p.wait())
p.stdout.close()
p = subprocess.Popen(["sh", "-c", "echo $$; cat"], stdin=PIPE, stdout=PIPE, bufsize=0)
print(os.write(p.stdin.fileno(), b"hello"), p.stdin.close(), p.stdout.read(), p.wait())
p.stdout.close()
""",
    "files": """
import asyncio, subprocess, tempfile
with tempfile.TemporaryFile() as f:
    subprocess.run(["sh", "-c", "echo $$"], stdout=f)
    subprocess.call(["sh", "-c", "echo $$ >&2"], stderr=f)
    f.seek(0); print(f.read())
with open("out.txt", "w+") as f:
    f.write("head\\n"); f.flush()
    subprocess.run(["sh", "-c", "echo $$; echo $$ >&2"], stdout=f, stderr=f)
    f.seek(0); print(f.read())
with open("out.txt", "w") as f:
    p = subprocess.Popen(["sh", "-c", "echo $$"], stdout=f)
print(p.wait(), open("out.txt").read())
with open("out.txt", "a+b") as f:
    p = subprocess.Popen(["sh", "-c", "echo $$"], stdout=f.fileno())
    while p.poll() is None:
        pass
    try:
        subprocess.run(["sh", "-c", "echo $$; exec sleep 20"], stdout=f, timeout=0.5)
    except subprocess.TimeoutExpired:
        pass
    async def main():
        return await (await asyncio.create_subprocess_shell("echo $$", stdout=f)).wait()
    print(asyncio.run(main()))
    f.seek(0); print(f.read())
    f.seek(0); print(subprocess.run("cat", stdin=f, capture_output=True).stdout)
""",
    "a shell that goes on": """
import subprocess
p = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
def told(command):
    p.stdin.write(command + "; echo\\n")
    return p.stdout.readline()
told("true")
with open("code.py", "w") as f: f.write("x=1")
told("echo $$ >code.py")
print(open("code.py").read())
p.stdin.close(); p.wait(); p.stdout.close()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_knows_the_processes_of_commands_from_the_recording(bench, name: str) -> None:
    out = bench.record(WATCHED + PROGRAMS[name] + TOLD)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert "acted 0" in replayed.err
    assert not replayed.report["new_readings"] and not replayed.report["unread"]


OWN = """
import os, subprocess
r, w = os.pipe()
p = subprocess.Popen(["echo", "hello"], stdout=w)
os.close(w)
os.read(r, 10)
p.wait()
"""


def test_output_that_goes_elsewhere_is_said_not_to_be_recorded(bench) -> None:
    bench.record(OWN)
    (row,) = bench.runs()
    assert not row["complete"]
    assert "output of process:echo" in bench.replay().err


PSUTIL = """
class NoSuchProcess(Exception):
    pass

class Process:
    def __init__(self, pid=None):
        self.pid = pid

    def children(self, recursive=False):
        return ["a child"]

class Popen(Process):
    def __init__(self, command):
        import subprocess
        self.started = subprocess.Popen(command)
        self.pid = self.started.pid
"""
ASKING = """
import psutil, subprocess
p = subprocess.Popen(["sleep", "30"])
try:
    print(psutil.Process(p.pid).pid == p.pid)
except psutil.NoSuchProcess:
    print("none")
p.kill()
p.wait()
p = psutil.Popen(["sleep", "30"])
print(len(p.children(recursive=True)))
p.started.kill()
p.started.wait()
"""


def test_psutil_finds_no_stranger_in_place_of_a_command(bench) -> None:
    bench.write(PSUTIL, "psutil.py")
    assert bench.record(ASKING) == "True\n1\n"
    replayed = bench.replay()
    assert replayed.out == "none\n0\n"
    assert "psutil" in replayed.err
