"""A short-lived process that opens the engine, so that a process that runs agent code never does.

The child finds a run, writes it and the runs that belong to it into a file in the format of the spool, and ends.
It is started without the environment's Python options: whatever instruments the parent must not instrument it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_agent_replay import errors
from otel_agent_replay.errors import AgentReplayError, StoreError
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, encode, scan
from otel_agent_replay.store.find import Loaded, opened

if TYPE_CHECKING:
    from otel_agent_replay.store.find import Place

PATIENCE = 120.0
"""Seconds that the child may take, waiting for the engine included."""

_CODE = """\
import json, sys
asked = json.load(sys.stdin)
sys.path[:] = asked["path"]
from otel_agent_replay.store import child
child.serve(asked)
"""


@dataclass(frozen=True, slots=True)
class _There:
    """A place that was named by the parent."""

    spool: Path
    dsn: str


def load(place: Place, wanted: str) -> Loaded:
    """Find and load a run in a child process. Raises what the child met with."""
    with tempfile.TemporaryDirectory(prefix="agent-replay-") as folder:
        file = Path(folder) / "run.spool"
        asked = {"spool": str(place.spool), "dsn": place.dsn, "wanted": wanted, "file": str(file), "path": sys.path}
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-c", _CODE],
                input=json.dumps(asked).encode(),
                capture_output=True,
                timeout=PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StoreError(f"The store could not be read by a child process ({error}); try again.") from error
        said = _said(ended)
        recordings = assemble(item for item in scan(file.read_bytes()) if isinstance(item, Frame))
    for run_id, lost in said["lost"].items():
        recordings[run_id].missing[:0] = lost
    return Loaded(said["run_id"], recordings)


def serve(asked: dict[str, str]) -> None:
    """The child: write the file, and say on standard output what it holds or what went wrong."""
    try:
        with opened(_There(Path(asked["spool"]), asked["dsn"])) as recordings, Path(asked["file"]).open("xb") as file:
            run_id = recordings.find(asked["wanted"])
            lost = {}
            for pile in recordings.family(run_id):
                lost[pile.run_id] = pile.lost
                for frame in pile.all_frames():
                    file.writelines(encode(frame))
        said: dict[str, object] = {"run_id": run_id, "lost": lost}
    except AgentReplayError as error:
        said = {"error": type(error).__name__, "sentence": str(error)}
    sys.stdout.write(json.dumps(said))


def _said(ended: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        tail = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        raise StoreError(f"The store could not be read by a child process ({tail[0][:300]}); try again.") from None
    if "error" in said:
        kind = getattr(errors, said["error"], StoreError)
        error = kind.__new__(kind)
        Exception.__init__(error, said["sentence"])
        raise error
    return said
