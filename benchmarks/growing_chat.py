"""A chat that grows: what it sends, and what of that is spooled, shipped and stored.

    python benchmarks/growing_chat.py [--turns N] [--json]

A real program calls the openai SDK over a mock transport, recorded by `opentelemetry-instrument`; its spool file is
encoded as OTLP and loaded into an embedded store. Prints a table, and rewrites the README's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import circumstances, publish, table

from otel_agent_replay.recording.frames import Frame, as_otlp, scan
from otel_agent_replay.store import find, schema
from otel_agent_replay.store.clickhouse import Engine
from otel_agent_replay.store.load import load_spool
from otel_agent_replay.store.spool import Spool

PROGRAM = Path(__file__).parent / "_chat.py"
STORED = (
    "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'otel' AND table IN {tables:Array(String)}"
)
TABLES = ["runs", "frames", "spans"]


def measure(turns: int, home: Path) -> dict[str, int]:
    """Bytes, by what they are of."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    ended = subprocess.run(
        [str(launcher), sys.executable, str(PROGRAM), str(turns)],
        env={**kept, "OTEL_AGENT_REPLAY_HOME": str(home)}, stdout=subprocess.PIPE, check=True, timeout=300,
    )  # fmt: skip
    found: dict[str, int] = json.loads(ended.stdout)
    (path,) = (home / "spool").glob("*.spool")
    frames = [item for item in scan(path.read_bytes()) if isinstance(item, Frame)]
    found["spooled"] = path.stat().st_size
    found["shipped"] = sum(len(as_otlp(frame)) for frame in frames)
    with Engine(f"chdb://{home / 'store'}") as engine:
        schema.require(engine)
        load_spool(engine, Spool(home / "spool"))
        found["stored"] = size(engine)
        for name in TABLES:
            engine.command(f"OPTIMIZE TABLE {name} FINAL")
        found["merged"] = size(engine)
    path.unlink()
    place = argparse.Namespace(spool=home / "spool", dsn=f"chdb://{home / 'store'}")
    recording = find.load(place, find.find_run(place, "latest"))
    bodies = [crossing.attempts[0].request.body for crossing in recording.crossings if crossing.wire]
    found["read back"] = sum(map(len, bodies))
    found["calls"] = len(bodies)
    found["complete"] = int(recording.complete)
    return found


def size(engine: Engine) -> int:
    return next(int(row[0]) for row in engine.rows(STORED, {"tables": TABLES}))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=200)
    options.add_argument("--json", action="store_true", help="print the figures as JSON, README untouched")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="growing-chat-") as folder:
        found = measure(chosen.turns, Path(folder))
    if chosen.json:
        print(json.dumps(found))
        return
    names = {
        "sent": "sent to the model, all calls together",
        "said": "text that is new in it",
        "spooled": "spool file",
        "shipped": "encoded as OTLP",
        "stored": "stored, as it was loaded",
        "merged": "stored, parts merged",
    }
    rows = [[words, f"{found[name] / 1000:,.0f}"] for name, words in names.items()]
    head = circumstances("otel-agent-replay", "openai", "chdb", here=True)
    said = f"A chat of {chosen.turns} calls that sends everything again with each; kilobytes:"
    publish("growing_chat", f"{head}\n{said}\n\n{table(['', 'kB'], rows)}")


if __name__ == "__main__":
    main()
