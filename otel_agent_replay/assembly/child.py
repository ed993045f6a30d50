"""The process that is replayed: set up before the program is loaded, judged when it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from otel_agent_replay import settings
from otel_agent_replay.assembly import patches, replays, stopping, tracing
from otel_agent_replay.assembly.answers import Answers
from otel_agent_replay.assembly.disturbance import disturb
from otel_agent_replay.assembly.ending import Ending
from otel_agent_replay.assembly.handover import VARIABLE, Handover
from otel_agent_replay.boundary import lanes, real, runs
from otel_agent_replay.errors import EXIT_CANNOT_JUDGE, AgentReplayError, DivergenceError
from otel_agent_replay.recording.values import End
from otel_agent_replay.replay import expectation
from otel_agent_replay.replay.elsewhere import Elsewhere
from otel_agent_replay.replay.report import report

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Json
    from otel_agent_replay.replay.report import Report


def start() -> None:
    """Make this process the replay that the environment asks for. Raises AgentReplayError, OSError."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    handover = Handover.load(Path(path))
    if not _take(handover):
        patches.close_network()
        return
    _end_with_parent()
    answers = Answers.load(
        Path(handover.recording),
        handover.run_id,
        stop=lambda: _stop(child),
        pins=handover.pins,
        strict=handover.strict,
        free=handover.free,
    )
    child = Child(handover, answers)
    session = answers.main
    answers.tell(child.elsewhere)
    if handover.home:
        child.record(Path(handover.home))
    tracing.install()
    if handover.stop_at:
        session.watch = stopping.at(handover.stop_at)
    patches.choose(session.recording.run.world)
    patches.install(session.note, named=session.named_environment())
    patches.take_process(str(Path(handover.report).parent))
    patches.close_network()
    runs.install(answers)
    lanes.set_process_root(session.root)
    killed = session.recording.run.end is End.UNFINISHED and not handover.free
    session.order.begin(session.root, session.signals(), killed=killed)
    child.ending.watch()
    _current.append(child)
    disturb(handover.disturbance)


def _end_with_parent() -> None:
    """Do not outlive the replaying command, however it ends. Only Linux knows how."""
    if sys.platform == "linux":
        parent = os.getppid()
        with suppress(OSError, AttributeError):  # a C library without it: the replay goes on as elsewhere
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(real.getpid(), signal.SIGKILL)


_PR_SET_PDEATHSIG = 1

_current: list[Child] = []


def current() -> Child | None:
    """The replay that this process is; None where it is none."""
    return _current[0] if _current else None


class Child:
    """Ends the replay: writes the report for the replaying command."""

    def __init__(self, handover: Handover, answers: Answers) -> None:
        self.ending = Ending(self._ended)
        self._handover = handover
        self.answers = answers
        self.elsewhere = Elsewhere(Path(handover.report).with_suffix(".children"))
        self._recorder: replays.ReplayRecorder | None = None
        self._trouble = ""

    def record(self, home: Path) -> None:
        """Record this replay. Before anything is patched, as where a live run is recorded."""
        made = replays.recorder(replace(settings.read(), home=home))
        if isinstance(made, str):
            self._trouble = made
            return
        self._recorder = made
        self.answers.record(made)

    def _ended(self, outcome: dict[str, Json]) -> None:
        session = self.answers.main
        session.order.finish()
        if session.declared:
            outcome["declared"] = dict(session.declared)
        self.elsewhere.collect(self.answers.sessions)
        expected = [expectation.parse(text) for text in self._handover.expected]
        result = report(self.answers.sessions, outcome, expected)
        self._finish(outcome, result)
        flush = getattr(sys.stdout, "flush", None)  # a process may have no standard output at all
        if flush is not None:
            with suppress(OSError, ValueError):
                flush()
        written = Path(self._handover.report)
        draft = written.with_suffix(".draft")
        values: dict[str, object] = {"report": result.as_json(), "lines": result.lines()}
        draft.write_text(json.dumps(values), "utf-8")
        draft.replace(written)

    def _finish(self, outcome: dict[str, Json], result: Report) -> None:
        """End what the replay is recorded as; the report says what it is called, or why it is not there."""
        if self._trouble:
            result.warnings.append(self._trouble)
        transcript = self.answers.main.transcript
        if self._recorder is not None and transcript is not None:
            self._recorder.end(transcript, outcome, result, process=True)
            self._recorder.close()


def _stop(child: Child) -> NoReturn:
    """The program cannot end by itself: it is stuck, or swallows divergences for ever."""
    divergences = child.answers.main.divergences
    if divergences:
        child.ending.raised(DivergenceError(divergences[-1]))
    child.ending.tell()
    os._exit(EXIT_CANNOT_JUDGE)


def refuse(error: AgentReplayError) -> NoReturn:
    """The entry cannot be called: say so, and end without a report."""
    replayed = current()
    if replayed is not None:
        replayed.ending.forget()
    sys.stderr.write(f"agent-replay: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def _take(handover: Handover) -> bool:
    """Whether this process is the one to be replayed; the processes that it starts stay offline."""
    try:
        with Path(handover.taken).open("x") as mark:
            mark.write(str(real.getpid()))
    except FileExistsError:
        # A launcher that replaces itself by the program (exec) keeps its process id.
        return Path(handover.taken).read_text() == str(real.getpid())
    return True
