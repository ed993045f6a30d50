"""Crossings from several processes at once into `agent-replay serve` and through the Collector, against plain OTLP.

    python benchmarks/ingest.py [--crossings 100000] [--processes 8] [--json]

Each way begins with a new server, and with a new Collector (`scripts/build_collector.sh`, `collector/gateway.yaml`)
before it where it names one:

    frames      what this package records, in batches of 4 MiB of bytes: nothing is queued in memory, each batch is
                acknowledged before the next is sent
    agents      programs that are recorded while they run, and the process that ships what they record
    sdk         the SDK's BatchSpanProcessor and OTLP exporter, with its defaults, as fast as the program ends spans
    sdk paced   the same, with a queue that is large enough for every span

It prints spans a second until the last is stored, processor time, the largest memory, and what was stored of what was
sent, and rewrites the README's table. No figure of a sender that loses spans is a rate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import ROOT, circumstances, publish, table

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(ROOT))

BATCH_BYTES = (4 << 20) - 65536
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "An answer of some length. " * 40}}]})
WAYS = ("frames", "agents", "sdk", "sdk paced")
THROUGH = ("serve", "collector")
PATIENCE = 60
"""Seconds without a further span in the store after which the rest is taken to be lost."""

AGENT = """
import sys, time
import otel_agent_replay as replay

ANSWER = sys.argv[2]

@replay.boundary("model", "model:chat")
def chat(number):
    return f"{number} {ANSWER}"

time.sleep(max(float(sys.argv[3]) - time.time(), 0))
for number in range(int(sys.argv[1])):
    chat(number)
