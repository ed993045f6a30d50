"""The sink of a run: what is on disk when, what others see, and that nothing of it gets into the program's way."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from otel_agent_replay.boundary import shield
from otel_agent_replay.recording import exact, frames, names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.frames import Frame
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import (
    Attempt,
    CrossingRecord,
    End,
    Kind,
    Note,
    NoteKind,
    OrderEvent,
    ReadingRecord,
    Recording,
    RunRecord,
    WireHead,
    WireRequest,
)
from otel_agent_replay.telemetry import entropy
from otel_agent_replay.telemetry.ids import EntropyIdGenerator
from otel_agent_replay.telemetry.recorder import SpoolRecorder
from otel_agent_replay.telemetry.spool import SpoolWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 30
"""Seconds that nothing here may take."""

SECRET = "what only the payload may hold"


class Recorded:
    """A run that is recorded into a directory, and what is in its files."""

    def __init__(self, directory: Path, **values: Any) -> None:
        self.faults: list[str] = []
        self.writer = SpoolWriter(directory, self.faults.append)
        self.sink = SpoolRecorder(self.writer)
        self.run = RunRecord(
            **{
                "trace_id": entropy.trace_id(),
                "span_id": entropy.span_id(),
                "parent_span_id": 0,
                "name": "agent.py",
                "started_ns": time.time_ns(),
                "entry": {"kind": "process", "argv": ["python", "agent.py"]},
                "world": {},
                **values,
            }
        )
        self.enter = self.sink.run_started(self.run)

    def tool(self, number: int = 0, value: object = SECRET, kind: Kind = Kind.TOOL, **values: Any) -> CrossingRecord:
        return CrossingRecord(
            **{
                "position": Position("main", f"{kind}:search", number),
                "kind": kind,
                "span_id": 0,
                "parent_span_id": 0,
                "started_ns": time.time_ns(),
                "input": value,
                "name": f"execute_tool {number}",
                "attributes": {"gen_ai.tool.name": "search"},
                **values,
            }
        )

    def model(self, number: int, body: bytes, lane: str = "main") -> CrossingRecord:
        made = self.tool(number, None, Kind.MODEL, wire=True, name="chat m1", attributes={"gen_ai.request.model": "m1"})
        made.position = Position(lane, "model:openai.chat", number)
        made.attempts.append(Attempt(WireRequest("POST", "http://127.0.0.1/v1", [("a", "b")], body)))
        return made

    def answered(self, record: CrossingRecord, answer: bytes) -> None:
        attempt = record.attempts[-1]
        attempt.head = WireHead(200, "OK", [("content-type", "application/json")])
        attempt.chunks, attempt.offsets, attempt.end = [answer], [10], End.ENDED
        self.ended(record)

    def ended(self, record: CrossingRecord, end: End = End.RETURNED, outcome: Any = None) -> None:
        record.end, record.ended_ns, record.outcome = end, time.time_ns(), outcome
        self.sink.finished(record)

    def end(self, end: End = End.RETURNED, **outcome: Any) -> None:
        self.run.end, self.run.ended_ns, self.run.outcome = end, time.time_ns(), outcome
        self.sink.run_ended(self.run)

    def frames(self) -> list[Frame]:
        found = []
        for path in sorted(self.writer.directory.glob("*.spool")):
            for frame in frames.scan(path.read_bytes()):
                assert isinstance(frame, Frame), frame
                found.append(frame)
        return found

    def kinds(self) -> list[str]:
        return [frame.kind.value for frame in self.frames()]

    def recording(self) -> Recording:
        return assemble(self.frames())[self.run.run_id]


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path / "spool")
    yield made
    made.writer.close()
    assert made.faults == []


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A provider of the SDK with a processor of somebody else's."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(id_generator=EntropyIdGenerator(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return kept


@contextmanager
def entered(enter: Any) -> Iterator[trace.SpanContext]:
    assert enter is not None
    leave = enter()
    try:
        yield trace.get_current_span().get_span_context()
    finally:
        leave()


def test_each_frame_is_on_disk_before_what_it_tells_of_goes_on(recorded: Recorded) -> None:
    assert recorded.kinds() == ["run.start"]
    record = recorded.tool(value={"q": "où"})
    recorded.sink.opened(record, None)
    assert recorded.kinds() == ["run.start", "crossing.start"]
    start = recorded.frames()[-1]
    assert (start.span_id, start.parent_span_id) == (record.span_id, recorded.run.span_id)
    recorded.ended(record, outcome={"r": 1})
    assert recorded.kinds() == ["run.start", "crossing.start", "crossing"]
    recorded.end(exit_status=0)
    assert recorded.kinds()[-1] == "run"
    found = recorded.recording()
    assert found.complete
    assert found.run == recorded.run
    assert found.crossings == [record]


def test_an_attempt_at_the_wire_is_written_when_it_is_asked_for(recorded: Recorded) -> None:
    record = recorded.model(0, b'{"messages":["%s"]}' % (b"x" * 3000))
    recorded.sink.opened(record, None)
    assert recorded.kinds() == ["run.start"]
    recorded.sink.asked(record)
    assert recorded.kinds() == ["run.start", "contents", "crossing.start"]
    first = record.attempts[0]
    first.head, first.chunks, first.offsets, first.end = (
        WireHead(429, "Too Many Requests", []),
        [b"slow"],
        [5],
        End.ENDED,
    )
    record.attempts.append(Attempt(WireRequest("POST", "http://127.0.0.1/v1", [("a", "b")], first.request.body)))
    recorded.sink.asked(record)
    assert recorded.kinds()[3:] == ["crossing.start"]
    payload = exact.loads(str(recorded.frames()[-1].attributes[names.PAYLOAD]))
    assert isinstance(payload, dict)
    assert [attempt.get("s") for attempt in payload["a"]] == [429, None]  # type: ignore[union-attr]
    recorded.answered(record, b'{"answer":"%s"}' % (b"y" * 3000))
    assert recorded.kinds()[4:] == ["contents", "crossing"]
    (whole,) = recorded.recording().crossings
    assert [attempt.request.body for attempt in whole.attempts] == [first.request.body] * 2
    assert whole.attempts[1].chunks == record.attempts[1].chunks
    sizes = [frame.size for frame in recorded.frames()]
    assert sum(sizes) < 8500, sizes  # 6 KB of content, once


def test_readings_are_written_with_the_next_frame_and_before_it(recorded: Recorded) -> None:
    reading = ReadingRecord("main", "clock:time.time", "agent:3", 0, [1.5, 2**70])
    note = Note(NoteKind.UNCAPTURED, "a socket", "agent:9")
    recorded.sink.packed([reading], [], [])
    recorded.sink.packed([], [OrderEvent("main", "timer", 0, 4)], [note])
    assert recorded.kinds() == ["run.start"]
    recorded.sink.opened(recorded.tool(), None)
    assert recorded.kinds()[1:] == ["readings", "crossing.start"]
    found = recorded.recording()
    assert (found.readings, found.order, found.notes) == ([reading], [OrderEvent("main", "timer", 0, 4)], [note])
    recorded.sink.packed([], [], [note])
    recorded.sink.flush()
    assert recorded.kinds()[3:] == ["readings"]
    recorded.sink.flush()
    assert recorded.kinds()[4:] == []


def test_many_readings_do_not_wait(recorded: Recorded) -> None:
    recorded.sink.packed([ReadingRecord("main", "clock:time.time", "agent:3", 0, list(range(4096)))], [], [])
    assert recorded.kinds() == ["run.start", "readings"]


def test_others_see_live_spans_without_payload(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    outer = recorded.tool(attributes={"gen_ai.tool.name": "search"})
    with entered(recorded.enter), entered(recorded.sink.opened(outer, None)) as current:
        assert (current.trace_id, current.span_id) == (recorded.run.trace_id, outer.span_id)
        inner = recorded.model(0, SECRET.encode())
        inner.parent_span_id = 12345
        with entered(recorded.sink.opened(inner, outer)) as current:
            assert current.span_id == inner.span_id
            recorded.sink.asked(inner)
        recorded.sink.described(inner, {"gen_ai.usage.input_tokens": 7, "gen_ai.response.finish_reasons": ["stop"]})
        recorded.answered(inner, SECRET.encode())
    recorded.ended(outer, End.RAISED, {"$": "error", "c": "json.decoder:JSONDecodeError", "m": "no"})
    recorded.end(End.RAISED, exception={"type": "builtins:ValueError", "message": "m"})

    model, tool, run = exporter.get_finished_spans()
    assert [span.name for span in (model, tool, run)] == ["chat m1", "execute_tool 0", "agent.py"]
    assert [span.kind for span in (model, tool, run)] == [SpanKind.CLIENT, SpanKind.INTERNAL, SpanKind.INTERNAL]
    assert run.context is not None
    assert (run.context.trace_id, run.context.span_id, run.parent) == (
        recorded.run.trace_id,
        recorded.run.span_id,
        None,
    )
    assert tool.parent is not None
    assert model.parent is not None
    assert (tool.parent.span_id, model.parent.span_id) == (recorded.run.span_id, outer.span_id)
    assert dict(model.attributes or {}) == {
        "gen_ai.request.model": "m1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert [span.status.status_code for span in (model, tool, run)] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.ERROR,
    ]
    assert (tool.attributes or {})["error.type"] == "json.decoder.JSONDecodeError"
    assert (run.attributes or {})["error.type"] == "ValueError"
    assert (model.start_time, model.end_time) == (inner.started_ns, inner.ended_ns)
    assert SECRET not in json.dumps([json.loads(span.to_json()) for span in (model, tool, run)])

    by_span = {frame.span_id: frame for frame in recorded.frames() if frame.kind is FrameKind.CROSSING}
    assert by_span[inner.span_id].parent_span_id == outer.span_id
    assert by_span[inner.span_id].attributes["gen_ai.usage.input_tokens"] == 7
    assert by_span[outer.span_id].attributes["error.type"] == "json.decoder.JSONDecodeError"
    assert by_span[outer.span_id].failed


def test_a_span_of_the_programs_own_stands_between(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    tracer = trace.get_tracer("program")
    record = recorded.tool()
    with entered(recorded.enter), tracer.start_as_current_span("step") as step:
        with entered(recorded.sink.opened(record, None)):
            trace.get_current_span().add_event("seen")
        recorded.ended(record)
    tool = exporter.get_finished_spans()[0]
    assert tool.parent is not None
    assert tool.parent.span_id == step.get_span_context().span_id
    assert [event.name for event in tool.events] == ["seen"]
    assert recorded.frames()[-1].parent_span_id == recorded.run.span_id


def test_a_thread_without_context_still_belongs_to_the_run(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    outer, inner = recorded.tool(0), recorded.tool(1)
    recorded.sink.opened(outer, None)
    foreign = trace.get_tracer("program").start_span("foreign", otel_context.Context())
    with trace.use_span(foreign):  # the context of another trace
        recorded.sink.opened(inner, outer)
    recorded.ended(inner)
    recorded.ended(outer)
    span = exporter.get_finished_spans()[0]
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (recorded.run.trace_id, outer.span_id)


def test_readings_are_no_spans_for_others(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    record = recorded.tool(kind=Kind.PROCESS)
    assert recorded.sink.opened(record, None) is None
    assert record.span_id
    recorded.ended(record)
    assert exporter.get_finished_spans() == ()
    assert recorded.recording().crossings[0].span_id == record.span_id


def test_a_run_takes_its_callers_trace(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, parent_span_id=77, entry={"kind": "asgi"}, name="GET /")
    recorded.end()
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.span_id, span.parent.span_id, span.parent.is_remote) == (recorded.run.span_id, 77, True)
    assert span.kind is SpanKind.SERVER
    assert recorded.frames()[-1].parent_span_id == 77


def test_runs_at_once_each_have_their_own_root(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    one, two = Recorded(tmp_path / "one"), Recorded(tmp_path / "two", parent_span_id=9)
    three = Recorded(tmp_path / "three")
    tools = [(recorded, recorded.tool(number)) for number, recorded in enumerate((one, two, three))]
    for recorded, record in tools:
        recorded.sink.opened(record, None)
    for recorded, record in tools:
        recorded.ended(record)
        recorded.end()
    spans = exporter.get_finished_spans()
    ids = [(span.context.trace_id, span.context.span_id) for span in spans if span.context]
    wanted = []
    for recorded, record in tools:
        wanted += [(recorded.run.trace_id, record.span_id), (recorded.run.trace_id, recorded.run.span_id)]
    assert ids == wanted


def _sampled_out() -> TracerProvider:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return provider


def _rarely_sampled() -> TracerProvider:
    provider = TracerProvider(sampler=TraceIdRatioBased(1e-12), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return provider


def _switched_off() -> TracerProvider:
    os.environ["OTEL_SDK_DISABLED"] = "true"
    try:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    finally:
        del os.environ["OTEL_SDK_DISABLED"]
    return provider


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        trace.NoOpTracerProvider,
        lambda: TracerProvider(shutdown_on_exit=False),
        _sampled_out,
        _rarely_sampled,
        _switched_off,
    ],
    ids=["no provider", "no-op", "no listener", "sampled out", "rarely sampled", "switched off"],
)
def test_ids_and_recording_do_not_depend_on_who_listens(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", make())
    random.seed(1)
    before = random.getstate()
    recorded = Recorded(tmp_path)
    with entered(recorded.enter) as current:
        assert (current.trace_id, current.span_id) == (recorded.run.trace_id, recorded.run.span_id)
        outer, inner = recorded.tool(0), recorded.tool(1)
        with entered(recorded.sink.opened(outer, None)) as current:
            assert (current.trace_id, current.span_id) == (recorded.run.trace_id, outer.span_id)
            with entered(recorded.sink.opened(inner, outer)) as current:
                assert current.span_id == inner.span_id
            recorded.ended(inner)
        recorded.ended(outer)
    recorded.end()
    assert len({0, recorded.run.span_id, outer.span_id, inner.span_id}) == 4
    found = recorded.recording()
    assert found.complete
    assert [crossing.parent_span_id for crossing in found.crossings] == [recorded.run.span_id, outer.span_id]
    assert random.getstate() == before


def test_a_processor_that_comes_later_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    recorded = Recorded(tmp_path)
    before, after = recorded.tool(0), recorded.tool(1)
    recorded.sink.opened(before, None)
    recorded.ended(before)
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    recorded.sink.opened(after, None)
    recorded.ended(after)
    recorded.end()
    assert [span.name for span in kept.get_finished_spans()] == ["execute_tool 1", "agent.py"]


def test_a_processor_that_raises_costs_its_span_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SimpleSpanProcessor):
        def on_end(self, span: Any) -> None:
            raise RuntimeError("broken exporter")

    monkeypatch.delenv(shield.OTEL_AGENT_REPLAY_RAISE)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken(InMemorySpanExporter()))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    recorded = Recorded(tmp_path)
    record = recorded.tool()
    recorded.sink.opened(record, None)
    recorded.ended(record)
    recorded.end()
    assert recorded.kinds()[-1] == "run"
    assert recorded.recording().crossings == [record]
    assert [line.getMessage() for line in caplog.records] == [
        "recording is incomplete: ending a live span failed: RuntimeError: broken exporter",
    ]


def test_content_stands_before_whatever_refers_to_it(recorded: Recorded) -> None:
    """Cut the file after any frame: every body that is referred to is there."""
    shared = [b"%d " % number * 400 for number in range(20)]

    def work(lane: int) -> None:
        for number in range(12):
            record = recorded.model(
                number, b"".join(random.Random(lane * 100 + number).sample(shared, 8)), f"main/t#{lane}"
            )
            recorded.sink.opened(record, None)
            recorded.sink.asked(record)
            recorded.answered(record, shared[number] + b"%d" % lane)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    recorded.end()
    found = recorded.frames()
    assert sum(frame.kind is FrameKind.CROSSING for frame in found) == 72
    for end in range(1, len(found) + 1, 7):
        recording = assemble(found[:end])[recorded.run.run_id]
        for crossing in recording.crossings:
            for attempt in crossing.attempts:
                assert attempt.request.body
        lacking = [text for text in recording.missing if "content" in text.lower() or "body" in text.lower()]
        assert lacking == []
    assert recorded.recording().complete


def test_a_crossing_that_ends_while_another_is_written_waits_its_turn(recorded: Recorded) -> None:
    """As when the collector of cycles finalises an abandoned stream in the middle of our own work."""
    left = recorded.tool(7)
    recorded.sink.opened(left, None)

    class Headers(list[tuple[str, str]]):
        def __iter__(self) -> Iterator[tuple[str, str]]:  # type: ignore[override]
            if left.end is End.UNFINISHED:
                recorded.ended(left, End.ABANDONED)
            return super().__iter__()

    record = recorded.model(0, b"x" * 2000)
    record.attempts[0].request.headers = Headers([("a", "b")])
    recorded.sink.opened(record, None)
    recorded.sink.asked(record)
    assert recorded.kinds() == ["run.start", "crossing.start", "contents", "crossing.start", "crossing"]
    assert recorded.frames()[-1].span_id == left.span_id
    assert recorded.frames()[-1].attributes[names.END] == "abandoned"


def test_runs_that_finalise_each_others_crossings_do_not_block(tmp_path: Path) -> None:
    """Two threads, each in the middle of its own run, come upon a crossing of the other's."""
    one, two = Recorded(tmp_path / "one"), Recorded(tmp_path / "two")
    both_inside = threading.Barrier(2)

    def work(mine: Recorded, theirs: Recorded, left: CrossingRecord) -> None:
        class Headers(list[tuple[str, str]]):
            def __iter__(self) -> Iterator[tuple[str, str]]:  # type: ignore[override]
                if left.end is End.UNFINISHED:
                    both_inside.wait(LIMIT)
                    theirs.ended(left, End.ABANDONED)
                    both_inside.wait(LIMIT)
                return super().__iter__()

        record = mine.model(0, b"x" * 2000)
        record.attempts[0].request.headers = Headers([("a", "b")])
        mine.sink.opened(record, None)
        mine.sink.asked(record)
        mine.answered(record, b"fine")

    lefts = [one.tool(7), two.tool(7)]
    for recorded, left in zip((one, two), lefts, strict=True):
        recorded.sink.opened(left, None)
    began = time.monotonic()
    threads = [threading.Thread(target=work, args=parts) for parts in ((one, two, lefts[1]), (two, one, lefts[0]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert time.monotonic() - began < 4
    for recorded in (one, two):
        recorded.end()
        found = recorded.recording()
        assert {crossing.position.key: crossing.end for crossing in found.crossings} == {
            "model:openai.chat": End.RETURNED,
            "tool:search": End.ABANDONED,
        }


def test_crossings_in_a_signal_handler_do_not_block(recorded: Recorded) -> None:
    seen: list[CrossingRecord] = []
    ordinals = itertools.count()

    def handle(*_: object) -> None:
        record = recorded.tool(next(ordinals), "from the handler", Kind.HUMAN)  # a signal may come in here as well
        seen.append(record)
        recorded.sink.opened(record, None)
        recorded.ended(record)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    deadline = time.monotonic() + LIMIT
    number = 0
    try:
        while (len(seen) < 40 or number < 100) and time.monotonic() < deadline:
            record = recorded.model(number, b"%d" % number * 700)
            recorded.sink.opened(record, None)
            recorded.sink.asked(record)
            recorded.answered(record, b"y" * 500)
            number += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    recorded.end()
    found = recorded.recording()
    assert len(seen) >= 40
    assert len(found.crossings) == number + len(seen)
    assert found.complete


def test_a_fault_of_ours_is_said_once_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(shield.OTEL_AGENT_REPLAY_RAISE)
    caplog.set_level(logging.WARNING)
    recorded = Recorded(tmp_path)
    for number in range(3):
        bad = recorded.model(number, b"z" * 3000)
        bad.attempts[0].request.headers = None  # type: ignore[assignment]  # nothing that can be written
        bad.attempts[0].request.body = 5 if number else bad.attempts[0].request.body  # type: ignore[assignment]
        assert recorded.sink.opened(bad, None) is not None
        recorded.sink.asked(bad)
        recorded.ended(bad)
    good = recorded.model(9, b"z" * 3000)
    recorded.sink.opened(good, None)
    recorded.sink.asked(good)
    recorded.answered(good, b"fine")
    recorded.end()
    said = [line.getMessage() for line in caplog.records]
    assert len(said) == len(set(said)) == 2
    assert all(line.startswith("recording is incomplete: writing ") for line in said)
    found = recorded.recording()
    assert {note.kind for note in found.notes} == {NoteKind.FAULT}
    assert not found.complete
    assert [crossing.attempts[0].request.body for crossing in found.crossings if crossing.position.ordinal == 9] == [
        b"z" * 3000
    ]


def test_faults_are_raised_where_that_is_asked_for(recorded: Recorded) -> None:
    bad = recorded.model(0, b"")
    bad.attempts[0].request.headers = None  # type: ignore[assignment]
    recorded.sink.opened(bad, None)
    bad.attempts[0].request.headers = 5  # type: ignore[assignment]
    with pytest.raises(TypeError):
        recorded.sink.asked(bad)


def test_a_disk_that_is_full_stops_the_recording_and_says_so_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mount)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    try:
        (mount / "ballast").write_bytes(b"x" * 60_000)
        recorded = Recorded(mount / "spool")
        for number in range(60):
            record = recorded.model(number, random.Random(number).randbytes(2000).hex().encode())
            recorded.sink.opened(record, None)
            recorded.sink.asked(record)
            recorded.answered(record, b"fine")
        assert len(recorded.faults) == 1
        assert recorded.sink.lost > 50
        recorded.sink.packed([ReadingRecord("main", "clock:time.time", "a:1", 0, [1])], [], [])
        recorded.sink.flush()
        before = len(recorded.frames())
        (mount / "ballast").unlink()
        recorded.sink.opened(recorded.tool(), None)
        assert len(recorded.frames()) == before
        recorded.end()
        found = recorded.recording()
        assert found.run.end is End.RETURNED
        assert not found.complete
        assert "could not be written" in found.notes[-1].what
        assert all(crossing.attempts[0].request.body for crossing in found.crossings)
        recorded.writer.close()
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def test_a_home_that_cannot_be_written_costs_the_program_nothing(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("in the way")
    recorded = Recorded(tmp_path / "spool")
    for number in range(20):
        record = recorded.tool(number)
        with entered(recorded.sink.opened(record, None)):
            assert record.span_id
        recorded.ended(record)
    recorded.end()
    assert len(recorded.faults) == 1
    assert (tmp_path / "spool").read_text() == "in the way"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_goes_on_with_the_run_in_its_own_file(recorded: Recorded) -> None:
    recorded.sink.packed([ReadingRecord("main", "clock:time.time", "a:1", 0, [1])], [], [])
    one = recorded.model(0, b"p" * 4000)
    recorded.sink.opened(one, None)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            two = recorded.model(0, b"p" * 4000 + b"q" * 100, "main/process:work#0")
            recorded.sink.opened(two, None)
            recorded.sink.asked(two)
            recorded.answered(two, b"child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    recorded.sink.asked(one)
    recorded.answered(one, b"parent")
    recorded.end()
    found = recorded.recording()
    assert found.complete, found.missing
    assert sorted(crossing.attempts[0].chunks[0] for crossing in found.crossings) == [b"child", b"parent"]
    assert len({crossing.span_id for crossing in found.crossings}) == 2
    assert [reading.values for reading in found.readings] == [[1]]


def test_twenty_megabytes_do_not_hold_the_event_loop(recorded: Recorded) -> None:
    body = b'{"image":"' + random.Random(1).randbytes(10 << 20).hex().encode() + b'"}'
    late = recorded.tool(1)

    async def program() -> None:
        record = recorded.model(0, body)
        recorded.sink.opened(record, None)
        recorded.sink.asked(record)
        recorded.sink.opened(late, None)
        recorded.ended(late)
        await asyncio.sleep(0)
        recorded.answered(record, b"seen")

    asyncio.run(program())
    recorded.end()
    kinds = recorded.kinds()
    assert kinds[0] == "run.start"
    assert kinds[-6:] == ["contents", "crossing.start", "crossing.start", "crossing", "crossing", "run"]
    (found,) = [one for one in recorded.recording().crossings if one.wire]
    assert found.attempts[0].request.body == body


def test_thousands_of_crossings_at_once_in_one_run(recorded: Recorded) -> None:
    many = [recorded.tool(number, {"n": number}) for number in range(5000)]
    for record in many:
        recorded.sink.opened(record, None)
    for record in reversed(many):
        recorded.ended(record, outcome=record.position.ordinal)
    recorded.end()
    found = recorded.recording()
    assert found.complete
    assert sorted(crossing.position.ordinal for crossing in found.crossings) == list(range(5000))
