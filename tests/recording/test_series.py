"""Readings as little text: whatever goes in comes back."""

from __future__ import annotations

import datetime
import random
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_agent_replay.recording import exact, series

naive = st.datetimes()
aware = st.datetimes(timezones=st.just(datetime.UTC))


def through(values: list) -> list:
    return series.unpack(exact.loads(exact.dumps(series.pack(values))))


@given(
    st.lists(st.floats(allow_nan=False))
    | st.lists(st.integers())
    | st.lists(st.integers(min_value=-(2**63), max_value=2**63))
    | st.lists(st.sampled_from(["a", "b"]))
    | st.lists(st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False))
    | st.lists(st.dictionaries(st.text(), st.integers()))
)
def test_every_value_comes_back(values):
    found = through(values)
    assert found == values and list(map(type, found)) == list(map(type, values))


@given(st.lists(st.floats(width=64, allow_nan=False), min_size=4))
def test_every_bit_of_a_float_comes_back(values):
    assert struct.pack(f"{len(values)}d", *through(values)) == struct.pack(f"{len(values)}d", *values)


@given(
    st.integers(min_value=-(2**63), max_value=2**63),
    st.lists(st.integers(min_value=0, max_value=2**26), min_size=5),
    st.integers(min_value=1, max_value=400),
)
def test_many_that_are_near_each_other_come_back(base, steps, times):
    """Read very often they are written byte by byte, up to the ends of 64 bits; wider ones in another form."""
    values = [min(base + step, 2**63) for step in steps] * times
    assert through(values) == values
    doubles = [struct.unpack("d", struct.pack("q", min(value, 2**63 - 1)))[0] for value in values]
    assert struct.pack(f"{len(doubles)}d", *through(doubles)) == struct.pack(f"{len(doubles)}d", *doubles)


def test_a_clock_that_is_read_very_often_is_written_byte_by_byte():
    for read, form in ((time.time, "float8"), (time.time_ns, "int8"), (time.perf_counter, "float8")):
        values = [read() for _ in range(1000)]
        assert list(series.pack(values)) == [form]
        assert len(exact.dumps(series.pack(values))) < 7 * len(values) and through(values) == values
        assert list(series.pack(values[:200])) == [form.removesuffix("8")]


@given(st.lists(naive) | st.lists(aware) | st.lists(naive.map(lambda when: when.replace(fold=1))))
def test_times_come_back_as_their_text(values):
    assert through(values) == [series.text(when) for when in values]


@pytest.mark.parametrize("read", [time.time, time.monotonic, time.perf_counter_ns, time.time_ns, datetime.datetime.now])
def test_a_clock_in_a_loop_takes_few_bytes(read):
    values = [read() for _ in range(4096)]
    assert len(exact.dumps(series.pack(values))) < 9 * len(values)


@pytest.mark.parametrize("draw", [random.random, lambda: random.gauss(0, 1)])
def test_draws_take_little_more_than_their_bytes(draw):
    values = [draw() for _ in range(4096)]
    assert len(exact.dumps(series.pack(values))) < 11 * len(values) and through(values) == values


@pytest.mark.parametrize(
    "packed",
    [
        None,
        {"doubles": "abc"},
        {"float8": []},
        {"float8": [1, "00"]},
        {"float8": [0, *["00"] * 8]},
        {"float8": [1 << 40, *["00"] * 8]},
        {"float8": [True, *["00"] * 8]},
        {"float8": [2, *["AA=="] * 8]},
        {"float8": [1, *["  "] * 8]},
        {"int8": [1, *["zz"] * 8]},
        {"int8": [1, *[3] * 8]},
        {"int8": ["1", *["00"] * 8]},
        {"int8": "AAAA"},
        {"doubles": "!!!!"},
        {"doubles": "AAAA"},
        "1,2",
        {},
        {"float": "1", "int": "1"},
        {"float": "x"},
        {"float": "1.5,2"},
        {"float": '"a"'},
        {"float": "[1],[2]"},
        {"float": "true"},
        {"float": "18446744073709551615,1"},
        {"int": [1]},
        {"other": "1"},
        {"local": "9223372036854775807"},
        {"utc": "-9223372036854775807"},
        {"runs": "ab"},
        {"runs": ["a"]},
        {"runs": ["a", -1]},
        {"runs": ["a", 10**12]},
        {"runs": ["a", 2**20, "b", 1]},
        {"runs": ["a", True]},
        {"int": "1," * series.MOST * 20},
    ],
    ids=repr,
)
def test_what_nobody_wrote_is_refused(packed):
    with pytest.raises(ValueError, match=r"reading|shorter|JSON|column"):
        series.unpack(packed)
