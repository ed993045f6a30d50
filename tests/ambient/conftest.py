"""A session that records to memory and answers from it, and a process in which a program runs in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from otel_agent_replay.boundary.draws import DRAWN, Draws
from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.boundary.sites import SiteMap, site_of
from otel_agent_replay.boundary.virtual import VirtualClock

STARTED = 1_700_000_000_000_000_000


class MemorySession:
    """Records; or, given what was recorded, replays."""

    order = None
    apart = True

    def __init__(self, recorded: MemorySession | None = None) -> None:
        self.replaying = recorded is not None
        self.root = Lane(self)
        self.values: defaultdict[tuple[str, str, str], list[object]] = defaultdict(list)
        self.credentials: dict[str, bool] = {}
        self.notes: list[object] = []
        self.divergences: list[object] = []
        self.slept_for: list[float] = []
        self.new: list[tuple[str, str]] = []
        self.recorded = recorded
        self.clock = VirtualClock(STARTED)
        self.generators: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.unsettled: list[Draws] = []
        if recorded is not None:
            known: defaultdict[str, list[str]] = defaultdict(list)
            for draws in recorded.unsettled:
                draws.settle()
            for _, source, site in recorded.values:
                known[source].append(site)
            self.sites = SiteMap(known)

    def read(self, lane, source, frame, real):
        site = site_of(frame)
        taken = self.values[lane.path, source, site.id]
        if self.recorded is None:
            value = real()
        else:
            known = self.sites.resolve(source, site)
            values = self.recorded.values.get((lane.path, source, known), []) if known is not None else []
            if len(taken) < len(values):
                value = values[len(taken)]
                self.clock.seen(source, value)
            else:
                self.new.append((source, site.id))
                value = self.clock.derived("run", lane.path, source, site.id, len(taken), real)
        assert type(value) in (int, float, str, bytes), (source, value)
        taken.append(value)
        return value

    def seeded(self, lane, frame):
        site = site_of(frame)
        number = self.generators[lane.path, site.id]
        self.generators[lane.path, site.id] += 1
        source = f"{DRAWN}{number}"
        if self.recorded is None:
            draws = Draws(lane, tell=self.values[lane.path, source, site.id].append)
            self.unsettled.append(draws)
            return draws
        known = self.sites.resolve(source, site) or ""
        return Draws(lane, (self.recorded.values.get((lane.path, source, known)) or [None])[0])

    def sources(self) -> dict[str, int]:
        counts: defaultdict[str, int] = defaultdict(int)
        for (_, source, _), values in self.values.items():
            if source.startswith(DRAWN):
                continue
            counts[source] += len(values)
        return dict(counts)

    def environment(self, name, value):
        if self.recorded is None:
            self.credentials.setdefault(name, value is not None)
            return value
        return "placeholder" if value is None and self.recorded.credentials.get(name) else value

    def slept(self, lane, seconds):
        self.slept_for.append(seconds)
        self.clock.advance(seconds)

    def declare(self, values):
        pass

    def note(self, note):
        self.notes.append(note)

    def diverge(self, divergence):
        from otel_agent_replay.errors import DivergenceError

        self.divergences.append(divergence)
        return DivergenceError(divergence)

    @contextmanager
    def here(self):
        token = LANE.set(self.root)
        try:
            yield self
        finally:
            LANE.reset(token)

    def dump(self) -> str:
        for draws in self.unsettled:
            draws.settle()

        def plain(value):
            return {"bytes": value.hex()} if isinstance(value, bytes) else value

        return json.dumps(
            {
                "values": [[*key, [plain(v) for v in values]] for key, values in self.values.items()],
                "credentials": self.credentials,
                "notes": [[str(note.kind), note.what, note.where] for note in self.notes],
                "divergences": [str(divergence) for divergence in self.divergences],
                "slept": self.slept_for,
                "new": self.new,
            }
        )

    @classmethod
    def load(cls, text: str) -> MemorySession:
        session, data = cls(), json.loads(text)
        for lane, source, site, values in data["values"]:
            session.values[lane, source, site] = [
                bytes.fromhex(v["bytes"]) if isinstance(v, dict) else v for v in values
            ]
        session.credentials = data["credentials"]
        return session


BOOTSTRAP = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("ambient_memory", {conftest!r})
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
from otel_agent_replay.boundary import guard, lanes
from otel_agent_replay.instrument.libraries import clock, environment, process, randomness, sockets
for part in (clock, randomness, process, environment, sockets):
    part.install()
import atexit
recorded = os.environ.pop("TAPE_IN", None)
written = os.environ.pop("TAPE_OUT")
session = memory.MemorySession(None if recorded is None else memory.MemorySession.load(open(recorded).read()))
if recorded is not None:
    guard.close()
@atexit.register
def keep():
    lanes.set_process_root(None)
    open(written, "w").write(session.dump())
lanes.set_process_root(session.root)
"""


class Process:
    """Runs programs in processes of their own, set up before the program is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        start = folder / "start"
        start.mkdir()
        (start / "sitecustomize.py").write_text(BOOTSTRAP.format(conftest=str(Path(__file__))))
        self.runs = 0

    def run(
        self,
        text: str,
        tape: dict | None = None,
        *,
        env: dict[str, str] | None = None,
        args: tuple[str, ...] = (),
        status: int = 0,
    ):
        """Run a program; gives its standard output and what was recorded. `tape` is replayed."""
        self.runs += 1
        program = self.folder / "program.py"
        program.write_text(textwrap.dedent(text))
        out = self.folder / f"tape{self.runs}.json"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COV")},
            "PYTHONPATH": str(self.folder / "start"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TAPE_OUT": str(out),
            **(env or {}),
        }
        if tape is not None:
            before = self.folder / f"in{self.runs}.json"
            before.write_text(json.dumps(tape))
            environment["TAPE_IN"] = str(before)
        done = subprocess.run(
            [sys.executable, *args, str(program)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr[-3000:]
        return done.stdout, json.loads(out.read_text()), done.stderr


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path)


@pytest.fixture
def ambient():
    """All patches of this part, for one test."""
    from otel_agent_replay.instrument.libraries import clock, environment, process, randomness, sockets

    undo = [part.install() for part in (clock, randomness, process, environment, sockets)]
    yield MemorySession
    for one in reversed(undo):
        one()


@pytest.fixture(scope="module")
def module_process(tmp_path_factory):
    return Process(tmp_path_factory.mktemp("program"))


class Handler(BaseHTTPRequestHandler):
    hits = 0

    def do_GET(self):
        type(self).hits += 1
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET  # noqa: N815 (the name that the server looks for)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Handler.hits = 0
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield serving.server_address[1]
    serving.shutdown()
    serving.server_close()
    thread.join(5)


@pytest.fixture
def hits(server):
    """How many requests the server got."""
    return lambda: Handler.hits
