"""However a program ends, its exit status is that of the process, and a replay is judged by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDS = {
    "a bare SystemExit": ("raise SystemExit(main())", 7),
    "sys.exit": ("sys.exit(main())", 7),
    "exit": ("exit(main())", 7),
    "a message": ("raise SystemExit('it broke')", 1),
    "no code": ("raise SystemExit", 0),
    "a class of its own": ("class Stop(SystemExit):\n    pass\nraise Stop(7)", 7),
    "changed on its way": ("try:\n    sys.exit(3)\nexcept SystemExit as stop:\n    stop.code = 7\n    raise", 7),
    "caught": ("try:\n    sys.exit(3)\nexcept SystemExit as stop:\n    assert stop.code == 3", 0),
    "in a thread": ("thread = threading.Thread(target=sys.exit, args=(3,))\nthread.start()\nthread.join()", 0),
    "in a coroutine": ("async def stop():\n    raise SystemExit(7)\nasyncio.run(stop())", 7),
    "past a finally": ("try:\n    raise SystemExit(7)\nfinally:\n    print('cleaned')", 7),
    "in an exit handler": ("import atexit\natexit.register(lambda: print('bye'))\nraise SystemExit(7)", 7),
    "without standard output": ("main()\nsys.stdout.flush()\nsys.stdout = None", 0),
    "more than a byte": ("raise SystemExit(263)", 7),
}

PROGRAM = """
import asyncio, sys, threading

def main():
    print("main")
    return 7

assert SystemExit(2).code == 2 and SystemExit(1, 2).code == (1, 2)
"""


@pytest.mark.parametrize("end", ENDS)
def test_the_status_is_that_of_the_process(bench, end: str) -> None:
    lines, status = ENDS[end]
    path = bench.write(PROGRAM + lines)
    bare = subprocess.run([sys.executable, path.name], cwd=bench.folder, capture_output=True, text=True, timeout=60)
    assert bare.returncode == status
    assert bench.record(PROGRAM + lines, code=status) == bare.stdout
    (run,) = bench.runs()
    assert run["status"] == ("error" if status else "ok")
    again = bench.replay()
    assert again.report["outcome"]["exit_status"] == status
    assert (again.code, again.out) == (0, bare.stdout), again.err
    assert bench.replay(options=("--expect", f"exit={status}")).code == 0
    assert bench.replay(options=("--expect", f"exit={status + 1}")).code == 1
