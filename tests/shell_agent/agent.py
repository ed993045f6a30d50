"""An agent that works with a shell: it plans, runs commands, reads and edits files, and decides by what it sees.

Its plan is made here, not by a model, so that every decision hangs on what commands and files said.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 40
STARTED: list[str] = []
PROCESSES = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec", "os.spawn"}
sys.addaudithook(lambda event, _: STARTED.append(event) if event in PROCESSES else None)


def shell(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def python(code: str) -> str:
    return subprocess.check_output([sys.executable, "-I", "-c", code], text=True)


async def gather(folder: Path) -> list[str]:
    async def count(path: Path) -> str:
        process = await asyncio.create_subprocess_exec("wc", "-c", str(path), stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return out.decode().split()[0]

    return await asyncio.gather(*(count(path) for path in sorted(folder.glob("*.txt"))))


def step(number: int, folder: Path, seen: str) -> tuple[str, str]:
    """One decision, from what was seen last; gives what was done and what came of it."""
    draw = random.randrange(7)
    names = sorted(os.listdir(folder))
    pick = folder / names[int(hashlib.sha256(seen.encode()).hexdigest(), 16) % len(names)]
    if number % 10 == 9:
        return "gather", json.dumps(asyncio.run(gather(folder)))
    if draw == 0:
        return "ls", shell(f"ls -la --time-style=full-iso {folder}")
    if draw == 1:
        return f"grep {pick.name}", shell(f"grep -n o {pick}")
    if draw == 2:
        return f"sed {pick.name}", shell(f"sed -i 's/o/0/' {pick}") + pick.read_text()
    if draw == 3:
        return f"python {pick.name}", python(
            f"import os, time; print(os.getpid(), time.time(), len(open({str(pick)!r}).read()))"
        )
    if draw == 4:
        path = folder / f"note{number}.txt"
        path.write_text(f"step {number}\n{seen[:200]}\n")
        return f"write {path.name}", path.read_text()
    if draw == 5:
        with pick.open("a") as file:
            file.write(f"appended {time.time()}\n")
        return f"append {pick.name}", f"{pick.stat().st_size} {pick.stat().st_mtime}"
    with subprocess.Popen(["cat", "-n", str(pick)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        return f"cat {pick.name}", "".join(line for line in process.stdout)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="shell-agent-") if len(sys.argv) < 2 else sys.argv[1])
    folder.mkdir(exist_ok=True)
    (folder / "plan.txt").write_text("one\ntwo\nfour\n")
    (folder / "notes.txt").write_text("go on\n")
    seen = ""
    for number in range(STEPS):
        done, seen = step(number, folder, seen)
        print(number, done, hashlib.sha256(seen.encode()).hexdigest()[:12], len(seen))
    print(sorted((path.name, path.stat().st_size) for path in folder.iterdir()))
    print("started", len(STARTED), file=sys.stderr)


main()
