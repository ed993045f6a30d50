"""Commands that the program runs: recorded, and not run in a replay."""

from __future__ import annotations

import pytest

WATCHED = """
import os, sys
STARTED = []
def _watch(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec", "os.spawn"):
        STARTED.append(event)
sys.addaudithook(_watch)
"""
TOLD = """
print("started", len(STARTED), file=sys.stderr)
"""

PROGRAMS = {
    "run": """
import subprocess
done = subprocess.run(["sh", "-c", "echo $$; echo err >&2; exit 3"], capture_output=True, text=True)
print(done)
print(subprocess.run(["cat"], input=b"hello \\xff", stdout=subprocess.PIPE).stdout)
print(subprocess.check_output(["sh", "-c", "echo $$; echo b >&2"], stderr=subprocess.STDOUT, encoding="utf-8"))
print(subprocess.getoutput("echo $$"), subprocess.getstatusoutput("echo $$; exit 4"))
print(subprocess.call(["sh", "-c", "exit 5"]), subprocess.run("echo $$", shell=True, capture_output=True).stdout)
try:
    subprocess.check_call(["sh", "-c", "kill -9 $$"])
except subprocess.CalledProcessError as error:
    print(error, error.returncode)
try:
    subprocess.run(["no-such-program-here"])
except FileNotFoundError as error:
    print(repr(error), error.filename)
try:
    subprocess.run(["/etc/passwd"])
except PermissionError as error:
    print(repr(error), error.filename)
try:
    subprocess.run(["sh", "-c", "echo part; exec sleep 20"], timeout=0.5, stdout=subprocess.PIPE)
except subprocess.TimeoutExpired as error:
    print(error, error.stdout, error.output, error.stderr)
try:
    subprocess.run(["sh", "-c", "echo $$ >&2; exit 1"], check=True, capture_output=True)
except subprocess.CalledProcessError as error:
    print(error, error.stderr)
print(subprocess.check_output(filter(None, ["echo", "", "of", "an", "iterator"])))
print(subprocess.call(args=(word for word in ["sh", "-c", "exit 6"])), subprocess.Popen(iter(["true"])).wait())
print(os.system("exit 3"), os.popen("echo $$").read(), os.popen("exit 2").close())
""",
    "speak": """
import subprocess
with subprocess.Popen(["sh", "-c", "echo $$; read a; echo got $a; read b; echo $b; exit 7"], stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, text=True, bufsize=1) as p:
    print(p.pid, p.stdout.readline())
    p.stdin.write("one\\n")
    print(p.stdout.readline(), p.poll())
    p.stdin.write("two\\n")
    for line in p.stdout:
        print(line)
print(p.returncode, p.poll(), p.wait())
PIPE = subprocess.PIPE
p = subprocess.Popen(["sh", "-c", "cat; echo $$ >&2"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
print(p.communicate(b"in" * 10, timeout=20), p.returncode)
p = subprocess.Popen("echo $$; exec sleep 30", shell=True, stdout=subprocess.PIPE)
print(p.stdout.readline(), p.poll())
try:
    p.wait(timeout=0.05)
except subprocess.TimeoutExpired as error:
    print(error)
try:
    p.communicate(timeout=0.05)
except subprocess.TimeoutExpired as error:
    print(error, error.stdout)
p.terminate()
print(p.wait(), p.returncode)
p.stdout.close()
import time
p = subprocess.Popen(["sh", "-c", "sleep 0.2; exit 4"])
polls = 0
while p.poll() is None:
    polls += 1
    time.sleep(0.05)
print(polls, p.returncode)
p = subprocess.Popen(["sh", "-c", "echo $$; sleep 0.1; echo b"], stdout=subprocess.PIPE, bufsize=0)
print(p.stdout.read(3), p.stdout.read(), p.wait())
p.stdout.close()
""",
    "asyncio": """
import asyncio, asyncio.subprocess, subprocess
PIPE = asyncio.subprocess.PIPE
async def main():
    p = await asyncio.create_subprocess_exec("sh", "-c", "cat; echo $$ >&2; exit 3", stdin=PIPE,
                                             stdout=PIPE, stderr=PIPE)
    print(p.pid, await p.communicate(b"input"), p.returncode)
    p = await asyncio.create_subprocess_shell("echo $$; read a; echo got $a; echo 3", stdin=PIPE, stdout=PIPE)
    print(p.returncode, await p.stdout.readline())
    p.stdin.write(b"hello\\n")
    await p.stdin.drain()
    print(await p.stdout.readuntil(b"hello"), await p.stdout.readexactly(1))
    async for line in p.stdout:
        print(line)
    print(p.stdout.at_eof(), await p.wait(), p.returncode)
    p.stdin.close()
    await p.stdin.wait_closed()
    try:
        await (await asyncio.create_subprocess_exec("no-such-program")).wait()
    except FileNotFoundError as error:
        print(repr(error))
    p = await asyncio.create_subprocess_exec("sleep", "30", stdout=PIPE)
    try:
        await asyncio.wait_for(p.communicate(), 0.2)
    except TimeoutError:
        print("slow", p.returncode)
    p.kill()
    print(await p.wait())
    p = await asyncio.create_subprocess_shell("printf abc", stdout=PIPE)
    try:
        await p.stdout.readexactly(9)
    except asyncio.IncompleteReadError as error:
        print(error)
    print(await p.wait())
    async def one(n):
        p = await asyncio.create_subprocess_shell(f"sleep 0.0{9 - n}; echo {n} $$", stdout=PIPE)
        out, _ = await p.communicate()
        return out
    for first in asyncio.as_completed([one(n) for n in range(6)]):
        print(await first)
    print(await asyncio.to_thread(subprocess.check_output, ["sh", "-c", "echo $$"]))
asyncio.run(main())
""",
    "threads": """
import subprocess, threading
from concurrent.futures import ThreadPoolExecutor
def work(n):
    return subprocess.run(["sh", "-c", f"sleep 0.0{9 - n}; echo {n} $$"], capture_output=True, text=True).stdout
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(work, range(8))))
lines = []
p = subprocess.Popen(["sh", "-c", "for i in 1 2 3; do echo $i $$; sleep 0.01; done"], stdout=subprocess.PIPE, text=True)
t = threading.Thread(target=lambda: lines.extend(p.stdout))
t.start(); t.join(); p.wait(); p.stdout.close()
print(lines)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_command_is_not_run_in_a_replay(bench, name: str) -> None:
    out = bench.record(WATCHED + PROGRAMS[name] + TOLD)
    replayed = bench.replay()
    assert (replayed.code, replayed.out) == (0, out), replayed.err
    assert "started 0" in replayed.err
    assert not replayed.report["new_readings"] and not replayed.report["unread"]


VARIABLES = """
import os, subprocess
key = os.environ["MY_API_KEY"]
print(os.environ["REGION"])
for env in (
    {"PATH": os.environ["PATH"], "REGION": os.environ["REGION"], "MY_API_KEY": key},
    {**os.environ, "GITHUB_TOKEN": "tok-" + "3" * 9, "MODE": "x"},
    {"MY_API_KEY": "other-" + "3" * 9, "HERE": os.getcwd()},
):
    print(subprocess.run(["/bin/sh", "-c", "echo $REGION$MODE"], env=env, capture_output=True, text=True).stdout)
"""


def test_the_variables_of_a_command_may_be_others_where_it_is_replayed(bench) -> None:
    bench.environment = {"REGION": "eu", "MY_API_KEY": "sk-333333333", "OTEL_AGENT_REPLAY_MASK_DEFAULTS": "off"}
    out = bench.record(VARIABLES)
    kept = b"".join(path.read_bytes() for path in (bench.folder / "home" / "spool").iterdir())
    assert b"MODE" in kept and b"333333333" not in kept
    for environment in ({}, {"MY_API_KEY": "sk-here", "GITHUB_TOKEN": "tok-here", "MODE": "x"}):
        bench.environment = {"REGION": "us", **environment}
        replayed = bench.replay()
        assert (replayed.code, replayed.out) == (0, out), replayed.err
    bench.environment = {"REGION": "us"}
    assert bench.replay_changed(VARIABLES.replace('"MODE": "x"', '"MODE": "y"')).divergences == [("diverged", "main")]
