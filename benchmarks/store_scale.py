"""One million crossings in an embedded store: how long one run takes to load, and the list of runs.

    python benchmarks/store_scale.py [--runs N] [--keep PATH] [--dry]

Rows are made inside ClickHouse and inserted into the landing table, so that they go through the same views as any
others: 20 crossings a run, of a kilobyte each, one in 5,000 of a megabyte, two frames of readings and two pieces of
content. Then the code that the commands use is timed. Prints a table, and rewrites the README's.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from _common import circumstances, publish, table

from otel_agent_replay.store import schema, select
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.find import recording_of
from otel_agent_replay.store.recordings import Recordings

if TYPE_CHECKING:
    from collections.abc import Callable

CROSSINGS = 20
"""Of each run."""
LARGE_EVERY = 5_000
"""One crossing in so many has a payload of a megabyte; the newest run has one too."""
BATCH_RUNS = 1_000
"""Runs that are inserted at a time."""
LOADS = 300
LISTS = 30
START_NS = 1_760_000_000_000_000_000
STEP_NS = 60_000_000_000
"""Nanoseconds between the beginnings of two runs: 50,000 runs in five weeks."""

FAILED_EVERY = 20
"""One run in so many failed."""

_COLUMNS = (
    "Timestamp, TraceId, SpanId, ParentSpanId, SpanName, SpanKind, ScopeName, SpanAttributes, Duration, StatusCode"
)
_RUN = """
    lower(hex(sipHash128(run, 1)))      AS trace,
    leftPad(lower(hex(sipHash64(run, 2))), 16, '0')       AS entry,
    toDateTime64('2025-10-09 08:53:20', 9, 'UTC') + toIntervalNanosecond(run * {step}) AS began,
    modulo(run, {failed_every}) = 0     AS broke
"""


def text(*seeds: str) -> str:
    """An expression: `size` characters that do not compress to nothing, half of them never seen before."""
    return (
        f"substring(arrayStringConcat(arrayMap(k -> concat(lower(hex(sipHash64(k, {', '.join(seeds)}))), "
        "' the order arrived '), range(intDiv(size, 35) + 1))), 1, size)"
    )


_CROSSINGS = """
INSERT INTO otel_traces ({columns})
WITH
    intDiv(number, {crossings}) + {first} AS run,
    modulo(number, {crossings})           AS n,
    {run},
    if(n < 6, 'model', if(n < 14, 'tool', 'http')) AS kind,
    if(kind = 'model', n, if(kind = 'tool', n - 6, n - 14)) AS ordinal,
    modulo(run * {crossings} + n, {large_every}) = {large_every} - 1 OR (run = {last} AND n = 0) AS large,
    if(large, 1000000, 1000)              AS size,
    concat('{{"i":{{"q":"', {text}, '"}}}}') AS payload
SELECT
    began + toIntervalMillisecond(n * 40), trace, leftPad(lower(hex(sipHash64(run, n, 3))), 16, '0'), entry,
    concat(kind, ' call'), if(kind = 'tool', 'Internal', 'Client'), 'otel_agent_replay',
    mapUpdate(
        map('agent_replay.frame', 'crossing', 'agent_replay.schema', '1', 'agent_replay.run', entry,
            'agent_replay.lane', if(kind = 'http', 'main/task:fetch#0', 'main'),
            'agent_replay.key',
            if(kind = 'model', 'model:openai.chat', if(kind = 'tool', 'tool:search', 'http:GET a.example')),
            'agent_replay.ordinal', toString(ordinal), 'agent_replay.kind', kind, 'agent_replay.end', 'returned',
            'agent_replay.seq', toString(n), 'agent_replay.payload.length', toString(length(payload)),
            'agent_replay.payload', payload),
        if(kind = 'model',
            map('gen_ai.request.model', 'gpt-6', 'gen_ai.operation.name', 'chat', 'gen_ai.provider.name', 'openai',
                'gen_ai.usage.input_tokens', toString(500 + modulo(run, 97)), 'gen_ai.usage.output_tokens', '60'),
            map('server.address', 'a.example'))),
    30000000, 'Unset'
FROM numbers({count} * {crossings})
SETTINGS max_block_size = 4096
"""
_REST = """
INSERT INTO otel_traces ({columns})
WITH
    intDiv(number, 4) + {first} AS run,
    modulo(number, 4)           AS n,
    {run},
    if(n = 0, 'run', if(n = 1, 'contents', 'readings')) AS frame,
    1000                        AS size,
    if(n = 0, '{{"entry":{{"kind":"process","argv":["python"]}},"world":{{"hash_seed":"7"}},"outcome":{{}}}}',
       concat('{{"readings":[["main","time.time","agent:main",', toString((toInt64(n) - 2) * 20), ',[',
              arrayStringConcat(arrayMap(k -> toString(1.76e9 + k), range(20)), ','), ']]]}}')) AS payload
