"""What a list says of a run: counted from frames, without reading a payload."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from otel_agent_replay.recording import names
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import End, Kind

if TYPE_CHECKING:
    from otel_agent_replay.recording.frames import Frame

INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""Semantic attribute: tokens of the prompt."""
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
"""Semantic attribute: tokens of the answer."""
WORKER = "worker"
"""Kind of the entry of a process that multiprocessing has started from nothing to work for another."""
CHILD = "child"
"""Kind of the entry of a process that a recorded program has started as a command."""
HELPERS = (WORKER, CHILD)
"""They work for a run of another process, which is what people look for."""


@dataclass(slots=True)
class RunTally:
    """Counts over one run."""

    run_id: str
    name: str = ""
    entry: str = ""
    """Kind of the entry, such as ``process``; empty where the beginning of the run is lacking."""
    within: str = ""
    """Id of the run that this one began in."""
    origin: str = ""
    """Id of the run that this one replays."""
    started_ns: int = 0
    ended_ns: int = 0
    end: End = End.UNFINISHED
    failed: bool = False
    crossings: int = 0
    """Packed readings are none."""
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    notes: int = 0
    flaws: int = 0
    """What makes the run incomplete: notes that say so, frames that were lost, payloads that were cut."""
    masked: int = 0
    """Different values that were masked."""
    live: bool = False
    """Its process still runs."""

    @property
    def is_program(self) -> bool:
        """Whether it is no replay, and no process that works for another one's run."""
        return not self.origin and self.entry not in HELPERS


@dataclass(slots=True)
class Counter:
    """Adds up the frames of one run. A frame may come twice, and in any order."""

    tally: RunTally
    _seen: set[tuple[int, FrameKind]] = field(default_factory=set)

    def add(self, frame: Frame) -> None:
        """Count one frame of this run."""
        once = (frame.span_id, frame.kind)
        if once in self._seen:
            return
        self._seen.add(once)
        if frame.kind in (FrameKind.RUN, FrameKind.RUN_START):
            self._run(frame)
        elif frame.kind is FrameKind.CROSSING:
            self._crossing(frame, new=(frame.span_id, FrameKind.CROSSING_START) not in self._seen)
        elif frame.kind is FrameKind.CROSSING_START:
            if (frame.span_id, FrameKind.CROSSING) not in self._seen:
                self._begun(frame)
        elif frame.kind is FrameKind.READINGS:
            self.tally.notes += number(frame, names.NOTES)
            self.tally.flaws += number(frame, names.FLAWS)

    def _run(self, frame: Frame) -> None:
        tally = self.tally
        if frame.kind is FrameKind.RUN:
            tally.ended_ns = frame.ended_ns
            tally.end = end_of(str(frame.attributes.get(names.END, "")))
            tally.failed = frame.failed
            tally.masked = number(frame, names.MASKED)
        tally.name = frame.name
        tally.started_ns = frame.started_ns
        tally.entry = str(frame.attributes.get(names.ENTRY, ""))
        tally.within = str(frame.attributes.get(names.WITHIN, ""))
        tally.origin = str(frame.attributes.get(names.ORIGIN, ""))

    def _begun(self, frame: Frame) -> None:
        self.tally.crossings += 1
        self.tally.model_calls += frame.attributes.get(names.KIND) == Kind.MODEL
        if not self.tally.entry:  # all that is known of when a run began whose beginning is lacking
            self.tally.started_ns = min(self.tally.started_ns or frame.started_ns, frame.started_ns)

    def _crossing(self, frame: Frame, *, new: bool) -> None:
        if new:
            self._begun(frame)
        self.tally.input_tokens += number(frame, INPUT_TOKENS)
        self.tally.output_tokens += number(frame, OUTPUT_TOKENS)


def end_of(text: str) -> End:
    """How something ended; unfinished where the text says nothing that is known."""
    try:
        return End(text)
    except ValueError:
        return End.UNFINISHED


def number(frame: Frame, name: str) -> int:
    """A whole number among the attributes of a frame; 0 where there is none."""
    value = frame.attributes.get(name, 0)
    return value if isinstance(value, int) and value >= 0 else 0


def run_id_of(frame: Frame) -> str:
    """Id of the run that a frame belongs to; empty where it names none."""
    span = frame.attributes.get(names.RUN_SPAN)
    return f"{frame.trace_id:032x}-{span}" if isinstance(span, str) and span else ""


def merged(one: RunTally, other: RunTally) -> RunTally:
    """The counts of one run whose frames stand in two files."""
    known, rest = (one, other) if one.entry or not other.entry else (other, one)
    ended = known if known.ended_ns else rest
    return replace(
        known,
        started_ns=known.started_ns if known.entry else min(one.started_ns, other.started_ns),
        ended_ns=ended.ended_ns,
        end=ended.end,
        failed=ended.failed,
        crossings=one.crossings + other.crossings,
        model_calls=one.model_calls + other.model_calls,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        notes=one.notes + other.notes,
        flaws=one.flaws + other.flaws,
        masked=ended.masked,
        live=one.live or other.live,
    )
