"""Draws are recorded one by one, and a seed means what it meant."""

from __future__ import annotations

import copy
import os
import pickle
import random
import secrets
import sys
import tempfile
import threading
import types
import uuid
from random import choice as early_choice
from random import random as early_random
from uuid import uuid4 as early_uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.instrument.libraries import randomness

DRAWS = {
    "random": lambda: random.random(),
    "randint": lambda: random.randint(1, 1000),
    "randrange": lambda: random.randrange(7),
    "choice": lambda: random.choice("abcdefg"),
    "choices": lambda: random.choices("abc", k=5),
    "sample": lambda: random.sample(range(50), 6),
    "uniform": lambda: random.uniform(1, 2),
    "gauss": lambda: random.gauss(5, 2),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "shuffle": lambda: shuffled(),
    "getrandbits": lambda: random.getrandbits(70),
    "randbytes": lambda: random.randbytes(9),
    "betavariate": lambda: random.betavariate(1, 2),
    "triangular": lambda: random.triangular(),
}


def shuffled():
    items = list(range(12))
    random.shuffle(items)
    return items


@pytest.fixture(autouse=True)
def keep_the_state():
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.mark.parametrize("name", DRAWS)
def test_a_recorded_program_draws_what_an_unpatched_one_draws(name, ambient):
    draw = DRAWS[name]
    random.seed(11)
    expected = [draw(), draw(), draw()]
    after = random.getstate()
    random.seed(11)
    recording = ambient()
    with recording.here():
        assert [draw(), draw(), draw()] == expected
    assert random.getstate() == after
    assert recording.values


@pytest.mark.parametrize("name", DRAWS)
def test_a_replay_draws_what_was_recorded_whatever_the_seed(name, ambient):
    draw = DRAWS[name]
    recording = ambient()
    with recording.here():
        seen = [draw() for _ in range(3)]
    random.seed(99)
    replay = ambient(recording)
    with replay.here():
        assert [draw() for _ in range(3)] == seen
    assert replay.new == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_two_lanes_that_draw_in_turns_replay_each_by_itself(ambient, data):
    recording = ambient()
    steps = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(sorted(DRAWS))), max_size=14))
    order = data.draw(st.permutations(range(len(steps))))

    def run(session, steps):
        lanes = {name: session.root.spawn("thread", name) for name in "ab"}
        seen = {"a": [], "b": []}
        for lane, draw in steps:
            token = LANE.set(lanes[lane])
            try:
                seen[lane].append(DRAWS[draw]())
            finally:
                LANE.reset(token)
        return seen

    first = run(recording, steps)
    left = {lane: iter([step for step in steps if step[0] == lane]) for lane in "ab"}
    assert run(ambient(recording), [next(left[steps[index][0]]) for index in order]) == first


def test_the_shared_generator_is_the_object_it_was(ambient):
    assert isinstance(random._inst, random.Random)
    assert random.choice.__self__ is random._inst is early_choice.__self__
    copied = copy.deepcopy(random._inst)
    assert type(random._inst) is random.Random is type(copied)
    assert copied.random() == copy.copy(random._inst).random()
    restored = pickle.loads(pickle.dumps(random._inst))
    assert type(restored) is random.Random and restored.getstate() == random._inst.getstate()
    assert pickle.loads(pickle.dumps(random.choice))("a") == "a"
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    assert random.random() == first


def test_it_goes_out_again():
    names = ("random", "getrandbits", "gauss", "choice")
    before = (
        [getattr(random, name) for name in names],
        os.urandom,
        random._urandom,
        random.Random.seed,
        uuid.uuid4,
        type(random._inst),
    )
    undo = randomness.install()
    assert os.urandom is not before[1] and random.random is not before[0][0]
    undo()
    after = (
        [getattr(random, name) for name in names],
        os.urandom,
        random._urandom,
        random.Random.seed,
        uuid.uuid4,
        type(random._inst),
    )
    assert all(a == b for a, b in zip(before, after, strict=True)) and type(random._inst) is random.Random


def test_names_taken_before_are_recorded(ambient):
    recording = ambient()
    module = types.ModuleType("unused")
    assert sys.modules.get(module.__name__) is None

    def run():
        return [early_random(), early_choice("abcdefghij"), str(early_uuid4()), secrets.token_bytes(3)]

    with recording.here():
        seen = run()
    replay = ambient(recording)
    with replay.here():
        assert run() == seen
    assert replay.new == [] and recording.sources()["random:uuid4"] == 1