SELECT
    began + toIntervalMillisecond(n), trace, if(n = 0, entry, leftPad(lower(hex(sipHash64(run, n, 4))), 16, '0')), '',
    if(n = 0, 'agent.py', ''), 'Internal', 'otel_agent_replay',
    mapUpdate(
        map('agent_replay.frame', frame, 'agent_replay.schema', '1', 'agent_replay.run', entry),
        if(n = 1,
            map(concat('agent_replay.content.', lower(hex(sipHash128(run, 5)))), {text},
                concat('agent_replay.content.', lower(hex(sipHash128(run, 6)))), {other}),
            map('agent_replay.payload.length', toString(length(payload)), 'agent_replay.payload', payload,
                'agent_replay.entry', if(n = 0, 'process', ''),
                'agent_replay.end', if(n != 0, '', if(broke, 'raised', 'returned'))))),
    if(n = 0, 900000000, 0), if(n = 0 AND broke, 'Error', 'Unset')
FROM numbers({count} * 4)
"""


def fill(engine: Any, runs: int) -> None:
    """Make the rows, in batches."""
    for first in range(0, runs, BATCH_RUNS):
        count = min(BATCH_RUNS, runs - first)
        known = {
            "columns": _COLUMNS,
            "crossings": CROSSINGS,
            "first": first,
            "count": count,
            "last": runs - 1,
            "large_every": LARGE_EVERY,
            "run": _RUN.format(step=STEP_NS, failed_every=FAILED_EVERY),
        }
        engine.command(_CROSSINGS.format(text=text("run", "n"), **known))
        engine.command(_REST.format(text=text("run", "7"), other=text("run", "8"), **known))
        if first % (10 * BATCH_RUNS) == 0:
            print(f"{first + count:,} runs", file=sys.stderr, flush=True)


def settle(engine: Any) -> None:
    """Wait for the engine's own merges, as long as a few minutes."""
    quiet = 0
    for _ in range(240):
        quiet = 0 if any(engine.rows("SELECT 1 FROM system.merges")) else quiet + 1
        if quiet == 6:
            return
        time.sleep(0.5)


@dataclass
class Timed:
    """Milliseconds of many calls."""

    name: str
    each: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        times = sorted(self.each)
        return [self.name, f"{median(times):.1f}", f"{times[int(len(times) * 0.95)]:.1f}", f"{times[0]:.1f}"]


def timed(name: str, count: int, ask: Callable[[], object]) -> Timed:
    found = Timed(name)
    for _ in range(count):
        began = time.perf_counter()
        ask()
        found.each.append((time.perf_counter() - began) * 1e3)
    return found


def measure(dsn: str, spool: Path) -> dict[str, Any]:
    """Times of what the commands do with an open store, and the memory that the lists took beyond it."""
    recordings = Recordings(spool, dsn)
    engine = recordings.store()
    chosen = random.Random(4)
    runs = [str(row[0]) for row in engine.rows("SELECT run_id FROM runs FINAL")]
    parts = engine.rows("SELECT table, count(), sum(bytes_on_disk) FROM system.parts WHERE active GROUP BY table")
    held = {str(name): (int(count), int(size)) for name, count, size in parts}

    def load() -> None:
        run_id = recordings.find(chosen.choice(runs)[:32])
        recording = recording_of(recordings.gather(run_id))
        assert len(recording.crossings) == CROSSINGS, recording.missing
        assert not recording.missing, recording.missing

    def listed() -> None:
        assert len(list(select.tallies(engine, limit=50))) == 50

    for _ in range(20):
        load()
    before = peak()
    listed()
    lists = timed(f"the list of runs, 50 of {len(runs):,}", LISTS, listed)
    memory = peak() - before
    rows = [
        timed("one run by its trace id: found, read, put together", LOADS, load),
        lists,
        timed("how many runs there are", LISTS, lambda: select.count(engine)),
        timed(f"all {len(runs):,} runs, for `runs --json`", 3, lambda: list(select.tallies(engine))),
    ]
    recordings.close()
    return {"rows": [row.row() for row in rows], "memory": memory, "before": before, "held": held, "runs": len(runs)}


def peak() -> int:
    """Megabytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def report(found: dict[str, Any]) -> str:
    parts, size = found["held"]["frames"]
    total = sum(bytes_on_disk for _, bytes_on_disk in found["held"].values()) / 1e6
    runs = found["runs"]
    return "\n".join(
        [
            circumstances("otel-agent-replay", "clickhouse-connect", "chdb", here=True),
            f"{runs * CROSSINGS:,} crossings over {runs:,} runs, each of a kilobyte, one in {LARGE_EVERY:,}",
            f"of a megabyte; {total:,.0f} MB on disk, the frames {size / 1e6:,.0f} MB in {parts} parts.",
            "Milliseconds, with the store open:",
            "",
            table(["", "median", "95th percentile", "least"], found["rows"]),
            "",
            f"The lists of 50 runs took {found['memory']} MB beyond the {found['before']} MB that the process had",
            "taken before.",
        ]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=50_000)
    options.add_argument("--keep", type=Path, help="make the store here, or measure the one that is here")
    options.add_argument("--dry", action="store_true", help="leave the README as it is")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="store-scale-") as folder:
        path = chosen.keep or Path(folder) / "store"
        if not path.exists():
            with Engine(f"chdb://{path}") as engine:
                schema.require(engine)
                fill(engine, chosen.runs)
                settle(engine)
        text = report(measure(f"chdb://{path}", Path(folder) / "spool"))
    print(text) if chosen.dry else publish("store_scale", text)


if __name__ == "__main__":
    main()
