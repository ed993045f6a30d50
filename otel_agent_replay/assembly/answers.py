"""Sessions that answer from recordings: the run that is replayed, and the runs that it begins."""

from __future__ import annotations

from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING

from otel_agent_replay.assembly.ending import run_outcome
from otel_agent_replay.assembly.replays import ReplayRecorder, finish
from otel_agent_replay.boundary.lanes import current
from otel_agent_replay.boundary.order import ReplayGate
from otel_agent_replay.errors import ReplayOfReplay, UnknownRun
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.replay.answer import ReplaySession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.values import Json, Outcome, Recording
    from otel_agent_replay.replay.elsewhere import Elsewhere
    from otel_agent_replay.replay.transcript import Transcript


def _nothing() -> None:
    """A replay inside a living process is not ended from within."""


class Answers:
    """The recordings that a replay may answer from, and its sessions.

    Args:
        recordings: by run id: the run, the process it was begun in, the runs it began.
        run_id: the run to replay.
        stop: ends the process where the program cannot.
        pins: a call that asks something else is answered by its place all the same.
        strict: a reading that was not recorded is a divergence.
        free: what is left to this machine, of `Session.captured`.
    """

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        run_id: str,
        stop: Callable[[], None] = _nothing,
        *,
        pins: bool = False,
        strict: bool = False,
        free: Iterable[str] = (),
    ) -> None:
        if run_id not in recordings:
            raise UnknownRun(run_id, "the recording that was handed over")
        if origin := recordings[run_id].run.entry.get("origin"):
            raise ReplayOfReplay(run_id, str(origin))
        self._recordings = recordings
        self._stop = stop
        self._recorder: ReplayRecorder | None = None
        self._pins = pins
        self._elsewhere: Elsewhere | None = None
        self.strict = strict
        self._free = frozenset(free)
        self.main = self._session(recordings[run_id])
        self.sessions = [self.main]
        within: dict[tuple[str, str, str, int], Recording] = {}
        for recording in recordings.values():
            place = recording.run.entry.get("within")
            if isinstance(place, dict):
                key = (str(place["run"]), str(place["lane"]), recording.run.name, int(str(place["number"])))
                within[key] = recording
        self._within = within

    @classmethod
    def load(
        cls,
        path: Path,
        run_id: str,
        stop: Callable[[], None],
        *,
        pins: bool = False,
        strict: bool = False,
        free: Iterable[str] = (),
    ) -> Answers:
        """Read what a replaying command has written. Raises OSError, RecordingError."""
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            recordings = assemble(item for item in scan(data) if isinstance(item, Frame))
        return cls(recordings, run_id, stop, pins=pins, strict=strict, free=free)

    def tell(self, elsewhere: Elsewhere) -> None:
        """Let `elsewhere` know what forked children are answered, from now on."""
        self._elsewhere = elsewhere
        for session in self.sessions:
            session.elsewhere = elsewhere

    def record(self, recorder: ReplayRecorder) -> Transcript:
        """Record this replay, and each of the runs that it begins as one within it, from now on."""
        self._recorder = recorder
        return recorder.begin(self.main)

    def prelude(self) -> ReplaySession | None:
        """A session for the process that the run was begun in: it answers what importing the program reads.

        That is the outermost: a run may have begun in another one.
        """
        found = None
        place = self.main.recording.run.entry.get("within")
        for _ in self._recordings:
            outer = self._recordings.get(str(place["run"])) if isinstance(place, dict) else None
            if outer is None:
                break
            found, place = outer, outer.run.entry.get("within")
        return None if found is None else self._session(found)

    def begin(self, name: str, entry: dict[str, Json], parent: tuple[int, int] | None) -> Answering | None:
        """The recorded run that began at this place; None where there is none, so that its calls diverge."""
        lane = current()
        if lane is None or not isinstance(lane.session, ReplaySession):
            return None
        session = lane.session
        number = lane.ordinal(f"run:{name}")
        path = session.lanes.resolve(lane)
        recording = self._within.get((session.recording.run.run_id, path or "", name, number))
        if recording is None:
            return None
        begun = self._session(recording)
        if self._recorder is not None:
            self._recorder.begin(begun, within=session.transcript)
        self.sessions.append(begun)
        return Answering(begun)

    def _session(self, recording: Recording) -> ReplaySession:
        session = ReplaySession(recording, self._gate, self._stop, pins=self._pins)
        session.elsewhere = self._elsewhere
        session.strict = self.strict
        session.free(self._free)
        return session

    def _gate(self, session: ReplaySession) -> ReplayGate:
        return ReplayGate(
            session.place,
            stuck=self._stop,
            diverge=session.diverge,
            departed=session.departed,
            absent=session.absent,
        )


class Answering:
    """A run that began inside a replayed one."""

    def __init__(self, session: ReplaySession) -> None:
        self._session = session
        self.lane: Lane = session.root

    def declare(self, values: dict[str, Json]) -> None:
        self._session.declare(values)

    def end(self, outcome: Outcome) -> None:
        self._session.order.finish()
        if self._session.transcript is not None:
            finish(self._session.transcript, run_outcome(self._session.declared, outcome))
