"""numpy's generators: by value where lanes share them, by their seed where not, by their state where much is drawn."""

from __future__ import annotations

import contextvars
import copy
import json
import pickle
import threading

import numpy as np
import pytest

from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.instrument.libraries import randomness

LEGACY = {
    "random": lambda: np.random.random(),
    "rand": lambda: np.random.rand(3),
    "randn": lambda: np.random.randn(2, 2),
    "randint": lambda: np.random.randint(0, 10**6),
    "randint of a type": lambda: np.random.randint(0, 99, dtype=np.int8),
    "normal": lambda: np.random.normal(1, 2),
    "normals": lambda: np.random.normal(1, 2, 500),
    "choice": lambda: np.random.choice(["a", "b", "c"]),
    "choices": lambda: np.random.choice([1.5, 2.5, 3.5], size=4, p=[0.2, 0.3, 0.5]),
    "shuffle": lambda: shuffled(np.random.shuffle),
    "permutation": lambda: np.random.permutation(9),
    "bytes": lambda: np.random.bytes(7),
    "many bytes": lambda: np.random.bytes(7000),
    "poisson": lambda: np.random.poisson(3.5),
    "binomial": lambda: np.random.binomial(10, 0.5, (2, 3)),
    "multivariate": lambda: np.random.multivariate_normal([0, 1], [[1, 0], [0, 1]]),
    "sample": lambda: np.random.sample(2),
    "ranf": lambda: np.random.ranf(),
    "state": lambda: np.random.get_state()[1][:3],
    "state of a dictionary": lambda: np.random.get_state(legacy=False)["state"]["pos"],
    "RandomState": lambda: np.random.RandomState().random_sample(2),
    "default_rng": lambda: np.random.default_rng().random(2),
    "Generator": lambda: np.random.Generator(np.random.PCG64()).integers(99, size=3),
    "SeedSequence": lambda: np.random.SeedSequence().generate_state(2),
    "spawned": lambda: [child.random() for child in np.random.default_rng().spawn(2)],
    "seeded": lambda: np.random.default_rng(3).normal(size=3),
    "reseeded": lambda: (np.random.seed(), np.random.random())[1],
}


def shuffled(shuffle):
    items = list(range(12))
    shuffle(items)
    return items


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture(autouse=True)
def keep_the_state():
    state = np.random.get_state()
    yield
    np.random.set_state(state)


@pytest.mark.parametrize("name", LEGACY)
def test_every_draw_is_what_it_was_and_comes_again(name, ambient):
    draw = LEGACY[name]
    unseeded = name in {"RandomState", "default_rng", "Generator", "SeedSequence", "spawned", "reseeded"}
    np.random.seed(5)
    expected = [plain(draw()), plain(draw())]
    after = np.random.get_state(legacy=False)
    np.random.seed(5)
    recording = ambient()
    with recording.here():
        first = [draw(), draw()]
        seen = [plain(value) for value in first]
    assert unseeded or seen == expected
    if not unseeded:
        assert str(np.random.get_state(legacy=False)) == str(after)
    np.random.seed(77)
    replay = ambient(recording)
    with replay.here():
        again = [draw(), draw()]
    assert [plain(value) for value in again] == seen and replay.new == []
    assert [type(value) for value in again] == [type(value) for value in first]


def test_a_million_numbers_are_kept_by_the_state_that_they_come_from(ambient):
    def run(rng):
        return [np.random.random(10**6), np.random.normal(0, 1, 10**6), rng.random(10**6)]

    def all_of(session):
        with session.here():
            rng = np.random.default_rng()
        token = LANE.set(session.root.spawn("thread", "other"))
        try:
            return run(rng)
        finally:
            LANE.reset(token)

    recording = ambient()
    seen = all_of(recording)
    replay = ambient(recording)
    again = all_of(replay)
    assert all((a == b).all() for a, b in zip(seen, again, strict=True)) and replay.new == []
    assert len(recording.dump()) < 20_000


def test_two_lanes_that_draw_in_turns_replay_each_by_itself(ambient):
    def run(session, order):
        lanes = {name: session.root.spawn("thread", name) for name in "ab"}
        with session.here():
            rng = np.random.default_rng(4)
            _ = rng.random()
        seen = {"a": [], "b": []}
        for name in order:
            token = LANE.set(lanes[name])
            try:
                seen[name].append(
                    [np.random.random(), plain(np.random.rand(3)), rng.random(), plain(rng.permutation(5))]
                )
            finally:
                LANE.reset(token)
        return seen

    recording = ambient()
    seen = run(recording, "abbaab")
    for order in ("aaabbb", "bbbaaa", "ababab"):
        replay = ambient(recording)
        assert run(replay, order) == seen and replay.new == []


