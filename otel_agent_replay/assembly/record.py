"""Record this process: its own run, and the runs that begin inside it."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otel_agent_replay.assembly import patches
from otel_agent_replay.assembly.ending import Ending, run_outcome
from otel_agent_replay.assembly.handover import STARTED_BY
from otel_agent_replay.assembly.signing import sign
from otel_agent_replay.boundary import lanes, real, runs
from otel_agent_replay.boundary.order import Gate
from otel_agent_replay.errors import UsageError
from otel_agent_replay.recording.tally import CHILD, WORKER
from otel_agent_replay.recording.values import End, Note, NoteKind, Raised, RunRecord
from otel_agent_replay.replay.record import RecordSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.masking import Masker
    from otel_agent_replay.recording.values import Json, Outcome
    from otel_agent_replay.settings import Settings
    from otel_agent_replay.telemetry.recorder import SpoolRecorder
    from otel_agent_replay.telemetry.shipping.custody import Custody

_HASH_ORDER = (
    "the order of sets of strings: PYTHONHASHSEED is not set; start the program by opentelemetry-instrument, or set it"
)

_logger = logging.getLogger("otel_agent_replay")


class ProcessRecorder:
    """Records the run of this process, and begins runs inside it.

    Completions are held back only while the process's own run is the only one (`order: auto`).
    """

    def __init__(self, settings: Settings) -> None:
        from otel_agent_replay.assembly import masking  # noqa: PLC0415 (only where something is recorded)
        from otel_agent_replay.telemetry import ids, spool, world  # noqa: PLC0415 (only where something is recorded)
        from otel_agent_replay.telemetry.recorder import SpoolRecorder  # noqa: PLC0415

        self._settings = settings
        self._custody = _custody(settings)
        self._writer = spool.SpoolWriter(
            settings.spool, self._write_failed, limit=settings.spool_limit, custody=self._custody
        )
        self._recorder: Callable[[Masker | None], SpoolRecorder] = lambda masker: SpoolRecorder(self._writer, masker)
        self._masker, troubles = masking.masker(settings)
        self._world = world
        self._ids = ids.EntropyIdGenerator()
        self._lock = threading.RLock()
        self._left: list[RecordSession] = []
        """Runs that ended with a call or a stream open."""
        self.session = self._session(
            RunRecord(
                trace_id=self._ids.new_trace_id(),
                span_id=self._ids.generate_span_id(),
                parent_span_id=0,
                name=settings.name or _program_name(),
                started_ns=real.time_ns(),
                entry=_entry(),
                world={**world.describe_world(settings, os.environ), **_captured(settings)},
            ),
            strict=settings.order != "observed",
        )
        if not self.session.run.world["hash_seed"]:
            self.session.note(Note(NoteKind.UNCAPTURED, _HASH_ORDER, incomplete=False))
        for trouble in troubles:
            self.session.note(Note(NoteKind.FAULT, trouble, incomplete=False))

    def begin(self, name: str, entry: dict[str, Json], parent: tuple[int, int] | None) -> Recorded | None:
        """Begin a run at this place in the running one."""
        lane = lanes.current()
        if lane is None or not isinstance(lane.session, RecordSession):
            return None
        number = lane.ordinal(f"run:{name}")
        lane.session.flush()  # what the process has read so far is the prelude of this run
        within: dict[str, Json] = {"run": lane.session.run.run_id, "lane": lane.path, "number": number}
        trace_id, parent_span_id = parent or (self._ids.new_trace_id(), 0)
        if entry.get("kind") in ("asgi", "wsgi"):
            # Where requests are served the process's own trace is no home for what happens outside of them.
            self.session.trace_id = 0
        self._share()
        session = self._session(
            RunRecord(
                trace_id=trace_id,
                span_id=self._ids.generate_span_id(),
                parent_span_id=parent_span_id,
                name=name,
                started_ns=real.time_ns(),
                entry={**entry, "within": within},
                world={**self._session_world(), "process": self.session.run.run_id},
            ),
            strict=self._settings.order == "strict",
        )
        return Recorded(session, self)

    def left(self, session: RecordSession) -> None:
        """A run has ended while this process goes on, maybe with calls of it."""
        with self._lock:
            self._left = [each for each in (*self._left, session) if each.has_open]

    def end(self, outcome: dict[str, Json]) -> None:
        """The process ends."""
        if self.session.declared:
            outcome["declared"] = dict(self.session.declared)
        outcome.update(self._world.describe_end(self._settings))
        with self._lock:
            left = self._left
        for session in left:
            session.abandon()
        failed = "exception" in outcome or outcome.get("exit_status") not in (0, None)
        self.session.end(End.RAISED if failed else End.RETURNED, outcome)
        self._writer.close()
        self._custody.settle(self._settings.exit_wait)

    def _session(self, run: RunRecord, *, strict: bool) -> RecordSession:
        masker = None
        if self._masker is not None:
            masker = self._masker.another()
            masker.begun(run)
        sign(self._settings.home, run)
        sink = self._recorder(masker)
        session = RecordSession(run, sink, lambda log, note: Gate(strict, log, note))
        session.root.enter = sink.run_started(run)
        return session

    def _session_world(self) -> dict[str, Json]:
        kept = ("directory", "hash_seed", "hash_check", "executable", "readings", "captured", "files")
        return {name: value for name, value in self.session.run.world.items() if name in kept}

    def _share(self) -> None:
        """Several runs own this process now: nothing is held back for one of them any more."""
        if self._settings.order == "auto":
            self.session.order.observe()

    def _write_failed(self, why: str) -> None:
        self.session.note(Note(NoteKind.FAULT, why))


class Recorded:
    """A run that began inside a recorded process."""

    def __init__(self, session: RecordSession, recorder: ProcessRecorder) -> None:
        self._session = session
        self._recorder = recorder
        self.lane: Lane = session.root

    def declare(self, values: dict[str, Json]) -> None:
        self._session.declare(values)

    def end(self, outcome: Outcome) -> None:
        ended = run_outcome(self._session.declared, outcome)
        end = End.RAISED if isinstance(outcome, Raised) else End.RETURNED
        self._session.end(end, ended, going_on=True)
        self._recorder.left(self._session)


def start(settings: Settings) -> None:
    """Record this process from now on, unless it only serves multiprocessing."""
    if helper_of(sys.orig_argv) == "resource_tracker":
        return
    recorder = ProcessRecorder(settings)
    os.environ[STARTED_BY] = f"{real.getpid()}:{recorder.session.run.run_id}"
    patches.choose(recorder.session.run.world)
    patches.install(recorder.session.note, named=settings.environment)
    patches.take_process()
    runs.install(recorder)
    lanes.set_process_root(recorder.session.root)
    Ending(recorder.end).watch()


def _custody(settings: Settings) -> Custody:
    """What sees to it that recordings are shipped. A destination that has no meaning is said, and is none.

    Before anything is patched: the SDK may make the resource with threads, which are none of the program's.
    """
    from otel_agent_replay.telemetry import resource  # noqa: PLC0415 (only where something is recorded)
    from otel_agent_replay.telemetry.shipping import custody, destination  # noqa: PLC0415

    to = None
    try:
        to = destination.read(os.environ) if settings.ship else None
    except UsageError as error:
        _logger.warning("not shipping: %s", error)
    forked = partial(resource.attributes, forked=True)
    return custody.Custody(settings.home, to, resource.attributes(), settings.batch_bytes, forked)


def _captured(settings: Settings) -> dict[str, Json]:
    """What the run captures beside calls; a replay goes by what was captured then."""
    files: dict[str, Json] = {
        "include": list(settings.files_include),
        "exclude": list(settings.files_exclude),
        "limit": settings.file_limit,
    }
    return {"captured": list(settings.capture), "files": files}


def _entry() -> dict[str, Json]:
    """How this process was entered; one that a recorded program has started says by which run."""
    entry: dict[str, Json] = {"kind": "process", "argv": list(sys.orig_argv)}
    pid, _, run_id = os.environ.get(STARTED_BY, "").partition(":")
    if helper_of(sys.orig_argv):
        entry["kind"] = WORKER
    elif run_id and pid != str(real.getpid()):  # else the program has replaced itself (exec)
        entry |= {"kind": CHILD, "started_by": run_id}
    return entry


def helper_of(argv: list[str]) -> str:
    """The module of multiprocessing that this command line runs, as it starts its own; empty for a program's."""
    code = argv[argv.index("-c") + 1 :][:1] if "-c" in argv else []
    found = re.match(r"from multiprocessing\.(\w+) import ", code[0]) if code else None
    return found[1] if found else ""


def _program_name() -> str:
    """The script or module that this process runs."""
    argv = sys.orig_argv[1:]
    if "-m" in argv:
        return " ".join(argv[argv.index("-m") + 1 :][:1])
    scripts = [Path(part).name for part in argv if not part.startswith("-")]
    return scripts[0] if scripts else "python"
