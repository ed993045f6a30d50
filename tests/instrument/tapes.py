"""Record a program, then run it again on what was recorded with no socket open.

`Tape` has sessions of its own, in memory, that show everything that instrumentation tells a session;
`RealTape` has the sessions of the product.
"""

from __future__ import annotations

import gc
import itertools
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.boundary.order import Gate, ReplayGate
from otel_agent_replay.boundary.session import Answer, Call
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass, Position
from otel_agent_replay.recording.mask_rules import Rules
from otel_agent_replay.recording.masked import MaskedCrossing
from otel_agent_replay.recording.masking import Masker
from otel_agent_replay.recording.values import Attempt, CrossingRecord, End, Note, Raised, Recording, RunRecord
from otel_agent_replay.replay.answer import ReplaySession
from otel_agent_replay.replay.record import RecordSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class MemorySession:
    """Records crossings, or answers them: by lane and key, the next one whose first request is the same."""

    def __init__(self, recorded: list[CrossingRecord] | None = None) -> None:
        self.replaying = recorded is not None
        self.waiting = list(recorded or ())
        self.crossings: list[MemoryCrossing] = []
        self.notes: list[Note] = []
        self.turns: Any = lambda crossing, index: None
        """What a chunk waits for."""
        self.root = Lane(self)  # type: ignore[arg-type]

    def open(self, lane: Lane, call: Call) -> MemoryCrossing:
        crossing = MemoryCrossing(self, lane, call)
        self.crossings.append(crossing)
        return crossing

    def note(self, note: Note) -> None:
        self.notes.append(note)

    @property
    def records(self) -> list[CrossingRecord]:
        return [crossing.record for crossing in self.crossings]


class MemoryCrossing:
    answer = None

    def __init__(self, session: MemorySession, lane: Lane, call: Call) -> None:
        ordinal = lane.ordinal(call.key)
        self.session = session
        self.call = call
        self.record = CrossingRecord(
            Position(lane.path, call.key, ordinal),
            call.kind,
            0,
            0,
            0,
            wire=call.wire,
            attributes=dict(call.attributes),
            name=call.name,
        )
        self.lane = Lane(session, lane, "call", call.key, ordinal)  # type: ignore[arg-type]
        self.lane.beneath = self  # type: ignore[assignment]
        self.recorded: CrossingRecord | None = None
        self.closed = False
        self.exchanges: list[MemoryExchange] = []

    def attempt(self, request: Any) -> MemoryExchange:
        number = len(self.exchanges)
        if self.session.replaying and self.recorded is None:
            self.recorded = self.find(request)
        answered = None
        if self.recorded is not None:
            if number >= len(self.recorded.attempts):
                raise self.diverged("one attempt more")
            answered = self.recorded.attempts[number]
        exchange = MemoryExchange(self, Attempt(request), answered)
        self.record.attempts.append(exchange.attempt)
        self.exchanges.append(exchange)
        return exchange

    def find(self, request: Any) -> CrossingRecord:
        where = self.record.position
        for record in self.session.waiting:
            same_place = (record.position.lane, record.position.key) == (where.lane, where.key)
            first = record.attempts[0].request if record.attempts else None
            if same_place and first is not None and same_request(first, request):
                self.session.waiting.remove(record)
                return record
        raise self.diverged(f"no recorded answer to {request.method} {request.url} {request.body[:200]!r}")

    def diverged(self, why: str) -> DivergenceError:
        return DivergenceError(Divergence(DivergenceClass.DIVERGED, self.record.position, None, why))

    def describe(self, attributes: Any) -> None:
        self.record.attributes.update(attributes)

    def turn(self, outcome: Any) -> None:
        return None

    def restored(self, outcome: Any) -> Any:
        return outcome

    def close(self, outcome: Any) -> None:
        assert not self.closed, "a crossing is closed once"
        self.closed = True
        self.record.end = End.RAISED if isinstance(outcome, Raised) else End.RETURNED

    def past_end(self) -> DivergenceError:
        return self.diverged("read past the end")


def written(record: CrossingRecord) -> CrossingRecord:
    """A record with what it is written with: its attempts masked."""
    mask = MaskedCrossing(Masker(Rules(), b"k" * 32)).of("lane")
    masked = [mask.response(number, attempt) for number, attempt in enumerate(record.attempts)]
    return replace(record, attempts=[replace(attempt, request=mask.request(attempt.request)) for attempt in masked])


def same_request(recorded: Any, asked: Any) -> bool:
    def path(url: str) -> str:
        return "/" + url.split("://", 1)[1].partition("/")[2]

    return (recorded.method, path(recorded.url), unbound(recorded)) == (asked.method, path(asked.url), unbound(asked))


