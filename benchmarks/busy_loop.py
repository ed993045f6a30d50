"""How much a recording slows an event loop that never idles.

    python benchmarks/busy_loop.py [--rounds N] [--dry]

Forty tasks ask a model server over the SDK, call after call, on a loop that computes nine of ten milliseconds in one
of three ways; and, to compare, on one that is idle. The model takes a second for an answer, as models do. Recorded
and bare runs alternate in fresh processes; of each the median and the least count. Prints a table, and rewrites the
README's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from _clocks import EXCLUDE
from _common import BIN, PYTHON, circumstances, environment, publish, table

PROGRAM = Path(__file__).parent / "_busy.py"
TASKS = 40
CALLS = 4
LATENCY = 1.0
"""Seconds until the model answers."""
BURST = 0.009
"""Seconds that a burst computes on this machine; it then waits for a millisecond."""
SHAPES = {
    "bursts": "bursts of 9 ms, then 1 ms of waiting",
    "sleep0": "a task that spins on `sleep(0)`",
    "call_soon": "a callback that schedules itself",
    "idle": "idle",
}
BARE, OURS = "bare", "recorded"
MOST_SECONDS = 600


def rounds_of_a_burst() -> int:
    """How many rounds of the program's loop take as long as a burst: the least of a few tries."""
    least = float("inf")
    rounds = 200_000
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(rounds):
            pass
        least = min(least, time.perf_counter() - began)
    return int(rounds * BURST / least)


def measure(name: str, shape: str, url: str, rounds: int) -> tuple[float, int]:
    """Seconds that the calls took, and how many calls were recorded."""
    with tempfile.TemporaryDirectory(prefix="busy-loop-") as folder:
        times = Path(folder) / "times"
        variables = {
            **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
            **EXCLUDE,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "OTEL_AGENT_REPLAY_HOME": folder,
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai",
            "TIMES": str(times),
        }
        launcher = [str(BIN / "opentelemetry-instrument")] if name == OURS else []
        command = [*launcher, str(PYTHON), str(PROGRAM), url, str(TASKS), str(CALLS), shape, str(rounds)]
        subprocess.run(command, env=variables, check=True, timeout=MOST_SECONDS)
        calls = 0
        if name == OURS:
            asked = [str(BIN / "agent-replay"), "runs", "--json"]
            done = subprocess.run(asked, env=variables, check=True, timeout=MOST_SECONDS, capture_output=True)
            (run,) = json.loads(done.stdout)
            assert run["complete"], run
            calls = run["model_calls"]
        return float(times.read_text("utf-8")), calls


def serve(latency: float) -> None:
    """The model: answers each request after the latency. Tells its port on standard output."""
    message = {"role": "assistant", "content": "Yes. " * 100, "refusal": None}
    body = json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1790000000,
            "model": "gpt-4o-mini",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 500, "completion_tokens": 150, "total_tokens": 650},
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while asked := await reader.readuntil(b"\r\n\r\n"):
                lengths = [line for line in asked.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(lengths[0].split(b":")[1]))
                await asyncio.sleep(latency)
                writer.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1000)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())


def row(shape: str, said: str, url: str, rounds: int, count: int) -> list[str]:
    taken: dict[str, list[float]] = {BARE: [], OURS: []}
    for _ in range(count):
        for name, kept in taken.items():
            seconds, calls = measure(name, shape, url, rounds)
            assert name == BARE or calls == 2 * TASKS * CALLS, calls
            kept.append(seconds)
    middle, least = ({name: what(kept) for name, kept in taken.items()} for what in (median, min))
    print(shape, taken, file=sys.stderr, flush=True)
    return [
        said,
        f"{middle[BARE]:.2f}",
        f"{middle[OURS]:.2f}",
        f"{middle[OURS] / middle[BARE]:.3f}",
        f"{least[OURS] / least[BARE]:.3f}",
    ]


def report(rows: list[list[str]]) -> str:
    return "\n".join(
        [
            circumstances("otel-agent-replay", "openai", "httpx2"),
            f"{TASKS} tasks of {CALLS} calls each, prompts of 2 KB, a model that takes {LATENCY:g} s for an answer.",
            "Seconds until all have their answers, each a process of its own, in turns:",
            "",
            table(["the loop", "bare", "recorded", "x bare, medians", "x bare, least"], rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each")
    parser.add_argument("--latency", type=float, default=LATENCY, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="leave the README as it is")
    options = parser.parse_args()
    if options.serve:
        serve(options.latency)
        return
    environment()
    rounds = rounds_of_a_burst()
    command = [sys.executable, __file__, "--serve", "--latency", str(options.latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        try:
            rows = [row(shape, said, url, rounds, options.rounds) for shape, said in SHAPES.items()]
        finally:
            server.kill()
    text = report(rows)
    print(text) if options.dry else publish("busy_loop", text)


if __name__ == "__main__":
    main()
