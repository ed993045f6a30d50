"""Built-in functions that somebody holds call something else, and nobody can tell."""

from __future__ import annotations

import copy
import datetime
import functools
import pickle
import sys
import threading
import time

import pytest

from otel_agent_replay.boundary import twins


class Moment(datetime.datetime):
    pass


def caller_of() -> str:
    return sys._getframe(2).f_code.co_name


@pytest.fixture
def redirected():
    """Functions of each way of being called, redirected to what says how it was called."""
    held = {
        "nothing": time.monotonic_ns,
        "one": time.sleep,
        "many": time.strftime,
        "keywords": datetime.datetime.now,
        "subclass": Moment.now,
        "class": datetime.date.today,
    }

    def said(*given, **named):
        return given[1:], named, caller_of()

    bound = twins.bound_methods((datetime.datetime, datetime.date), ("now", "today"))
    assert {id(held[name]) for name in ("keywords", "subclass", "class")} <= {id(one) for one in bound}
    pairs = [(held[name], said) for name in ("nothing", "one", "many")] + [
        (one, lambda cls, *given, **named: (cls, given, named, caller_of())) for one in bound
    ]
    undo = twins.redirect(pairs)
    yield held
    undo()
    assert held["nothing"]() > 10**6 and held["keywords"](datetime.UTC).tzinfo is datetime.UTC
    assert type(held["subclass"]()) is Moment and held["many"]("%%") == "%"


def test_every_way_of_calling(redirected):
    here = "test_every_way_of_calling"
    assert redirected["nothing"]() == ((), {}, here)
    assert redirected["one"](3) == ((3,), {}, here)
    assert redirected["many"]("%Y", 7) == (("%Y", 7), {}, here)
    assert redirected["keywords"]() == (datetime.datetime, (), {}, here)
    assert redirected["keywords"](1) == (datetime.datetime, (1,), {}, here)
    assert redirected["keywords"](tz=2) == (datetime.datetime, (), {"tz": 2}, here)
    assert redirected["subclass"](5) == (Moment, (5,), {}, here)
    assert redirected["class"]() == (datetime.date, (), {}, here)
    assert functools.partial(redirected["one"], 4)() == ((4,), {}, here)


def test_what_the_interpreter_refuses_is_still_refused(redirected):
    with pytest.raises(TypeError, match="takes no arguments"):
        redirected["nothing"](1)
    with pytest.raises(TypeError, match="exactly one argument"):
        redirected["one"]()


def test_nobody_can_tell(redirected):
    assert redirected["nothing"] is time.monotonic_ns
    assert repr(redirected["nothing"]) == "<built-in function monotonic_ns>"
    assert redirected["nothing"].__doc__.startswith("monotonic_ns()")
    assert redirected["nothing"].__self__.__name__ == "time" and redirected["nothing"].__module__ == "time"
    assert pickle.loads(pickle.dumps(redirected["nothing"])) is time.monotonic_ns
    assert copy.deepcopy(redirected["one"]) is time.sleep
    assert pickle.loads(pickle.dumps(redirected["subclass"])).__self__ is Moment


def test_an_exception_comes_through():
    def fail(_):
        raise ValueError("from Python")

    undo = twins.redirect([(time.get_clock_info, fail), (time.thread_time_ns, fail)])
    try:
        with pytest.raises(ValueError, match="from Python"):
            time.thread_time_ns()
    finally:
        undo()
    assert time.thread_time_ns() >= 0


def test_the_key_of_a_dictionary_is_left_alone():
    """Its hash would change under the dictionary."""
    table, members = {time.process_time_ns: 1}, {time.thread_time_ns}
    undo = twins.redirect([(time.process_time_ns, lambda _: 0), (time.thread_time_ns, lambda _: 0)])
    assert time.process_time_ns() > 0 and time.thread_time_ns() > 0
    assert table[time.process_time_ns] == 1 and time.thread_time_ns in members
    undo()


def test_a_twin_is_the_function_as_it_was():
    twin = twins.twin(time.monotonic_ns)
    assert twin is not time.monotonic_ns and repr(twin) == repr(time.monotonic_ns)
    undo = twins.redirect([(time.monotonic_ns, lambda _: 0)])
    try:
        assert time.monotonic_ns() == 0 < twin()
    finally:
        undo()
    assert twins.twin(len) is not len and twins.twin(print)("", end="") is None
    assert twins.twin(caller_of) is caller_of  # no built-in
    assert twins.twin([].append).__self__ == []


def test_what_cannot_be_redirected_is_passed_over():
    undo = twins.redirect([(caller_of, lambda _: 0), ([].append, lambda *_: 0), (time.struct_time, lambda *_: 0)])
    undo()
    assert [].append(1) is None


def test_threads_may_call_it_meanwhile():
    done = threading.Event()
    wrong: list[object] = []

    def call() -> None:
        while not done.is_set():
            value = time.monotonic_ns()
            if not (value == 0 or value > 10**6):
                wrong.append(value)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        twins.redirect([(time.monotonic_ns, lambda _: 0)])()
    done.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
