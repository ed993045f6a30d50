"""Runs parts of the demo.

    python -m tests.concurrency.program record|observe TAPE PART...       writes the tape
    python -m tests.concurrency.program replay TAPE PART...               answers from it

Prints one line of JSON: what the program decided, and what the session has to say.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from otel_agent_replay.boundary import lanes
from otel_agent_replay.instrument import concurrency
from tests.concurrency.tiny import Recorder, Replayer


def main() -> None:
    mode, tape, *parts = sys.argv[1:]
    session: Any = (
        Replayer(json.loads(Path(tape).read_text())) if mode == "replay" else Recorder(strict=mode == "record")
    )
    concurrency.install()
    lanes.set_process_root(session.root)
    from tests.concurrency import demo  # what it makes when it is imported belongs to the run

    began = time.monotonic()
    result: dict[str, Any] = {"decisions": {}}
    try:
        for part in parts or demo.ALL:
            result["decisions"][part] = getattr(demo, part)()
    except BaseException as error:
        result["error"] = f"{type(error).__name__}: {error}"
    session.order.finish()
    lanes.set_process_root(None)
    result["seconds"] = round(time.monotonic() - began, 4)
    if mode == "replay":
        result["skipped"] = len(session.order.skipped)
        result["unasked"] = sorted(str(where) for where in session.crossings if where not in session.asked)
        result["new"] = session.new
    else:
        result["notes"] = session.notes
        result["lanes"] = len({place["lane"] for place in session.crossings})
        Path(tape).write_text(json.dumps(session.tape()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
