"""How fast a replay is, beside vcrpy (bodies matched) on a recording of the same calls.

    python benchmarks/replay_speed.py [--quick]

One program of 200 sequential chat calls (2 KB prompts), and one of a single call, are recorded once by each and
then replayed in turns, with the model gone; a replay of ours is recorded too, unless it says otherwise. The best of
all rounds counts. Prints a table, and rewrites the README's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from _clocks import EXCLUDE
from _common import BIN, PYTHON, circumstances, environment, publish, table

AGENT = Path(__file__).parent / "_agent.py"
MANY, ONE = 200, 1
OURS, VCR, BARE = "otel-agent-replay", "vcrpy", "no replay (mock model)"
UNRECORDED = "otel-agent-replay --no-record"
CONTENDERS = (BARE, OURS, UNRECORDED, VCR)
Figures = dict[str, float]


class Bench:
    """Records and replays `_agent.py` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.times = folder / "times.json"
        self.runs: dict[int, str] = {}

    def environment(self, name: str, calls: int) -> dict[str, str]:
        variables = {
            **os.environ,
            **EXCLUDE,
            "OTEL_AGENT_REPLAY_HOME": str(self.folder / "home"),
            "TIMES": str(self.times),
        }
        variables["OTEL_AGENT_REPLAY_FILES_EXCLUDE"] = str(self.times)  # a replay is to write it too
        variables["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "openai"
        if name == VCR:
            variables["CASSETTE"] = str(self.folder / f"{calls}.yaml")
        return variables

    def record(self, calls: int) -> None:
        program = [str(PYTHON), str(AGENT), str(calls)]
        launcher = str(BIN / "opentelemetry-instrument")
        subprocess.run([launcher, *program], env=self.environment(OURS, calls), check=True)
        subprocess.run(program, env=self.environment(VCR, calls), check=True)
        listed = subprocess.run(
            [str(BIN / "agent-replay"), "runs", "--json"],
            env=self.environment(OURS, calls),
            check=True,
            capture_output=True,
        )
        self.runs[calls] = json.loads(listed.stdout)[0]["run_id"]

    def replay(self, name: str, calls: int) -> Figures:
        """Seconds of CPU and wall clock: of the whole command, and of the agent function in it."""
        self.times.unlink(missing_ok=True)
        command = [str(PYTHON), str(AGENT), str(calls)]
        if name in (OURS, UNRECORDED):
            options = ["--quiet", "--no-record" if name == UNRECORDED else "--record"]
            command = [str(BIN / "agent-replay"), "replay", *options, self.runs[calls]]
        variables = self.environment(name, calls)
        if name != BARE:
            variables["OFFLINE"] = "1"
        before, since = used(), time.monotonic()
        subprocess.run(command, env=variables, check=True)
        figures = {"cpu": used() - before, "wall": time.monotonic() - since}
        inside = json.loads(self.times.read_text("utf-8"))
        return {**figures, "agent cpu": inside["cpu"], "agent wall": inside["wall"]}


def used() -> float:
    """Seconds of CPU that the children so far, and theirs, have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report(best: dict[tuple[str, int], Figures]) -> str:
    rows = []
    for name in CONTENDERS:
        many, one = best[name, MANY], best[name, ONE]
        row = [name, f"{MANY / many['agent wall']:.0f}", f"{many['agent cpu'] / MANY * 1e3:.2f}"]
        for what in ("cpu", "wall"):
            bare = best[BARE, ONE][what]
            row.append(f"{bare:.2f}" if name == BARE else f"{one[what] - bare:+.2f}")
        rows.append([*row, f"{many['cpu']:.2f}", f"{many['wall']:.2f}"])
    heads = [
        "",
        "crossings a second",
        "CPU ms a crossing",
        "start, CPU s",
        "start, wall s",
        f"all of {MANY} calls, CPU s",
        f"all of {MANY} calls, wall s",
    ]
    return "\n".join(
        [
            circumstances("otel-agent-replay", "vcrpy", "openai", "httpx2"),
            f"{MANY} sequential chat calls of 2 KB, the agent function alone; what a replay adds to the start of a",
            "program of one call (the first row is that program itself); and the whole command:",
            "",
            table(heads, rows),
        ]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer rounds, README untouched")
    quick = options.parse_args().quick
    environment()
    best: dict[tuple[str, int], Figures] = {}
    with tempfile.TemporaryDirectory(prefix="replay-speed-") as folder:
        bench = Bench(Path(folder))
        for calls in (MANY, ONE):
            bench.record(calls)
        for _ in range(2 if quick else 6):
            for name in CONTENDERS:
                for calls in (MANY, ONE):
                    found = bench.replay(name, calls)
                    before = best.get((name, calls), found)
                    best[name, calls] = {what: min(value, before[what]) for what, value in found.items()}
    text = report(best)
    print(text) if quick else publish("replay_speed", text)


if __name__ == "__main__":
    main()