def unbound(request: Any) -> bytes:
    """A body without its multipart boundary, which is random."""
    kind = {name.lower(): value for name, value in request.headers}.get("content-type", "")
    boundary = kind.partition("boundary=")[2].encode()
    return request.body.replace(boundary, b"BOUNDARY") if boundary else request.body


class MemoryExchange:
    def __init__(self, crossing: MemoryCrossing, attempt: Attempt, answered: Attempt | None) -> None:
        self.crossing = crossing
        self.attempt = attempt
        self.ends = 0
        self.error: BaseException | None = None
        self.answer = None
        if answered is not None:
            left = answered.end in (End.ABANDONED, End.UNFINISHED)
            self.answer = Answer(answered.head, list(answered.chunks), rebuilt(answered.error), left=left)

    def head(self, head: Any) -> None:
        assert self.answer is None
        self.attempt.head = head

    def chunk(self, data: bytes) -> None:
        assert type(data) is bytes
        assert self.ends == 0, "a chunk after the end"
        self.attempt.chunks.append(data)  # in a replay too: what its reader took is part of its own recording

    def end(self, how: End, error: BaseException | None = None) -> None:
        self.ends += 1
        if self.ends == 1:
            self.attempt.end, self.error = how, error
            self.attempt.error = error  # type: ignore[assignment]  # in memory it need not be encoded

    def chunk_turn(self, index: int) -> Any:
        return self.crossing.session.turns(self.crossing, index)


def rebuilt(error: Any) -> BaseException | None:
    """Another exception of the same class and text, as a recording gives it back."""
    return None if error is None else type(error)(*error.args)


class MemorySink:
    """Keeps what a real recording session writes, as a recording."""

    def __init__(self, run: RunRecord) -> None:
        self.recording = Recording(run, [], [], [], [])
        self._spans = itertools.count(1)

    def run_started(self, run: RunRecord) -> None:
        pass

    def run_ended(self, run: RunRecord) -> None:
        pass

    def opened(self, crossing: CrossingRecord, parent: CrossingRecord | None) -> None:
        crossing.span_id = next(self._spans)
        crossing.parent_span_id = parent.span_id if parent is not None else 0

    def asked(self, crossing: CrossingRecord) -> None:
        assert crossing not in self.recording.crossings

    def described(self, crossing: CrossingRecord, attributes: Any) -> None:
        assert crossing not in self.recording.crossings, "a crossing is described before it is finished"

    def finished(self, crossing: CrossingRecord) -> None:
        assert crossing not in self.recording.crossings
        self.recording.crossings.append(crossing)

    def packed(self, readings: Any, order: Any, notes: Any) -> None:
        self.recording.readings.extend(readings)
        self.recording.order.extend(order)
        self.recording.notes.extend(notes)


class RealTape:
    """The same with the sessions that the product has: order, codec, matching."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        run = RunRecord(1, 2, 0, "test", 0, {"kind": "function"}, {})
        self.sink = MemorySink(run)
        self.recording = RecordSession(run, self.sink, lambda log, note: Gate(True, log, note))

    @contextmanager
    def record(self) -> Iterator[RecordSession]:
        with inside(self.recording.root):
            yield self.recording
        gc.collect()
        self.recording.end(End.RETURNED, {})
        assert self.sink.recording.notes == []

    @contextmanager
    def replay(self) -> Iterator[ReplaySession]:
        stuck: list[str] = []
        session = ReplaySession(
            self.sink.recording,
            lambda answering: ReplayGate(
                answering.place,
                stuck=lambda: stuck.append("stuck"),
                diverge=answering.diverge,
                departed=answering.departed,
                absent=answering.absent,
            ),
        )
        with offline(self.monkeypatch), inside(session.root):
            yield session
        session.order.finish()
        assert (stuck, session.divergences, session.unconsumed(), session.moved) == ([], [], [], [])


@contextmanager
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No socket connects, and sleeping takes no time."""
    with monkeypatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, refuse)
        patch.setattr(time, "sleep", lambda seconds: None)
        yield


class Tape:
    """Record a program, then run it again on what was recorded with no socket open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.recording = MemorySession()
        self.answering: MemorySession | None = None

    @contextmanager
    def record(self) -> Iterator[MemorySession]:
        with inside(self.recording.root):
            yield self.recording

    @contextmanager
    def replay(self) -> Iterator[MemorySession]:
        session = self.answering = MemorySession(self.recording.records)
        with offline(self.monkeypatch), inside(session.root):
            yield session


def refuse(*_: Any) -> None:
    raise AssertionError("a socket was opened in a replay")


@contextmanager
def inside(lane: Lane) -> Iterator[None]:
    token = LANE.set(lane)
    try:
        yield
    finally:
        LANE.reset(token)
