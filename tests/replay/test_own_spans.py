"""A program that uses OpenTelemetry itself: in a replay its spans record, and have the ids of the recording."""

from __future__ import annotations

import re

PROGRAM = """
import asyncio, random, threading
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from otel_agent_replay import boundary

random.seed(3)
tracer = trace.get_tracer("agent")

def ids(span):
    context = span.get_span_context()
    return f"{context.trace_id:032x} {context.span_id:016x} {span.is_recording()}"

class Printing(SpanExporter):
    def export(self, spans):
        for span in spans:
            if span.name.startswith("my "):
                print("exported", span.name, f"{span.context.span_id:016x}", dict(span.attributes))

provider = trace.get_tracer_provider()
print(isinstance(provider, TracerProvider), ids(trace.get_current_span()))
provider.add_span_processor(SimpleSpanProcessor(Printing()))

@boundary("tool", "look")
def look(number):
    with tracer.start_as_current_span("inside"):
        return number

@tracer.start_as_current_span("my decorated")
def decorated(number):
    return look(number)

async def work(number):
    with tracer.start_as_current_span(f"my work {number}", attributes={"number": number}) as span:
        await asyncio.sleep(0.02 - 0.005 * number)
        propagate.inject(carrier := {})
        return ids(span), carrier, decorated(number)

async def main():
    for told in await asyncio.gather(*map(work, range(3))):
        print(*told)

asyncio.run(main())
EXTRA
own = TracerProvider()
with own.get_tracer("own").start_as_current_span("root") as span:
    print("own", ids(span))
thread = threading.Thread(target=decorated, args=(9,))
thread.start()
thread.join()
print(random.random())
"""


def test_ids_are_those_of_the_recording(bench) -> None:
    out = bench.record(PROGRAM.replace("EXTRA", ""))
    run = bench.runs()[0]
    spans = [line.split()[1] for line in out.splitlines() if line.startswith(run["trace_id"])]
    assert len(set(spans)) == 3
    assert out.count("exported my decorated") == 4

    replayed = bench.replay()

    assert replayed.out == out
    assert replayed.code == 0, replayed.err


def test_two_runs_have_different_ids(bench) -> None:
    first, second = (set(re.findall(r"\b[0-9a-f]{16}\b", bench.record(PROGRAM.replace("EXTRA", "")))) for _ in "ab")

    assert len(first) == len(second) > 3
    assert first & second == {"0" * 16}


def test_a_span_more_shifts_only_those_that_the_same_function_starts(bench) -> None:
    out = bench.record(PROGRAM.replace("EXTRA", ""))
    changed = PROGRAM.replace("EXTRA", 'def log():\n    with tracer.start_as_current_span("one more"): pass\nlog()')

    replayed = bench.replay_changed(changed)

    assert replayed.out == out
    assert replayed.code == 0, replayed.err


def test_a_program_without_opentelemetry_does_not_load_the_sdk(bench) -> None:
    program = "import sys\nprint('opentelemetry.sdk.trace' in sys.modules, file=sys.stderr)\n"
    bench.record(program)

    replayed = bench.replay()

    assert replayed.code == 0
    assert replayed.err.startswith("False\n")
