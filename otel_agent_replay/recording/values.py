"""What a recording is made of, as plain values. Nothing here asks for the time, an id or a setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from otel_agent_replay.recording.divergence import Position

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Attribute: TypeAlias = "str | bool | int | float | list[str]"


class Kind(StrEnum):
    """What a boundary leads to."""

    MODEL = "model"
    TOOL = "tool"
    RETRIEVAL = "retrieval"
    EMBEDDING = "embedding"
    HTTP = "http"
    DATABASE = "database"
    CLOCK = "clock"
    RANDOM = "random"
    PROCESS = "process"
    FILESYSTEM = "filesystem"
    ENVIRONMENT = "environment"
    HUMAN = "human"


class End(StrEnum):
    """How a crossing, a stream or a run ended."""

    RETURNED = "returned"
    RAISED = "raised"
    ENDED = "ended"
    """A stream gave its last item."""
    ABANDONED = "abandoned"
    """The caller walked away: it closed a stream, or was cancelled."""
    UNFINISHED = "unfinished"
    """The process died first."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The call gave a value."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """The call raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """An iterator had nothing more to give."""


Outcome: TypeAlias = Returned | Raised | Ended

Headers: TypeAlias = "list[tuple[str, str]]"
"""In order, with duplicates, decoded as Latin-1; credentials are masked in a recording, not in what is asked."""


@dataclass(slots=True)
class WireRequest:
    """An HTTP request as it left. The body is whole and as sent."""

    method: str
    url: str
    headers: Headers
    body: bytes


@dataclass(slots=True)
class WireHead:
    """Status line and headers of an HTTP response."""

    status: int
    reason: str
    headers: Headers
    http_version: str = "HTTP/1.1"


@dataclass(slots=True)
class Attempt:
    """One HTTP exchange under a crossing: what was asked and what came back, chunk by chunk.

    `chunks` hold the body with any content coding undone, one entry for each chunk that the transport gave
    (an entry may be empty); `offsets` are microseconds since the request, one for each chunk.
    """

    request: WireRequest
    head: WireHead | None = None
    chunks: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    end: End = End.UNFINISHED
    error: Json = None
    """The encoded exception, where the transport or the stream raised."""
    seqs: list[int | None] = field(default_factory=list)
    """Place of each chunk in the run's order, and of the end or error that followed where the program saw one."""
    signal: int | None = None
    """Place of the signal whose handler raised the error."""


@dataclass(slots=True)
class CrossingRecord:
    """One call through a boundary: its input and its outcome."""

    position: Position
    kind: Kind
    span_id: int
    parent_span_id: int
    started_ns: int
    input: Json = None
    outcome: Json = None
    attempts: list[Attempt] = field(default_factory=list)
    items: list[Json] = field(default_factory=list)
    """What a recorded generator gave, encoded."""
    after: Json = None
    """What the call was handed as it was when it had ended, encoded, where it has changed something of it."""
    same: dict[str, Json] = field(default_factory=dict)
    """Which objects of it, and of the outcome, are which; see `changed.identities` and `in_outcome`."""
    end: End = End.UNFINISHED
    ended_ns: int = 0
    seq: int | None = None
    wire: bool = False
    """Answered at the wire: the code beneath runs in a replay and its attempts are served."""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    """Semantic attributes (`gen_ai.*` and the like), payload-free."""
    name: str = ""
    """Span name."""
    signals: list[list[int]] = field(default_factory=list)
    """Signals whose handlers raised while the call lasted: the place of each, and how many attempts had begun."""


CREDENTIAL = "environment:credential"
"""Source of the reading that a credential was looked for; its site is the variable's name."""

VARIABLE = "environment:get:"
"""Before the name of a variable: the source of its readings, each the JSON of a string, or of null for none."""


@dataclass(slots=True)
class ReadingRecord:
    """Consecutive values that one call site in one lane was given by one source."""

    lane: str
    source: str
    """What was read, such as ``clock:time.time``."""
    site: str
    first: int
    """Ordinal of the first value."""
    values: list[Json]


@dataclass(slots=True)
class OrderEvent:
    """A completion that is no crossing: a timer that fired, a future set, an item put."""

    lane: str
    key: str
    ordinal: int
    seq: int


class NoteKind(StrEnum):
    """Why something is noted."""

    UNCAPTURED = "uncaptured"
    """It was seen to happen and is not in the recording."""
    FAULT = "fault"
    """Recording itself failed here."""
    OBSERVED = "observed"
    """Completions were not held back, so their order is what was seen."""
    UNKNOWN_SHAPE = "unknown-shape"
    """A library does not look as its instrumentation expects."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the capture manifest."""

    kind: NoteKind
    what: str
    where: str = ""
    incomplete: bool = True
    """Whether the run can no longer be called complete."""


@dataclass(slots=True)
class RunRecord:
    """One execution of an entry."""

    trace_id: int
    span_id: int
    parent_span_id: int
    name: str
    started_ns: int
    entry: dict[str, Json]
    """`kind` (process, function, asgi, wsgi) and what is needed to call it again."""
    world: dict[str, Json]
    """Directory, git, versions, hash seed, named environment variables, credential names."""
    ended_ns: int = 0
    end: End = End.UNFINISHED
    outcome: dict[str, Json] = field(default_factory=dict)
    """`exit_status` or `exception`, `declared`, `stdout` digest, `serving` (a hash of all serving configurations)."""

    @property
    def run_id(self) -> str:
        return f"{self.trace_id:032x}-{self.span_id:016x}"


@dataclass(slots=True)
class Recording:
    """Everything that one run left behind, bodies resolved."""

    run: RunRecord
    crossings: list[CrossingRecord]
    readings: list[ReadingRecord]
    order: list[OrderEvent]
    notes: list[Note]
    missing: list[str] = field(default_factory=list)
    """What is lacking: lost frames, absent content, cut payloads; one sentence each."""

    @property
    def complete(self) -> bool:
        """Whether a replay can be judged: ended, nothing missing, nothing noted that breaks it."""
        return (
            self.run.end is not End.UNFINISHED and not self.missing and not any(note.incomplete for note in self.notes)
        )