def test_a_uuid_taken_where_no_scan_finds_it_is_the_same_reading(ambient):
    import dataclasses

    hidden = {"make": early_original_uuid4}
    recording = ambient()

    def run():
        return [str(hidden["make"]()), str(uuid.uuid4())]

    with recording.here():
        seen = run()
    assert recording.sources() == {"random:uuid4": 2}
    replay = ambient(recording)
    with replay.here():
        hidden["make"] = uuid.uuid4
        assert run() == seen
    assert dataclasses.is_dataclass(seen) is False and replay.new == []
    assert all(uuid.UUID(text).version == 4 for text in seen)


early_original_uuid4 = types.FunctionType(uuid.uuid4.__code__, vars(uuid), "uuid4")  # not found by any scan


def test_generators_of_its_own_are_kept_by_their_seed(ambient):
    class Mine(random.Random):
        pass

    def run():
        return [
            random.Random().random(),
            Mine().random(),
            random.Random(5).random(),
            random.SystemRandom().random(),
            Mine(4).random(),
        ]

    recording = ambient()
    with recording.here():
        seen = run()
    again = ambient(recording)
    with again.here():
        assert run() == seen
    assert recording.sources() == {"random:seed": 2, "random:os.urandom:7": 1} and again.new == []
    assert random.Random(5).random() == seen[2]


def test_one_more_gauss_shifts_no_other(ambient):
    def run(*, more):
        seen = [random.gauss(0, 1)]
        if more:
            random.gauss(3, 4)
        seen.append(random.gauss(10, 2))
        seen.append(random.gauss(0, 1))
        return seen

    random.seed(3)
    plain = [random.gauss(0, 1), random.gauss(10, 2), random.gauss(0, 1)]
    random.seed(3)
    recording = ambient()
    with recording.here():
        assert run(more=False) == plain
    replay = ambient(recording)
    with replay.here():
        assert run(more=True) == plain
    assert [source for source, _ in replay.new] == ["random:gauss"]


def test_entropy_of_another_size_is_another_reading(ambient):
    def draw(size):
        return os.urandom(size)

    recording = ambient()
    with recording.here():
        seen = [draw(4), draw(4)]
    replay = ambient(recording)
    with replay.here():
        assert [draw(4), draw(8), draw(4)][::2] == seen
        assert len(draw(8)) == 8 and os.urandom(0) == b""
        for bad in (-1, "x", 1.5):
            with pytest.raises((ValueError, TypeError)):
                os.urandom(bad)
    if hasattr(os, "getrandom"):
        assert len(os.getrandom(3)) == 3


def test_uuids_of_every_version(ambient):
    def run():
        return [
            uuid.uuid1(),
            uuid.uuid1(node=1, clock_seq=2),
            uuid.uuid4(),
            uuid.uuid3(uuid.NAMESPACE_DNS, "x"),
            uuid.uuid5(uuid.NAMESPACE_DNS, "x"),
        ]

    recording = ambient()
    with recording.here():
        seen = run()
    assert [one.version for one in seen] == [1, 1, 4, 3, 5] and seen[1].node == 1
    assert recording.sources() == {"random:uuid1": 2, "random:uuid4": 1}
    with ambient(recording).here():
        assert run() == seen


def test_names_of_temporary_files(ambient, tmp_path):
    def run():
        with tempfile.NamedTemporaryFile(dir=tmp_path) as file, tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            return [file.name, folder]

    recording = ambient()
    with recording.here():
        seen = run()
    with ambient(recording).here():
        assert run() == seen
    assert recording.sources() == {"random:tempfile": 2}


def test_beneath_a_crossing_and_outside_a_run_draws_are_real(ambient):
    session = ambient()
    lane = Lane(session, session.root, "call", "model:x", 0)
    lane.beneath = object()
    token = LANE.set(lane)
    try:
        random.random(), uuid.uuid4(), os.urandom(3), random.Random(), secrets.token_hex(), random.gauss(0, 1)
    finally:
        LANE.reset(token)
    random.random(), uuid.uuid4()
    assert not session.values


def test_draws_of_many_threads_do_not_break_it(ambient):
    session = ambient()

    def draw():
        for _ in range(200):
            random.random(), random.gauss(0, 1), random.sample(range(9), 3), random.getrandbits(5)

    with session.here():
        import contextvars

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(draw,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert session.sources()["random:random"] == 800


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_draws_something_else(ambient):
    random.seed(5)
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, repr(random.random()).encode())
        os._exit(0)
    os.wait()
    assert float(os.read(read, 100)) != random.random()
    os.close(read), os.close(write)


def test_numpy_is_recorded_by_its_entropy(ambient):
    numpy = pytest.importorskip("numpy")

    def run():
        return [numpy.random.default_rng().random(), numpy.random.default_rng(1).random()]

    recording = ambient()
    with recording.here():
        seen = run()
    with ambient(recording).here():
        assert run() == seen
