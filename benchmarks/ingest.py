"""Crossings from several processes at once into `agent-replay serve`, against plain OTLP export of the same spans.

    python benchmarks/ingest.py [--crossings 100000] [--processes 8]

Three ways to send the same crossings over gRPC, one after the other, each into a new server:

    frames      what this package records, in batches of 4 MiB of bytes: nothing is queued in memory, each batch is
                acknowledged before the next is sent
    sdk         the SDK's BatchSpanProcessor and OTLP exporter, with its defaults, as fast as the program ends spans
    sdk paced   the same, with a queue that is large enough for every span

It prints spans a second, the processor time of the server and of the senders, the server's largest memory, and what
was stored of what was sent. No figure of a sender that loses spans is a rate.
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
from dataclasses import dataclass
from pathlib import Path

BATCH_BYTES = (4 << 20) - 65536
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "An answer of some length. " * 40}}]})
WAYS = ("frames", "sdk", "sdk paced")


@dataclass
class Server:
    """A server in a home of its own."""

    folder: Path

    def __enter__(self) -> Server:
        command = [Path(sys.executable).parent / "agent-replay", "serve", "--json", "--home", self.folder / "home"]
        ports = ["--grpc-port", "0", "--http-port", "0", "--sql-port", "0"]
        self.process = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)

    def query(self, sql: str) -> str:
        with urllib.request.urlopen(self.said["sql"], data=sql.encode(), timeout=600) as answer:
            return answer.read().decode().strip()

    def seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Largest resident memory, MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def request(spans: list[bytes]) -> bytes:
    """An ExportTraceServiceRequest of encoded spans."""
    from otel_agent_replay.recording.wire import varint

    body = b"".join(b"\x12" + varint(len(span)) + span for span in spans)
    for tag in (b"\x12", b"\x0a"):
        body = tag + varint(len(body)) + body
    return body


def send_frames(target: str, crossings: int, ready: object) -> None:
    """Record into a spool, then send what is in it."""
    import grpc

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "store"))
    from recorder_process import Recorder

    from otel_agent_replay.recording.frames import Frame, as_otlp
    from otel_agent_replay.store.spool import Spool

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
        batch, size = [], 0
        for span in spans:
            if size + len(span) > BATCH_BYTES and batch:
                _send(export, batch)
                batch, size = [], 0
            batch.append(span)
            size += len(span) + 16
        _send(export, batch)


def _send(export: object, batch: list[bytes]) -> None:
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


def send_sdk(target: str, crossings: int, ready: object, *, paced: bool) -> None:
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


def work(way: str, target: str, crossings: int, ready: object, spent: object) -> None:
    """One sender."""
    if way == "frames":
        send_frames(target, crossings, ready)
    else:
        send_sdk(target, crossings, ready, paced=way == "sdk paced")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    spent.put(usage.ru_utime + usage.ru_stime)


def measure(way: str, crossings: int, processes: int) -> dict[str, object]:
    """Send, and look what arrived."""
    with tempfile.TemporaryDirectory(prefix="ingest-") as folder, Server(Path(folder)) as server:
        context = multiprocessing.get_context("spawn")
        ready, spent = context.Barrier(processes + 1), context.Queue()
        target = server.said["otlp_grpc"].removeprefix("http://")
        each = crossings // processes
        senders = [context.Process(target=work, args=(way, target, each, ready, spent)) for _ in range(processes)]
        for sender in senders:
            sender.start()
        ready.wait(600)
        began, used = time.monotonic(), server.seconds()
        for sender in senders:
            sender.join(900)
            if sender.exitcode != 0:
                raise SystemExit(f"a sender ended with {sender.exitcode}")
        took = time.monotonic() - began
        table = "crossings" if way == "frames" else "spans"
        return {
            "way": way,
            "sent": each * processes,
            "stored": int(server.query(f"SELECT count() FROM otel.{table} FINAL")),
            "seconds": round(took, 1),
            "spans_per_second": round(each * processes / took),
            "server_cpu_seconds": round(server.seconds() - used, 1),
            "server_memory_mib": server.memory(),
            "senders_cpu_seconds": round(sum(spent.get(timeout=10) for _ in senders), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crossings", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--way", choices=WAYS, action="append")
    asked = parser.parse_args()
    for way in asked.way or WAYS:
        print(json.dumps(measure(way, asked.crossings, asked.processes)), flush=True)


if __name__ == "__main__":
    main()
