"""What a recorded reading of the clock costs, beside the bare call and two libraries that make the clock virtual.

    python benchmarks/clock.py [--quick]

Every contender is a process of its own. A shared machine may run twice as fast in one second as in the next, so
rounds are short and interleaved, and of each contender the least counts: what a call takes while the machine is its
own. Then one process reads the clock a million times in one run. Prints a table, and rewrites the README's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import BIN, PYTHON, circumstances, environment, publish, table

BARE, OURS, OFF = "bare", "recorded", "off"
CONTENDERS = (BARE, OFF, OURS, "time-machine", "freezegun")
CALLS = ("time.time()", "datetime.now()")
READINGS = 1_000_000
PER_LOOP = 500
MOST_TIMES, MOST_BYTES, MOST_SECONDS = 3.0, 16e6, 0.4
"""The targets: times the bare call; bytes in the spool and seconds added for a million readings."""


# -- in the child ------------------------------------------------------------------------------------------


def read_time(turns: range) -> None:
    for _ in turns:
        time.time()


def read_now(turns: range) -> None:
    for _ in turns:
        datetime.datetime.now()


LOOPS = dict(zip(CALLS, (read_time, read_now), strict=True))


def child(name: str) -> None:
    """Do what the lines of standard input order; answer each with a line of JSON."""
    from time import perf_counter_ns, process_time

    if name == "freezegun":
        import freezegun

        freezegun.freeze_time("2001-01-01", tick=True).start()
    if name == "time-machine":
        import time_machine

        time_machine.travel(datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC), tick=True).start()
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "million":
            began = process_time()
            read_time(range(READINGS))
            print(json.dumps(process_time() - began), flush=True)
            continue
        least = dict.fromkeys(CALLS, float("inf"))
        turns = range(PER_LOOP)
        for _ in range(order["rounds"]):
            for call, loop in LOOPS.items():
                began_ns = perf_counter_ns()
                loop(turns)
                least[call] = min(least[call], (perf_counter_ns() - began_ns) / PER_LOOP)
        print(json.dumps(least), flush=True)


# -- in the parent -----------------------------------------------------------------------------------------


class Contender:
    """A child process that reads the clock."""

    def __init__(self, name: str, folder: Path) -> None:
        self.home = folder / name
        launcher = [str(BIN / "opentelemetry-instrument")] if name in (OURS, OFF) else []
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "OTEL_AGENT_REPLAY_HOME": str(self.home),
            "OTEL_AGENT_REPLAY_MODE": "off" if name == OFF else "record",
        }
        self.process = subprocess.Popen(
            [*launcher, str(PYTHON), __file__, "--child", name],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def do(self, **order: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"A contender ended with {self.process.wait()}.")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)

    def spooled(self) -> int:
        return sum(path.stat().st_size for path in self.home.rglob("*.spool"))


def measure_calls(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Nanoseconds of each call, by contender."""
    contenders = {name: Contender(name, folder) for name in CONTENDERS}
    least = {name: dict.fromkeys(CALLS, float("inf")) for name in CONTENDERS}
    for _ in range(rounds):
        for name, contender in contenders.items():
            for call, found in contender.do(do="calls", rounds=20).items():
                least[name][call] = min(least[name][call], found)
    for contender in contenders.values():
        contender.close()
    return least


def measure_million(folder: Path, rounds: int) -> tuple[float, float]:
    """Seconds of CPU that recording adds to a million readings, and bytes in the spool for them."""
    seconds = {BARE: float("inf"), OURS: float("inf")}
    size = float("inf")
    for number in range(rounds):
        for name in seconds:
            (folder / str(number)).mkdir(exist_ok=True)
            contender = Contender(name, folder / str(number))
            seconds[name] = min(seconds[name], contender.do(do="million"))
            contender.close()
            if name == OURS:
                size = min(size, contender.spooled())
    return seconds[OURS] - seconds[BARE], size


def report(calls: dict[str, dict[str, float]], added: float, size: float) -> str:
    bare = calls[BARE]
    rows = [
        [f"`{call}`", f"{bare[call]:.0f} ns"]
        + [f"{calls[name][call]:.0f} ns ({calls[name][call] / bare[call]:.1f} x)" for name in CONTENDERS[1:]]
        for call in CALLS
    ]
    return "\n".join(
        [
            circumstances("otel-agent-replay", "freezegun", "time-machine"),
            "Nanoseconds a call, the loop around it included; the least of interleaved rounds:",
            "",
            table(["", "bare", "installed, off", "recorded", "time-machine", "freezegun"], rows),
            "",
            f"A million `time.time()` in one run: {size / 1e6:.1f} MB in the spool, {added:.2f} s of CPU added.",
        ]
    )


def misses(calls: dict[str, dict[str, float]], added: float, size: float) -> list[str]:
    """The targets that were not reached, a sentence each."""
    bare, ours = calls[BARE], calls[OURS]
    found = [
        f"A recorded {call} takes {ours[call] / bare[call]:.1f} times the bare call; {MOST_TIMES:.0f} are the target."
        for call in CALLS
        if ours[call] > MOST_TIMES * bare[call]
    ]
    if ours[CALLS[0]] >= calls["time-machine"][CALLS[0]]:
        found.append("A recorded time.time() takes longer than time-machine's.")
    if size > MOST_BYTES:
        found.append(f"A million readings take {size / 1e6:.1f} MB; {MOST_BYTES / 1e6:.0f} are the target.")
    if added > MOST_SECONDS:
        found.append(f"A million readings add {added:.2f} s; {MOST_SECONDS} are the target.")
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer rounds, README untouched")
    options.add_argument("--child", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.child:
        child(chosen.child)
        return
    environment()
    with tempfile.TemporaryDirectory(prefix="clock-") as folder:
        calls = measure_calls(Path(folder), 5 if chosen.quick else 60)
        added, size = measure_million(Path(folder), 1 if chosen.quick else 5)
    text = report(calls, added, size)
    print(text) if chosen.quick else publish("clock", text)
    for sentence in misses(calls, added, size):
        print("MISSED:", sentence, file=sys.stderr)


if __name__ == "__main__":
    main()
