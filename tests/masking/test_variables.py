"""Masked values as variables, when a replay compares."""

from __future__ import annotations

import json

import pytest

from otel_agent_replay.recording import canonical
from otel_agent_replay.recording.mask_rules import Rules
from otel_agent_replay.recording.masking import Masker
from otel_agent_replay.recording.values import WireRequest
from otel_agent_replay.recording.variables import Bindings, token

A, B = token("openai-key", "a" * 20), token("x", "b" * 20)
MASKER = Masker(Rules(), b"k" * 32)


def request(body: object, url: str = "http://x/v1", *headers: tuple[str, str]) -> WireRequest:
    return WireRequest("POST", url, list(headers), body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("recorded", "asked", "same"),
    [
        (A, "anything", True),
        (A, "", False),
        (A, 5, True),
        (A, {"$": "decimal", "v": "1"}, True),
        (f"use {A} now", "use sk-1 now", True),
        (f"use {A} now", f"use {A} now", True),
        (f"use {A} now", "use sk-1", False),
        (f"use {A} now", "take sk-1 now", False),
        (f"{A} and {A}", "x and x", True),
        (f"{A} and {A}", "x and y", False),
        (f"{A} and {A}", f"x and {A}", True),
        (f"{A} and {B}", "x and y", True),
        (f"{A} and {B}", "x and x", True),
        (f"{A}{B}.", "xy.", True),
        ([A, {"k": A}], ["x", {"k": "x"}], True),
        ([A, {"k": A}], ["x", {"k": "y"}], False),
        ({A: 1, "b": 2}, {"x": 1, "b": 2}, True),
        ({A: 1}, {"x": 2}, False),
        ({A: 1}, {}, False),
        ("<masked> <masked>", "x y", True),
        (f"a {A}\n{'x' * 50_000}", f"a b\n{'x' * 50_000}", True),
        ("masked.not a token", "masked.not a token", True),
        ("masked.not a token", "other", False),
    ],
)
def test_values(recorded, asked, same: bool) -> None:
    assert canonical.same_value(recorded, asked, Bindings()) is same
    assert bool(canonical.value_differences(recorded, asked)) is not same


def test_a_variable_is_bound_only_where_all_is_the_same() -> None:
    bound = Bindings()
    assert not canonical.same_value([A, 1], ["x", 2], bound)
    assert canonical.same_value([A, 1], ["y", 1], bound)
    assert not canonical.same_value(A, "x", bound)
    assert canonical.same_value(f"again {A}", "again y", bound)
    assert canonical.same_value(json.dumps({"k": A}), json.dumps({"k": "y"}), bound)
    assert canonical.same_value(A, A, bound)


def test_escaped_and_quoted_forms_are_one_value() -> None:
    bound = Bindings()
    value = 'p"w d/1'
    assert canonical.same_value(A, value, bound)
    assert canonical.same_value(f'{{"k": "{A}"}}', json.dumps({"k": value}), bound)
    assert canonical.same_value(f"/x/{A}/y", "/x/p%22w%20d%2F1/y", bound)


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        ({"a": "sk-proj-abcdefghij0123456789"}, {"a": "sk-proj-0123456789abcdefghij"}),
        ({"a": json.dumps({"password": "hunter2", "n": "x"})}, {"a": json.dumps({"password": "other", "n": "x"})}),
        ({"m": [{"c": "sk-proj-abcdefghij0123456789"}] * 2}, {"m": [{"c": "sk-proj-0123456789abcdefghij"}] * 2}),
    ],
)
def test_a_masked_request_answers_one_with_other_credentials(recorded, asked) -> None:
    urls = [f"http://me:{word}@x/p?api_key={word}&x=1" for word in ("one", "two2")]
    stored = MASKER.request(request(recorded, urls[0]), "")
    assert canonical.same_request(stored, request(asked, urls[1]), Bindings())
    assert canonical.differences(stored, request(asked, urls[1])) == ()
    assert not canonical.same_request(stored, request({**asked, "more": 1}, urls[1]), Bindings())
    (difference,) = canonical.differences(stored, request({**asked, "more": 1}, urls[1]))
    assert difference.where == "body.more"


def test_a_form_and_a_coded_body() -> None:
    import gzip

    kind = ("content-type", "application/x-www-form-urlencoded")
    stored = MASKER.request(request(b"password=hunter2&x=1+2", "http://x/", kind), "")
    assert b"hunter2" not in stored.body
    assert canonical.same_request(stored, request(b"x=1%202&password=other", "http://x/", kind))
    coded = [("content-encoding", "gzip")]
    bodies = [gzip.compress(json.dumps({"k": f"sk-proj-{word * 3}"}).encode()) for word in ("abcdefg1", "hijklmn2")]
    stored = MASKER.request(request(bodies[0], "http://x/", *coded), "")
    assert canonical.same_request(stored, request(bodies[1], "http://x/", *coded))


def test_recordings_with_the_older_mask_still_answer() -> None:
    stored = request({}, "http://<masked>@x/p?a=1&api_key=<masked>&token=<masked>")
    assert canonical.same_request(stored, request({}, "http://me:pw@x/p?a=1&api_key=one&token=two"), Bindings())
    assert not canonical.same_request(stored, request({}, "http://me:pw@x/p?a=2&api_key=one&token=two"), Bindings())
