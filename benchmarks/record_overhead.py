"""What recording costs, beside the bare SDK and two instrumentations that capture content.

    python benchmarks/record_overhead.py [--quick] [--turns N]

Every contender is a process of its own and calls the same mock model. A shared machine may run twice as fast in one
second as in the next, so rounds are short and interleaved, and of a process the least counts: what it takes while the
machine is its own. Where a process happens to lie in memory moves what it adds by a tenth and more, so each contender
has several processes, one after the other, and the median of them counts. CPU is that of all threads of the process,
with what is exported in the background. The peers export batches of OTLP into a file. Prints a table, and rewrites the
README's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from _clocks import EXCLUDE
from _common import BIN, PYTHON, circumstances, environment, publish, table

if TYPE_CHECKING:
    from collections.abc import Iterator

CHILD = Path(__file__).parent / "_contender.py"
OURS, BARE = "ours", "bare"
PEERS = ("genai-openai", "openinference")
CONTENDERS = (BARE, OURS, *PEERS)
KB = 1024
SIZES = ((2, 20), (20, 10), (100, 6))
"""Kilobytes of a prompt, and calls in a batch."""
CHATS = ((40, 8, 2), (40, 1, 2), (200, 8, 1), (200, 1, 1), (1000, 1, 1), (1000, 8, 1))
"""Turns, kilobytes that each adds, rounds of a process."""
PROCESSES = 3
"""Of each contender …"""
LONG = 200
"""… but one only where a chat has more turns than this."""
ROUNDS = 6
"""Of the single calls, in a process."""
MOST_BYTES = 2e9
"""A peer's chat that would write more than this is not run."""
SECONDS = 60.0
"""A peer's chat that takes longer is given up."""
MOST_SECONDS = 3600.0
"""The same for the bare SDK and for ours: the SDK alone takes minutes for 1,000 turns."""


class Contender:
    """A child process that makes calls."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        folder.mkdir()
        launcher = [str(BIN / "opentelemetry-instrument")] if name == OURS else []
        command = [*launcher, str(PYTHON), str(CHILD), name, str(folder)]
        variables = {
            **os.environ,
            **EXCLUDE,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "OTEL_AGENT_REPLAY_HOME": str(folder),
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",  # else openinference loses all but the last messages
        }
        self.process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def do(self, what: str, **order: Any) -> dict[str, float] | None:
        """Have it done. None where it was given up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what, **order}) + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}.")
        result: dict[str, float] | None = json.loads(answer)["result"]
        return result

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)


