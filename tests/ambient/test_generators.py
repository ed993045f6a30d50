"""Generators of the program's own are kept by their seed, until somebody else draws from them."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_agent_replay.boundary.lanes import LANE, Lane


@pytest.fixture(autouse=True)
def keep_the_state():
    state = random.getstate()
    yield
    random.setstate(state)


def of_generator(make):
    """A program whose draws do not follow from when its lanes run, if they are kept well."""

    def run(session, order, *, more=0):
        lanes = [session.root, session.root.spawn("thread", "a"), session.root.spawn("thread", "b")]
        with session.here():
            rng = make()
        seen = {0: [], 1: [], 2: []}
        for step, index in enumerate(order):
            token = LANE.set(lanes[index])
            try:
                if step == 0:
                    for _ in range(more):
                        rng.random()
                seen[index].append((rng.random(), rng.gauss(1, 2), rng.sample(range(90), 2)))
            finally:
                LANE.reset(token)
        return seen

    return run


@pytest.mark.parametrize("make", [random.Random, lambda: random.Random(4)], ids=["unseeded", "seeded"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.lists(st.integers(0, 2), max_size=9), data=st.data())
def test_a_generator_that_lanes_share_replays_in_any_order_of_theirs(ambient, make, order, data):
    program = of_generator(make)
    recording = ambient()
    seen = program(recording, order)
    replay = ambient(recording)
    assert program(replay, data.draw(st.permutations(order))) == seen
    assert replay.new == []


def test_a_recorded_program_draws_of_its_own_generators_what_an_unpatched_one_draws(ambient):
    def run():
        rng = random.Random(8)
        return [
            rng.random(),
            rng.gauss(0, 1),
            rng.gauss(0, 1),
            rng.choice("abcdef"),
            rng.getrandbits(99),
            rng.getstate(),
        ]

    plain = run()
    recording = ambient()
    with recording.here():
        assert run() == plain
    assert recording.sources() == {}  # its seed says it all
    drawn = [values for (_, source, _), values in ambient(recording).recorded.values.items() if "drawn" in source]
    assert drawn == [[5]]


def test_one_more_draw_of_a_generator_of_its_own_is_new(ambient):
    def run(more=0):
        rng, other = random.Random(), random.Random(3)
        seen = [rng.random() for _ in range(3)]
        for _ in range(more):
            rng.random()
        return seen, [rng.random()], [other.random() for _ in range(2)]

    recording = ambient()
    with recording.here():
        seen = run()
    replay = ambient(recording)
    with replay.here():
        assert run() == seen
    assert replay.new == []
    replay = ambient(recording)
    with replay.here():
        first, shifted, other = run(more=1)
    assert (first, other) == (seen[0], seen[2]) and shifted != seen[1]
    assert [source for source, _ in replay.new] == ["random:random"]


def test_a_tool_that_is_not_run_again_shifts_no_draw(ambient):
    """What others have drawn in between, the replay need not draw."""

    def run(session, *, answered):
        with session.here():
            rng = random.Random(5)
            seen = [rng.random()]
            if not answered:
                token = LANE.set(Lane(session, session.root, "call", "tool:x", 0))
                rng.random(), rng.shuffle([1, 2, 3])
                LANE.reset(token)
            return [*seen, rng.random(), rng.randint(1, 10**9), rng.getstate()]

    recording = ambient()
    seen = run(recording, answered=False)
    replay = ambient(recording)
    assert run(replay, answered=True) == seen and replay.new == []


def test_the_state_of_the_shared_generator_is_a_reading(ambient):
    def run():
        random.random()
        state = random.getstate()
        own = random.Random()
        own.setstate(state)
        random.gauss(0, 1)
        return [own.random(), own.gauss(0, 1), random.getstate(), copy.copy(own).random()]

    recording = ambient()
    with recording.here():
        seen = run()
    random.seed(1)
    replay = ambient(recording)
    with replay.here():
        assert run() == seen
    assert replay.new == [] and recording.sources()["random:state"] == 2


def test_copies_and_pickles_of_a_generator_know_nothing_of_us(ambient):
    class Whole(random.Random):
        def __reduce__(self):
            return Whole, (), self.__dict__.copy()

        def __setstate__(self, state):
            self.__dict__.update(state)

    session = ambient()
    with session.here():
        rng = random.Random(3)
        rng.random()
        for made in (copy.copy(rng), copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))):
            assert made.getstate() == rng.getstate() and made is not rng
        copy.deepcopy(Whole(3)).random()


def test_telemetry_draws_from_no_generator_of_the_program(ambient):
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    def run(spans):
        random.seed(7)
        seen = []
        for index in range(4):
            with spans(f"s{index}"):
                seen += [random.random(), random.getrandbits(64), random.choice("abcdefgh"), random.gauss(0, 1)]
        return seen, random.getstate()

    plain = run(lambda _: contextlib.nullcontext())
    provider = TracerProvider()
    assert type(provider.id_generator) is RandomIdGenerator
    tracer = provider.get_tracer("own")
    recording = ambient()
    with recording.here():
        assert run(tracer.start_as_current_span) == plain
    replay = ambient(recording)
    with replay.here():
        assert run(tracer.start_as_current_span)[0] == plain[0]
    assert run(tracer.start_as_current_span) == plain  # outside of a run too
    ids = {provider.id_generator.generate_span_id() for _ in range(100)}
    assert len(ids) == 100 and max(ids).bit_length() > 56
    provider.shutdown()
