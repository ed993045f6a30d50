"""Agent, Collector beside it, gateway, `serve`, and a replay on a machine that has seen nothing of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING

import clickhouse_connect
import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.conftest import BIN, LIMIT, Bench
from tests.server.conftest import Served

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import asyncio, os, sys
import openai

CALLS = int(sys.argv[1])

async def main():
    client = openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0)

    async def ask(number):
        said = [{"role": "user", "content": f"question {number % 3} " + "x" * 500}]
        answer = await client.chat.completions.create(model="m", messages=said, extra_headers={"x-delay": "0.05"})
        return answer.choices[0].message.content

    for start in range(0, CALLS, 4):
        print(*await asyncio.gather(*map(ask, range(start, start + 4))), sep="\\n", flush=True)
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "stream"}], stream=True
    )
    print([chunk.choices[0].delta.content async for chunk in stream])

asyncio.run(main())
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """`agent-replay serve`, in a home that no agent uses."""
    home = tmp_path / "store"
    home.mkdir()
    served = Served(home)
    served.start()
    yield served
    served.stop()


def writer(served: Served) -> dict[str, str]:
    """What a gateway needs to insert."""
    token = Path(served.said["token_file"]).read_text().strip()
    return {"CLICKHOUSE_ENDPOINT": served.said["sql"], "CLICKHOUSE_USER": "default", "CLICKHOUSE_PASSWORD": token}


def elsewhere(bench: Bench, served: Served) -> Bench:
    """A machine with the same program, no recording, and the store's address."""
    folder = bench.folder / "elsewhere"
    folder.mkdir()
    other = Bench(folder, base_url=bench.base_url, environment={"OTEL_AGENT_REPLAY_DSN": f"{served.said['sql']}/otel"})
    other.write(PROGRAM)
    return other