@dataclass
class Measured:
    """Of one case: the figures of each contender's rounds, by process; a text where it was not run."""

    rounds: dict[str, list[list[dict[str, float]]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, process: int, found: dict[str, float] | None) -> None:
        if found is None:
            self.skipped[name] = f"over {SECONDS:.0f} s"
            self.rounds.pop(name, None)
            return
        processes = self.rounds.setdefault(name, [])
        if len(processes) <= process:
            processes.append([])
        processes[process].append(found)

    def least(self, name: str, what: str) -> float:
        """Of the rounds of a process; the median of the processes."""
        return median(min(found[what] for found in rounds) for rounds in self.rounds[name])

    def added(self, name: str, what: str) -> float:
        """Microseconds a call, beyond the bare SDK."""
        return self.least(name, what) - self.least(BARE, what)

    def peers(self) -> list[str]:
        return [name for name in PEERS if name in self.rounds]


def measure_calls(measured: dict[int, Measured], contenders: list[Contender], process: int, rounds: int) -> None:
    for turn in range(rounds):
        for size, count in SIZES:
            for contender in rotated(contenders, turn + process):
                measured[size].add(contender.name, process, contender.do("calls", size=size * KB, count=count))
    print(*(cost(f"{size} KB", found) for size, found in measured.items()), file=sys.stderr, flush=True)


def measure_chat(
    found: Measured, contenders: list[Contender], process: int, turns: int, size: int, rounds: int
) -> None:
    most = turns * turns / 2 * (size * KB + 700)
    for turn in range(rounds):
        for contender in rotated(contenders, turn + process):
            if contender.name in PEERS and most > MOST_BYTES:
                found.skipped[contender.name] = f"would write over {most / 1e9:.0f} GB"
            elif contender.name not in found.skipped:
                seconds = SECONDS if contender.name in PEERS else MOST_SECONDS
                asked = {"turns": turns, "size": size * KB, "seconds": seconds}
                found.add(contender.name, process, contender.do("chat", **asked))
    case = f"chat, {turns} turns of {size} KB"
    print(cost(case, found), written(case, found), file=sys.stderr, flush=True)


def rotated(contenders: list[Contender], by: int) -> Iterator[Contender]:
    """Another one begins each round."""
    by %= len(contenders)
    yield from contenders[by:]
    yield from contenders[:by]


def cost(case: str, found: Measured) -> list[str]:
    """A row: bare, what each adds in CPU, ours to the best peer's, what ours adds in wall clock."""
    ours = found.added(OURS, "cpu")
    peers = [found.added(name, "cpu") for name in found.peers()]
    walls = [found.added(name, "wall") for name in found.peers()]
    shown = [milli(found.added(name, "cpu")) if name in found.rounds else found.skipped[name] for name in PEERS]
    wall = f"{milli(found.added(OURS, 'wall'))} / {milli(min(walls)) if walls else '-'}"
    times = f"{ours / min(peers):.2f}" if peers else "-"
    return [case, f"{found.least(BARE, 'cpu') / 1e3:.2f}", milli(ours), *shown, times, wall]


def milli(micros: float) -> str:
    return f"{micros / 1e3:+.2f}"


def written(case: str, found: Measured) -> list[str]:
    """A row: unique content, what each wrote, ours to the unique content."""
    unique = found.least(OURS, "unique")
    ours = found.least(OURS, "written")
    shown = [
        f"{found.least(name, 'written') / 1e6:.2f}" if name in found.rounds else found.skipped[name] for name in PEERS
    ]
    return [case, f"{unique / 1e6:.2f}", f"{ours / 1e6:.2f}", *shown, f"{ours / unique:.2f}"]


def report(calls: dict[int, Measured], chats: dict[tuple[int, int], Measured]) -> str:
    names = ("otel-agent-replay", "openai", "httpx2", "opentelemetry-sdk")
    peers = ("opentelemetry-instrumentation-genai-openai", "openinference-instrumentation-openai")
    costs = [cost(f"{size} KB prompt", found) for size, found in calls.items()]
    costs += [cost(f"chat, {turns} turns of {size} KB", found) for (turns, size), found in chats.items()]
    sizes = [written(f"chat, {turns} turns of {size} KB", found) for (turns, size), found in chats.items()]
    heads = ["", "bare SDK", "otel-agent-replay", *PEERS]
    return "\n".join(
        [
            circumstances(*names, *peers),
            "CPU milliseconds a call, and what recording adds; of a process the least of interleaved rounds, and",
            f"of {PROCESSES} processes the median (one, where a chat has over {LONG} turns); content capture on:",
            "",
            table([*heads, "x best peer", "wall added: this / best peer"], costs),
            "",
            "Megabytes that one run writes, and the content that is new in it (text of each turn, response bodies):",
            "",
            table(["", "new content", "otel-agent-replay", *PEERS, "x new content"], sizes),
        ]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="two processes, no chat over 40 turns, README untouched")
    options.add_argument("--turns", type=int, default=1000, help="no chat over so many turns")
    chosen = options.parse_args()
    quick, most = chosen.quick, 40 if chosen.quick else chosen.turns
    environment()
    calls = {size: Measured() for size, _ in SIZES}
    chats = {(turns, size): Measured() for turns, size, _ in CHATS if turns <= most}
    for process in range(2 if quick else PROCESSES):
        with tempfile.TemporaryDirectory(prefix="record-overhead-") as folder:
            contenders = [Contender(name, Path(folder) / name) for name in CONTENDERS]
            try:
                measure_calls(calls, contenders, process, ROUNDS)
                for turns, size, rounds in CHATS:
                    if turns <= most and (process == 0 or turns <= LONG):
                        measure_chat(chats[turns, size], contenders, process, turns, size, rounds)
            finally:
                for contender in contenders:
                    contender.close()
    text = report(calls, chats)
    print(text) if quick else publish("record_overhead", text)


if __name__ == "__main__":
    main()