"""


@dataclass
class Watched:
    """A process of which is known what it takes."""

    pid: int

    def seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Largest resident memory, MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


@dataclass
class Server:
    """`agent-replay serve`, in a home of its own."""

    folder: Path

    def __enter__(self) -> Server:
        command = [Path(sys.executable).parent / "agent-replay", "serve", "--json", "--home", self.folder / "store"]
        ports = ["--grpc-port", "0", "--http-port", "0", "--sql-port", "0"]
        self.process = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.process.stdout.readline())
        self.watched = Watched(self.process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)

    @property
    def target(self) -> str:
        return self.said["otlp_grpc"].removeprefix("http://")

    def count(self, name: str) -> int:
        sql = f"SELECT count() FROM otel.{name} FINAL"
        with urllib.request.urlopen(self.said["sql"], data=sql.encode(), timeout=600) as answer:
            return int(answer.read())


@dataclass
class Collector:
    """The gateway of collector/gateway.yaml before a server, as the tests start it."""

    folder: Path
    server: Server

    def __enter__(self) -> Collector:
        from tests.collector.conftest import Collector as Started

        script = ROOT / "scripts" / "build_collector.sh"
        binary = subprocess.run([script, "--cached"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        named = {
            "CLICKHOUSE_ENDPOINT": self.server.said["sql"],
            "CLICKHOUSE_USER": "default",
            "CLICKHOUSE_PASSWORD": Path(self.server.said["token_file"]).read_text().strip(),
        }
        self.started = Started(Path(binary), "gateway", self.folder / "gateway", named).start()
        self.watched = Watched(self.started.process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.started.stop()

    @property
    def target(self) -> str:
        return self.started.grpc


def request(spans: list[bytes]) -> bytes:
    """An ExportTraceServiceRequest of encoded spans."""
    from otel_agent_replay.recording.wire import varint

    body = b"".join(b"\x12" + varint(len(span)) + span for span in spans)
    for tag in (b"\x12", b"\x0a"):
        body = tag + varint(len(body)) + body
    return body


def send_frames(target: str, crossings: int, ready: Any) -> None:
    """Record into a spool, then send what is in it."""
    import grpc

    from otel_agent_replay.recording.frames import Frame, as_otlp
    from otel_agent_replay.store.spool import Spool
    from tests.store.recorder_process import Recorder

    with tempfile.TemporaryDirectory() as home, grpc.insecure_channel(target) as channel:
        recorder = Recorder(Path(home))
        run = recorder.start("bench")
        for number in range(crossings):
            run.model(number, answer=ANSWER.encode())
        run.end()
        recorder.close()
        spans = [
            as_otlp(item) for file in Spool(Path(home) / "spool").files() for item in file.scan()
            if isinstance(item, Frame) and item.kind != "crossing.start"
        ]  # fmt: skip
        export = channel.unary_unary(EXPORT)
        ready.wait()
        for batch in _batches(spans):
            _send(export, batch)


def _batches(spans: list[bytes]) -> Iterator[list[bytes]]:
    batch, size = [], 0
    for span in spans:
        if size + len(span) > BATCH_BYTES and batch:
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += len(span) + 16
    yield batch


def _send(export: Any, batch: list[bytes]) -> None:
    import grpc

    for _ in range(600):
        try:
            export(request(batch), timeout=120)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
                raise
            time.sleep(0.5)
        else:
            return
    raise SystemExit("the server stayed busy")


def send_sdk(target: str, crossings: int, ready: Any, *, paced: bool) -> None:
    """End spans with the same attributes, and flush."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"http://{target}", insecure=True)
    queue = {"max_queue_size": crossings + 1} if paced else {}
    provider = TracerProvider(resource=Resource({"service.name": "bench"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, **queue))
    tracer = provider.get_tracer("bench")
    ready.wait()
    for number in range(crossings):
        with tracer.start_as_current_span("chat m1") as span:
            span.set_attributes(
                {
                    "gen_ai.request.model": "m1",
                    "gen_ai.request.temperature": 0.5,
                    "gen_ai.usage.input_tokens": 5,
                    "gen_ai.usage.output_tokens": 7,
                    "gen_ai.response.finish_reasons": ["stop"],
                    "bench.lane": "main",
                    "bench.key": "model:openai.chat",
                    "bench.ordinal": number,
                    "bench.request": f'{{"model":"m1","messages":[{{"role":"user","content":"question {number}"}}]}}',
                    "bench.response": ANSWER,
                }
            )
    provider.force_flush(600_000)
    provider.shutdown()


def work(way: str, target: str, crossings: int, ready: Any, spent: Any) -> None:
    """One sender."""
    if way == "frames":
        send_frames(target, crossings, ready)
    else:
        send_sdk(target, crossings, ready, paced=way == "sdk paced")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent.put(usage.ru_utime + usage.ru_stime)


def senders(way: str, target: str, each: int, processes: int) -> Iterator[float]:
    """Send; gives 0 when they begin, and the processor time of all of them, their preparation too, when they ended."""
    context = multiprocessing.get_context("spawn")
    ready, spent = context.Barrier(processes + 1), context.Queue()
    started = [context.Process(target=work, args=(way, target, each, ready, spent)) for _ in range(processes)]
    for sender in started:
        sender.start()
    ready.wait(600)
    yield 0
    for sender in started:
        sender.join(900)
        if sender.exitcode != 0:
            raise SystemExit(f"a sender ended with {sender.exitcode}")
    yield sum(spent.get(timeout=10) for _ in started)


def agents(folder: Path, target: str, each: int, processes: int) -> Iterator[float]:
    """The same, by programs that are recorded; what they leave is shipped, by whoever ships."""
    program = folder / "agent.py"
    program.write_text(AGENT)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env |= {
        "OTEL_AGENT_REPLAY_HOME": str(folder / "agents"),
        "OTEL_AGENT_REPLAY_EXIT_WAIT": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{target}",
        "OTEL_TRACES_EXPORTER": "none",
    }
    scripts = Path(sys.executable).parent
    start = time.time() + 6  # by then all of them have been loaded
    line = [scripts / "opentelemetry-instrument", sys.executable, program, str(each), ANSWER, str(start)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = [subprocess.Popen(line, env=env) for _ in range(processes)]
    time.sleep(max(start - time.time(), 0))
    yield 0
    shippers: dict[int, float] = {}
    for agent in started:
        while agent.poll() is None:
            shippers |= _shippers(folder / "agents")
            time.sleep(0.2)
        if agent.returncode != 0:
            raise SystemExit(f"an agent ended with {agent.returncode}")
    ship = subprocess.Popen([scripts / "agent-replay", "ship", "--wait", "600"], env=env, stdout=sys.stderr)
    while ship.poll() is None:
        shippers |= _shippers(folder / "agents")
        time.sleep(0.2)
    if ship.returncode != 0:
        raise SystemExit(f"ship ended with {ship.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield children + sum(shippers.values())


def _shippers(home: Path) -> dict[int, float]:
    """Processor time of the processes that ship from a home, which are nobody's children."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                if b"shipping import worker" in line and json.dumps(str(home)).encode() in line:
                    found[int(entry.name)] = Watched(int(entry.name)).seconds()
            except (OSError, IndexError):
                continue
    return found


def settled(server: Server, name: str, expected: int) -> int:
    """Wait until so many are stored, or no more come; gives how many."""
    found, until = -1, time.monotonic() + PATIENCE
    while (stored := server.count(name)) != expected and time.monotonic() < until:
        if stored != found:
            found, until = stored, time.monotonic() + PATIENCE
        time.sleep(0.5)
    return stored


def measure(way: str, through: str, crossings: int, processes: int) -> dict[str, Any]:
    """Send, and look what arrived."""
    each = crossings // processes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingest-")))
        server = stack.enter_context(Server(folder))
        parts = {"serve": server.watched}
        target = server.target
        if through == "collector":
            collector = stack.enter_context(Collector(folder, server))
            parts["collector"], target = collector.watched, collector.target
        sent = agents(folder, target, each, processes) if way == "agents" else senders(way, target, each, processes)
        next(sent)
        began, used = time.monotonic(), {name: part.seconds() for name, part in parts.items()}
        spent = next(sent)
        accepted = time.monotonic() - began
        name = "spans" if way.startswith("sdk") else "crossings"
        stored = server.count(name) if way == "sdk" and through == "serve" else settled(server, name, each * processes)
        took = time.monotonic() - began
        return {
            "way": way,
            "through": through,
            "sent": each * processes,
            "stored": stored,
            "accepted_seconds": round(accepted, 1),
            "seconds": round(took, 1),
            "spans_per_second": round(stored / took),
            "senders_cpu_seconds": round(spent, 1),
            "cpu_seconds": {name: round(part.seconds() - used[name], 1) for name, part in parts.items()},
            "memory_mib": {name: part.memory() for name, part in parts.items()},
            "load": round(os.getloadavg()[0]),
        }


NAMED = {
    "frames": "recorded frames",
    "agents": "agents while they are recorded",
    "sdk": "SDK, its defaults",
    "sdk paced": "SDK, queue for every span",
}


def row(found: dict[str, Any]) -> list[str]:
    lost = found["sent"] - found["stored"]
    cpu, memory = found["cpu_seconds"], found["memory_mib"]
    return [
        f"{NAMED[found['way']]}, {'through the Collector' if found['through'] == 'collector' else 'to `serve`'}",
        f"{found['stored']:,}",
        f"{lost:,}",
        "—" if lost else f"{found['spans_per_second']:,}",
        f"{found['senders_cpu_seconds']:.0f}",
        f"{cpu['collector']:.0f}" if "collector" in cpu else "",
        f"{cpu['serve']:.0f}",
        f"{memory['collector']:,}" if "collector" in memory else "",
        f"{memory['serve']:,}",
        str(found["load"]),
    ]


def report(rows: list[list[str]], crossings: int, processes: int) -> str:
    heads = [
        "",
        "stored",
        "lost",
        "a second",
        "CPU s: senders",
        "Collector",
        "`serve`",
        "MiB: Collector",
        "`serve`",
        "load",
    ]
    return "\n".join(
        [
            circumstances("otel-agent-replay", "opentelemetry-sdk", "chdb", "grpcio", here=True),
            f"{crossings:,} model calls with an answer of a kilobyte, from {processes} processes at once, over gRPC.",
            "Spans a second count until the last is in the tables. Senders, Collector and `serve` share the cores with",
            "whatever else runs; *load* is the load average at the end of each measurement, and rows of different load",
            "are not to be compared:",
            "",
            table(heads, rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crossings", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--through", choices=THROUGH, action="append")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, README untouched")
    asked = parser.parse_args()
    rows = []
    for through in asked.through or THROUGH:
        for way in asked.way or WAYS:
            found = measure(way, through, asked.crossings, asked.processes)
            print(json.dumps(found), file=sys.stdout if asked.json else sys.stderr, flush=True)
            rows.append(row(found))
    if not asked.json:
        publish("ingest", report(rows, asked.crossings, asked.processes))


if __name__ == "__main__":
    main()
