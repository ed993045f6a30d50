"""How much a recording slows an event loop that never idles.

    python benchmarks/busy_loop.py [--rounds 7] [--calls 15] [--latency 0.1]

Forty tasks make call after call, each over its own connection to a server, on a loop that is busy in one
of three ways: bursts of 9 ms of computing each 10 ms, a task that spins on `sleep(0)`, a callback that
schedules itself; and, to compare, on one that is not. Recorded and bare
runs alternate in fresh processes; printed is the ratio of their medians, and what the recording noted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TASKS = 40
BUSY = ("bursts", "sleep0", "call_soon", "idle")


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def bursts() -> None:
    while True:
        burn(0.009)
        await asyncio.sleep(0.001)


async def sleep0() -> None:
    while True:
        burn(0.0009)
        await asyncio.sleep(0)


async def call_soon() -> None:
    loop = asyncio.get_running_loop()

    def again() -> None:
        burn(0.0009)
        loop.call_soon(again)

    again()
    await asyncio.Event().wait()


async def idle() -> None:
    await asyncio.Event().wait()


async def agent(call, busy: str, calls: int, address: tuple[str, int]) -> float:
    """Seconds that all calls took."""
    connections = [await asyncio.open_connection(*address) for _ in range(TASKS)]

    async def worker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(calls):
            await call(reader, writer)

    background = asyncio.create_task(globals()[busy]())
    await asyncio.sleep(0.02)
    began = time.perf_counter()
    await asyncio.gather(*[worker(*connection) for connection in connections])
    took = time.perf_counter() - began
    background.cancel()
    for _, writer in connections:
        writer.close()
    return took


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """One question and its answer."""
    writer.write(b"x")
    return await reader.read(1)


def bare(busy: str, calls: int, address: tuple[str, int]) -> dict[str, object]:
    return {"seconds": asyncio.run(agent(exchange, busy, calls, address)), "notes": []}


def recorded(busy: str, calls: int, address: tuple[str, int]) -> dict[str, object]:
    sys.path.insert(0, str(ROOT))
    from otel_agent_replay.boundary import lanes
    from otel_agent_replay.boundary.session import Call, cross, run_async, settle
    from otel_agent_replay.instrument import concurrency
    from otel_agent_replay.recording.values import Kind
    from tests.concurrency.tiny import Recorder

    session = Recorder()
    concurrency.install()
    lanes.set_process_root(session.root)  # type: ignore[arg-type]

    async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> object:
        lane = lanes.current()
        crossing = session.open(lane, Call(Kind.MODEL, "model", wire=True))  # type: ignore[arg-type]
        return settle(await run_async(cross(crossing), lambda: exchange(reader, writer)))  # type: ignore[arg-type]

    return {"seconds": asyncio.run(agent(call, busy, calls, address)), "notes": session.notes}


def serve(latency: float) -> None:
    """Answers each byte after the latency; tells its port on standard output."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            await asyncio.sleep(latency)
            writer.write(b"y")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1000)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())


def measure(mode: str, busy: str, options: argparse.Namespace, port: int) -> dict[str, object]:
    command = [
        sys.executable,
        __file__,
        "--run",
        mode,
        "--busy",
        busy,
        "--calls",
        str(options.calls),
        "--port",
        str(port),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--busy", choices=BUSY, action="append")
    parser.add_argument("--run", choices=("bare", "recorded", "serve"))
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.run == "serve":
        serve(options.latency)
        return
    if options.run:
        busy = options.busy[0]
        print(json.dumps(globals()[options.run](busy, options.calls, ("127.0.0.1", options.port))))
        return
    command = [sys.executable, __file__, "--run", "serve", "--latency", str(options.latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            for busy in options.busy or BUSY:
                report(busy, options, port)
        finally:
            server.kill()


def report(busy: str, options: argparse.Namespace, port: int) -> None:
    times: dict[str, list[float]] = {"bare": [], "recorded": []}
    notes: set[str] = set()
    for _ in range(options.rounds):
        for mode, kept in times.items():
            result = measure(mode, busy, options, port)
            kept.append(float(str(result["seconds"])))
            notes.update(result["notes"])  # type: ignore[arg-type]
    medians = {mode: statistics.median(kept) for mode, kept in times.items()}
    best = {mode: min(kept) for mode, kept in times.items()}
    print(
        f"{busy:10} bare {medians['bare']:.3f} s  recorded {medians['recorded']:.3f} s  "
        f"ratio of medians {medians['recorded'] / medians['bare']:.3f}  "
        f"of minima {best['recorded'] / best['bare']:.3f}  "
        f"{'; '.join(sorted(notes)) or 'always held back'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
