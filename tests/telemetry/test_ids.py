"""Ids come from the system's entropy, and a span without a parent joins the run that it is made in."""

from __future__ import annotations

import os
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.telemetry import entropy
from otel_agent_replay.telemetry.ids import EntropyIdGenerator, GivenIds


def lane_of(**session: Any) -> Lane:
    return Lane(SimpleNamespace(**session))  # type: ignore[arg-type]


def test_ids_are_valid_and_never_repeat() -> None:
    spans = {entropy.span_id() for _ in range(3000)}
    traces = {entropy.trace_id() for _ in range(1000)}
    assert len(spans) == 3000
    assert len(traces) == 1000
    assert all(0 < span < 1 << 64 for span in spans)
    assert all(0 < trace < 1 << 128 for trace in traces)
    assert sum(span.bit_count() for span in spans) / 3000 == pytest.approx(32, abs=1)


def test_threads_are_never_given_the_same_id() -> None:
    drawn: list[list[int]] = [[] for _ in range(8)]

    def draw(into: list[int]) -> None:
        into.extend(entropy.span_id() for _ in range(2000))

    threads = [threading.Thread(target=draw, args=(into,)) for into in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for into in drawn for one in into}) == 16_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_draws_its_own() -> None:
    entropy.span_id()
    reader, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sender, b"".join(entropy.span_id().to_bytes(8, "big") for _ in range(100)))
        os._exit(0)
    os.waitpid(child, 0)
    data = os.read(reader, 800)
    os.close(reader)
    os.close(sender)
    theirs = {data[at : at + 8] for at in range(0, 800, 8)}
    mine = {entropy.span_id().to_bytes(8, "big") for _ in range(100)}
    assert len(theirs) == 100
    assert not theirs & mine


def test_the_programs_random_is_never_drawn_from() -> None:
    random.seed(3)
    before = random.getstate()
    provider = TracerProvider(id_generator=EntropyIdGenerator(), shutdown_on_exit=False)
    for _ in range(5):
        provider.get_tracer("t").start_span("s", Context()).end()
    assert random.getstate() == before


def test_a_span_without_a_parent_joins_the_run() -> None:
    tracer = TracerProvider(id_generator=EntropyIdGenerator(), shutdown_on_exit=False).get_tracer("program")

    def trace_id() -> int:
        span = tracer.start_span("s", Context())
        return span.get_span_context().trace_id

    token = LANE.set(lane_of(trace_id=0xABC))
    try:
        assert trace_id() == 0xABC
        LANE.set(lane_of(trace_id=0))
        assert len({trace_id(), trace_id(), 0xABC, 0}) == 4
        LANE.set(lane_of())
        assert len({trace_id(), trace_id(), 0xABC, 0}) == 4
    finally:
        LANE.reset(token)


def test_a_thread_without_context_is_the_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "process_root", lane_of(trace_id=0xDEF))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(EntropyIdGenerator().generate_trace_id()))
    thread.start()
    thread.join()
    assert found == [0xDEF]
    assert EntropyIdGenerator().new_trace_id() != 0xDEF


def test_given_ids_are_taken_once_by_the_thread_that_was_given_them() -> None:
    given = GivenIds()
    given.give(5, 6)
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.extend([given.generate_trace_id(), given.generate_span_id()]))
    thread.start()
    thread.join()
    assert not {5, 6} & set(others)
    assert (given.generate_trace_id(), given.generate_span_id()) == (5, 6)
    assert not {5, 6} & {given.generate_trace_id(), given.generate_span_id()}
    given.give(7, 8)
    given.take_back()
    assert not {7, 8} & {given.generate_trace_id(), given.generate_span_id()}