def test_one_more_draw_is_new_and_shifts_only_its_own_generator(ambient):
    def run(more=0):
        one, other = np.random.default_rng(), np.random.default_rng(2)
        seen = [np.random.random(), other.random(), one.random()]
        for _ in range(more):
            np.random.random(), one.random()
        return [*seen, np.random.random(), other.random()], one.random()

    recording = ambient()
    with recording.here():
        seen = run()
    changes = []
    for _ in range(2):
        replay = ambient(recording)
        with replay.here():
            changes.append(run(more=1))
    changed = changes[0]
    assert changes == [changed] * 2
    assert changed[0] == seen[0] and changed[1] != seen[1]
    assert [source for source, _ in replay.new] == ["random:numpy:random"] * 2


def test_the_classes_are_those_of_numpy(ambient):
    with ambient().here():
        rng = np.random.default_rng()
        assert isinstance(rng, np.random.Generator) and repr(rng).startswith("Generator(PCG64)")
        assert np.random.default_rng(rng) is rng
        assert type(pickle.loads(pickle.dumps(rng))) is np.random.Generator
        assert pickle.loads(pickle.dumps(rng)).random() == rng.random()
        assert isinstance(np.random.mtrand._rand, np.random.RandomState)
        assert np.random.rand.__self__ is np.random.mtrand._rand
        assert np.random.rand.__doc__ and np.random.rand.__name__ == "rand"


def test_another_bit_generator_may_be_put_beneath(ambient):
    kept = np.random.get_bit_generator()
    try:

        def run():
            np.random.set_bit_generator(np.random.Philox(5))
            return [np.random.random(), plain(np.random.rand(90))]

        recording = ambient()
        with recording.here():
            seen = run()
        np.random.set_bit_generator(kept)
        with ambient(recording).here():
            assert run() == seen
    finally:
        np.random.set_bit_generator(kept)


def test_it_goes_out_again():
    before = (np.random.rand, np.random.mtrand._rand, np.random.default_rng)
    undo = randomness.install()
    np.random.seed(3)
    np.random.normal()
    expected = np.random.RandomState(3).normal(size=2)[1]
    assert np.random.mtrand._rand is not before[1]
    undo()
    assert (np.random.rand, np.random.mtrand._rand, np.random.default_rng) == before
    assert np.random.normal() == expected  # the second of a pair


PROGRAM = """
    import json, threading
    import numpy as np
    from numpy.random import default_rng, rand
    rng = default_rng()
    def work(seen):
        seen.append([rand(2).tolist(), np.random.randint(9), rng.integers(10**6).item()])
    seen = [np.random.random(), rng.random()]
    threads = [threading.Thread(target=work, args=(seen,)) for _ in range(2)]
    for thread in threads:
        thread.start(); thread.join()
    print(json.dumps([seen, rng.random(), np.random.random_sample(), hash("x") and 1]))
"""


def test_a_program_that_imports_numpy_later(process):
    live, tape, _ = process.run(PROGRAM)
    other, _, _ = process.run(PROGRAM)
    again, replayed, _ = process.run(PROGRAM, tape, env={"PYTHONHASHSEED": "9"})
    assert again == live != other and replayed["new"] == []
    assert len(json.loads(live)[0]) == 4


@pytest.mark.parametrize("size", [4, 400])
def test_what_is_drawn_into_an_array_is_drawn_into_it_again(ambient, size) -> None:
    def run():
        generator = np.random.default_rng()
        generator.random()
        seen = []

        def other():
            given = np.zeros(size)
            assert generator.random(out=given) is given
            again = np.zeros(size)
            generator.standard_normal(size, np.float64, again)
            mixed = np.arange(size)
            assert generator.permuted(mixed, out=mixed) is mixed
            seen.append([given.tolist(), again.tolist(), mixed.tolist()])

        thread = threading.Thread(target=contextvars.copy_context().run, args=(other,))
        thread.start()
        thread.join()
        copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
        return seen, [each.random() for each in copies]

    recording = ambient()
    with recording.here():
        seen = run()
    assert seen[0][0][0][0] != 0
    replay = ambient(recording)
    with replay.here():
        assert run() == seen
    assert replay.new == []


def test_a_copy_of_one_that_many_draw_from(ambient) -> None:
    def run():
        np.random.seed()
        state = np.random.RandomState()
        state.random_sample()
        copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
        return np.random.random(), [each.random_sample() for each in copies]

    recording = ambient()
    with recording.here():
        seen = run()
    with ambient(recording).here():
        assert run() == seen