def shipped(bench: Bench) -> dict:
    """Wait until nothing of a bench waits to be shipped; gives its status."""
    done = bench.run(BIN / "agent-replay", "ship", "--json", "--wait", LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(bench.run(BIN / "agent-replay", "status", "--json").stdout)


def arrived(bench: Bench, calls: int) -> dict:
    """Wait for the one run, until it is complete; a gateway keeps spans back for a second."""
    end = time.monotonic() + LIMIT
    while True:
        runs = bench.runs()
        if runs and runs[0]["complete"] and runs[0]["model_calls"] == calls:
            assert len(runs) == 1
            return runs[0]
        assert time.monotonic() < end, runs
        time.sleep(0.3)


def test_a_run_that_went_through_two_collectors_is_replayed_from_the_store(collectors, served, model_bench) -> None:
    gateway = collectors("gateway", **writer(served)).start()
    beside = collectors("agent", GATEWAY_ENDPOINT=gateway.grpc, GATEWAY_INSECURE="true").start()
    model_bench.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{beside.grpc}"
    out = model_bench.record(PROGRAM, 8)
    shipped(model_bench)
    other = elsewhere(model_bench, served)
    run = arrived(other, calls=9)
    replayed = other.replay(sys.executable, "program.py", 8, run=run["trace_id"])
    assert (replayed.code, replayed.out) == (0, out), replayed.err


def test_a_view_that_fails_for_a_while_loses_nothing_and_counts_nothing_twice(collectors, served, model_bench) -> None:
    gateway = collectors("gateway", **writer(served)).start()
    model_bench.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{gateway.grpc}"
    token = Path(served.said["token_file"]).read_text().strip()
    client = clickhouse_connect.get_client(dsn=served.said["sql"], username="default", password=token, database="otel")
    try:
        client.command("ALTER TABLE crossings ADD CONSTRAINT broken CHECK kind != 'model'")
        out = model_bench.record(PROGRAM, 8)
        shipped(model_bench)
        end = time.monotonic() + LIMIT
        while "VIOLATED_CONSTRAINT" not in gateway.log:
            assert time.monotonic() < end, gateway.log[-2000:]
            time.sleep(0.1)
        client.command("ALTER TABLE crossings DROP CONSTRAINT broken")
        other = elsewhere(model_bench, served)
        run = arrived(other, calls=9)
        sql = """
            SELECT (SELECT count() FROM crossings FINAL WHERE kind = 'model'),
                   (SELECT sum(output_tokens) FROM crossings FINAL),
                   (SELECT count() FROM spans FINAL WHERE attributes['agent_replay.kind'] = 'model' AND form = 2),
                   (SELECT sum(toUInt64OrZero(attributes['gen_ai.usage.output_tokens'])) FROM spans FINAL)
        """
        ((calls, cost, spans, other_cost),) = client.query(sql).result_rows
    finally:
        client.close()
    assert (calls, spans) == (9, 9)
    assert cost == other_cost == run["output_tokens"]
    replayed = other.replay(sys.executable, "program.py", 8, run=run["trace_id"])
    assert (replayed.code, replayed.out) == (0, out), replayed.err


class Backend:
    """Another backend: an OTLP receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list = []
        self.metrics: list = []
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self), self.server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def Export(self, request, context):  # noqa: N802 (as the service is called)
        self.backend.spans += [
            span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans
        ]
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def Export(self, request, context):  # noqa: N802 (as the service is called)
        self.backend.metrics += [
            metric for each in request.resource_metrics for scope in each.scope_metrics for metric in scope.metrics
        ]
        return metrics_service_pb2.ExportMetricsServiceResponse()


def test_a_split_pipeline_gives_others_every_call_without_payload_and_metrics(collectors, served, model_bench) -> None:
    backend = Backend()
    split = collectors(
        "split", **writer(served), BACKEND_ENDPOINT=backend.address, BACKEND_INSECURE="true", METRICS_INTERVAL="1s"
    )
    split.start()
    model_bench.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{split.grpc}"
    model_bench.record(PROGRAM, 4)
    shipped(model_bench)
    run = arrived(elsewhere(model_bench, served), calls=5)
    end = time.monotonic() + LIMIT
    while not any(metric.name == "agent_replay.duration" for metric in backend.metrics):
        assert time.monotonic() < end, [metric.name for metric in backend.metrics]
        time.sleep(0.1)
    split.stop()  # which hands on what waits
    backend.server.stop(5).wait(10)
    calls = [span for span in backend.spans if span.name.startswith("chat")]
    assert Counter(span.span_id for span in calls).most_common(1)[0][1] == 1
    assert len(calls) == 5
    assert {span.trace_id.hex() for span in calls} == {run["trace_id"]}
    written = b"".join(span.SerializeToString() for span in backend.spans)
    assert b"agent_replay.payload" not in written
    assert b"question" not in written
    assert any(b"gen_ai.request.model" in metric.SerializeToString() for metric in backend.metrics)


KILLED = ("gateway", "beside", "serve")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_whatever_is_killed_on_the_way_every_call_arrives_once(collectors, served, model_bench, seed: int) -> None:
    """kill -9 of the Collectors and of `serve`, at random moments while an agent runs."""
    chance = random.Random(seed)
    gateway = collectors("gateway", **writer(served)).start()
    beside = collectors("agent", GATEWAY_ENDPOINT=gateway.grpc, GATEWAY_INSECURE="true").start()
    sql = served.said["sql"].rpartition(":")[2]
    served.options = ("--sql-port", sql)  # where the gateway looks for it
    parts = {"gateway": gateway, "beside": beside, "serve": served}
    model_bench.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{beside.grpc}"
    model_bench.write(PROGRAM)
    agent = subprocess.Popen(
        [str(BIN / "opentelemetry-instrument"), sys.executable, "program.py", "80"],
        env=model_bench.env,
        cwd=model_bench.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    out: list[str] = []
    reader = threading.Thread(target=lambda: out.append(agent.stdout.read()))
    reader.start()
    try:
        for name in chance.sample(KILLED * 2, 6):
            time.sleep(chance.uniform(0.1, 1.0))
            parts[name].stop(signal.SIGKILL)
            time.sleep(chance.uniform(0.0, 0.5))
            parts[name].start()
        assert agent.wait(LIMIT) == 0
    finally:
        agent.kill()
        agent.wait()
        reader.join()
        agent.stdout.close()
    shipped(model_bench)
    other = elsewhere(model_bench, served)
    run = arrived(other, calls=81)
    token = Path(served.said["token_file"]).read_text().strip()
    client = clickhouse_connect.get_client(dsn=served.said["sql"], username="default", password=token, database="otel")
    try:
        found = client.query("SELECT count(), uniqExact(span_id) FROM crossings FINAL WHERE kind = 'model'").result_rows
    finally:
        client.close()
    assert found == [(81, 81)]
    replayed = other.replay(sys.executable, "program.py", 80, run=run["trace_id"])
    assert (replayed.code, replayed.out) == (0, out[0]), replayed.err
