"""A run ends while another thread is in the middle of a call: what is kept of the call is whole as far as it goes."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.boundary import shield
from otel_agent_replay.boundary.order import Gate
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.recording import frames
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.mask_rules import Rules
from otel_agent_replay.recording.masking import Masker
from otel_agent_replay.recording.values import (
    Attempt,
    CrossingRecord,
    End,
    Kind,
    Recording,
    Returned,
    RunRecord,
    WireHead,
    WireRequest,
)
from otel_agent_replay.replay.record import RecordSession
from otel_agent_replay.replay.transcript import TranscribedCrossing, Transcript
from otel_agent_replay.telemetry import entropy
from otel_agent_replay.telemetry.recorder import SpoolRecorder
from otel_agent_replay.telemetry.spool import SpoolWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RUNS = 25
"""Each ends at another moment of what its thread does."""

HEAD = WireHead(200, "OK", [("content-type", "text/event-stream")])
MODEL = Call(Kind.MODEL, "model:m1", wire=True)


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpoolWriter]:
    monkeypatch.setenv(shield.OTEL_AGENT_REPLAY_RAISE, "1")
    faults: list[str] = []
    made = SpoolWriter(tmp_path, faults.append)
    yield made
    made.close()
    assert faults == []


def _sink(writer: SpoolWriter) -> tuple[SpoolRecorder, RunRecord]:
    run = RunRecord(entropy.trace_id(), entropy.span_id(), 0, "agent.py", time.time_ns(), {"kind": "process"}, {})
    return SpoolRecorder(writer, masker=Masker(Rules(), b"key")), run


def _request(number: int) -> WireRequest:
    return WireRequest("POST", "http://127.0.0.1/v1", [("a", "b")], b'{"n":%d}' % number)


def _while_it_goes_on(work: Callable[[int], None], end: Callable[[], None], moment: int) -> None:
    """End a run while a thread does this over and over, and let the thread go on for a while."""
    over, errors = threading.Event(), []

    def go() -> None:
        number = 0
        try:
            while not over.is_set() and number < 100_000:
                work(number)
                number += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    time.sleep(moment * 0.00005)
    end()
    over.set()
    thread.join(30)
    assert errors == []


def _written(writer: SpoolWriter) -> dict[str, Recording]:
    assert writer.path is not None
    return assemble(frame for frame in frames.scan(writer.path.read_bytes()) if isinstance(frame, frames.Frame))


def _is_whole(found: Recording) -> None:
    assert found.complete, found.missing
    (crossing,) = found.crossings
    for number, attempt in enumerate(crossing.attempts):
        assert attempt.request.body == _request(number).body
        assert len(attempt.chunks) == len(attempt.offsets)
        assert attempt.chunks == [b"%d " % index for index in range(len(attempt.chunks))]


@pytest.mark.parametrize("what", ["chunks", "attempts", "items"])
def test_a_recording(writer: SpoolWriter, what: str) -> None:
    for moment in range(RUNS):
        sink, run = _sink(writer)
        session = RecordSession(run, sink, lambda log, note: Gate(True, log, note))
        sink.run_started(run)
        crossing = session.open(session.root, MODEL if what != "items" else Call(Kind.TOOL, "tool:lines"))
        if what == "chunks":
            exchange = crossing.attempt(_request(0))
            exchange.head(HEAD)
            crossing.close(Returned(None))
            work = lambda number, told=exchange: told.chunk(b"%d " % number)  # noqa: E731
        elif what == "attempts":
            work = lambda number, asked=crossing: asked.attempt(_request(number)).end(End.ENDED)  # noqa: E731
        else:
            crossing.stream_items()
            crossing.close(Returned(None))
            work = lambda number, told=crossing: (told.item(Returned(number)), told.describe({f"n{number}": 1}))  # noqa: E731
        _while_it_goes_on(work, lambda ended=session: ended.end(End.RETURNED, {}), moment)
    found = _written(writer)
    assert len(found) == RUNS
    for each in found.values():
        _is_whole(each)
        assert each.crossings[0].items == list(range(len(each.crossings[0].items)))


@pytest.mark.parametrize("what", ["attempts", "items"])
def test_a_replay(writer: SpoolWriter, what: str) -> None:
    origin = CrossingRecord(Position("main", "model:m1", 0), Kind.MODEL, 1, 2, 3, items=list(range(1000)))
    answer = Attempt(_request(0), HEAD, [b"0 "], [1], End.ENDED)
    for moment in range(RUNS):
        sink, run = _sink(writer)
        transcript = Transcript(run, sink)
        crossing = TranscribedCrossing(transcript, origin.position, MODEL)
        sink.begun(crossing.record, None)
        transcript._open[id(crossing)] = crossing
        crossing.answered(origin, moved=False)
        if what == "attempts":

            def work(number: int, asked: TranscribedCrossing = crossing) -> None:
                kept = asked.asked(_request(number))
                asked.served(kept, answer)
                asked.stream_ended(kept, answer, End.ENDED, 1)

        else:
            crossing.gives_items()
            work = lambda number, told=crossing: told.item(Returned(number))  # noqa: E731
        _while_it_goes_on(work, lambda ended=transcript: ended.end(End.RETURNED, {}), moment)
    found = _written(writer)
    assert len(found) == RUNS
    for each in found.values():
        _is_whole(each)
        assert each.crossings[0].items == list(range(len(each.crossings[0].items)))


def test_nothing_is_held_of_lanes_that_are_gone(writer: SpoolWriter) -> None:
    """A process may have millions of tasks, each of which reads a clock once."""
    sink, run = _sink(writer)
    session = RecordSession(run, sink, lambda log, note: Gate(True, log, note))
    sink.run_started(run)
    kept = session.root.spawn("task", "kept")
    for number in range(10_000):
        for lane in (kept, session.root.spawn("task", "one")):
            session.read(lane, "random:getrandbits:8", sys._getframe(), lambda value=number % 256: value)
    session.flush()
    del lane
    gc.collect()
    assert len(session._counts) == 1 and not session._lanes
    session.end(End.RETURNED, {})
    (found,) = _written(writer).values()
    assert found.complete
    values = {reading.lane: reading.values for reading in found.readings}
    assert len(values) == 10_001 and values["main/task:kept#0"] == [number % 256 for number in range(10_000)]
