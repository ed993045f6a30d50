"""Requests and values are the same where they mean the same, and of the rest only what differs is told."""

import json
import random
import urllib.parse

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording import codec
from otel_agent_replay.recording.canonical import (
    ABSENT,
    differences,
    same_request,
    same_value,
    similarity,
    value_differences,
    value_similarity,
)
from otel_agent_replay.recording.values import WireRequest

thorough = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def post(body, url="https://api.example.com/v1/chat", kind="application/json", method="POST") -> WireRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return WireRequest(method, url, [("content-type", kind), ("authorization", "[masked]")], data)


def told(recorded, asked, **options):
    return [(found.where, found.recorded, found.asked) for found in differences(recorded, asked, **options)]


def chat(*contents, **more):
    return {"model": "m", "messages": [{"role": "user", "content": content} for content in contents], **more}


FORM = "application/x-www-form-urlencoded"

SAME = {
    "equal": (post({"a": 1}), post({"a": 1})),
    "order of keys": (post(b'{"a":1,"b":[{"c":2,"d":3}]}'), post(b'{ "b" : [ {"d":3, "c":2} ], "a":1 }')),
    "escapes": (post('{"a":"é"}'.encode()), post(b'{"a":"\\u00e9"}')),
    "host and port": (post({}, "https://a.example/v1/x?q=1"), post({}, "http://localhost:8000/v1/x?q=1")),
    "method in small letters": (post({}, method="post"), post({})),
    "order of the query": (post({}, "http://a/x?a=1&b=2"), post({}, "http://a/x?b=2&a=1")),
    "no path": (post({}, "http://a"), post({}, "http://a/")),
    "not a number": (post(b'{"a":NaN}'), post(b'{ "a":NaN }')),
    "large integers": (post(b'{"a":123456789012345678901234567890}'), post(b'{"a": 123456789012345678901234567890}')),
    "a form": (
        post(b"a=1&b=%20x&b=2", kind=FORM),
        post(b"b=+x&b=2&a=1", kind=f"{FORM}; charset=utf-8"),
    ),
    "bytes": (post(b"\xff\0", kind="application/octet-stream"), post(b"\xff\0", kind="application/octet-stream")),
    "surrogates": (post(b'{"a":"\\ud800"}'), post(b'{"a": "\\ud800"}')),
}  # fmt: skip

DIFFERENT = {
    "integer and float": (post({"a": 1}), post({"a": 1.0})),
    "integer and true": (post({"a": 1}), post({"a": True})),
    "null and nothing": (post({"a": None}), post({})),
    "large integers": (post(b'{"a":123456789012345678901234567890}'), post(b'{"a":123456789012345678901234567891}')),
    "integers that are one float": (post({"a": 2**53}), post({"a": 2**53 + 1})),
    "method": (post({}), post({}, method="PUT")),
    "path": (post({}, "http://a/x"), post({}, "http://a/y")),
    "query": (post({}, "http://a/x?a=1"), post({}, "http://a/x?a=2")),
    "order of a list": (post([1, 2]), post([2, 1])),
    "order of equal names": (post({}, "http://a/x?a=1&a=2"), post({}, "http://a/x?a=2&a=1")),
    "text": (post(b"a b", kind="text/plain"), post(b"a  b", kind="text/plain")),
    "bytes": (post(b"\xff\0", kind="x/y"), post(b"\xff\1", kind="x/y")),
    "json and no json": (post({}), post(b"{")),
    "a form": (post(b"a=1", kind=FORM), post(b"a=2", kind=FORM)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_requests_that_mean_the_same_are_the_same(name):
    recorded, asked = SAME[name]
    assert same_request(recorded, asked)
    assert same_request(asked, recorded)
    assert differences(recorded, asked) == ()
    assert similarity(recorded, asked) >= 0.2


@pytest.mark.parametrize("name", DIFFERENT)
def test_requests_that_differ_are_told_apart_and_where(name):
    recorded, asked = DIFFERENT[name]
    assert not same_request(recorded, asked)
    assert not same_request(asked, recorded)
    assert len(differences(recorded, asked)) == (2 if name.startswith("order") or name == "bytes" else 1)
    assert similarity(recorded, asked) <= 1


def multipart(**files) -> WireRequest:
    request = httpx2.Request("POST", "http://a/files", data={"purpose": "x"}, files=files)
    request.read()
    return WireRequest("POST", str(request.url), list(request.headers.multi_items()), request.content)


def test_the_boundary_of_a_multipart_body_does_not_count():
    one = multipart(file=("a.bin", b"\xff\0--\r\n--x", "application/x"), other=("b.txt", b"text"))
    two = multipart(file=("a.bin", b"\xff\0--\r\n--x", "application/x"), other=("b.txt", b"text"))
    assert one.body != two.body
    assert same_request(one, two)
    three = multipart(file=("a.bin", b"\xff\0--\r\n--y", "application/x"), other=("b.txt", b"other"))
    assert [where for where, *_ in told(one, three)] == [
        "body[1].content.digest",
        "body[1].content.hex",
        "body[2].content",
    ]


def test_only_the_part_of_a_long_text_that_differs_is_shown():
    text = "word " * 2000
    [(where, recorded, asked)] = told(post(chat("hi", text + "blue" + text)), post(chat("hi", text + "green" + text)))
    assert where == "body.messages[1].content"
    assert "word blue" in recorded
    assert "word green" in asked
    assert max(len(recorded), len(asked)) < 200
    assert recorded.startswith('"…')
    assert recorded.endswith('…"')


def test_a_short_text_is_shown_whole():
    assert told(post(chat("Paris")), post(chat("London"))) == [("body.messages[0].content", '"Paris"', '"London"')]


def test_one_message_more_is_one_difference():
    before = [f"message {n}" for n in range(30)]
    after = [*before[:4], "a new one", *before[4:]]
    assert told(post(chat(*before)), post(chat(*after))) == [
        ("body.messages[4]", ABSENT, '{"content":"a new one","role":"user"}')
    ]
    assert told(post(chat(*after)), post(chat(*before))) == [
        ("body.messages[4]", '{"content":"a new one","role":"user"}', ABSENT)
    ]


def test_a_message_more_and_another_one_changed_are_two():
    before = [f"the message number {n} says something" for n in range(10)]
    after = ["entirely different words stand here", *before[:-1], before[-1].replace("something", "nothing")]
    assert [(where, recorded == ABSENT) for where, recorded, _ in told(post(chat(*before)), post(chat(*after)))] == [
        ("body.messages[0]", True),
        ("body.messages[10].content", False),
    ]


def test_a_changed_item_beside_a_new_one_is_told_by_what_changed():
    before = ["the first message of them all", "the last message of them all"]
    after = ["something that was never said", "the first message of them both", "the last message of them all"]
    found = told(post(chat(*before)), post(chat(*after)))
    assert [where for where, *_ in found] == ["body.messages[0]", "body.messages[1].content"]


def test_differences_are_limited():
    one, two = {f"k{n}": n for n in range(50)}, {f"k{n}": n + 1 for n in range(50)}
    assert len(told(post(one), post(two))) == 8
    assert len(told(post(one), post(two), limit=3)) == 3


def test_a_key_that_is_no_name_is_quoted():
    assert told(post({"a b": {"c-d": 1}}), post({"a b": {"c-d": 2}})) == [("body['a b']['c-d']", "1", "2")]


def test_what_is_there_or_not_is_said():
    found = told(post(chat("x", temperature=0.1)), post(chat("x", seed=[1])))
    assert found == [("body.temperature", "0.1", ABSENT), ("body.seed", ABSENT, "[1]")]


def nested(depth: int, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@pytest.mark.parametrize("depth", [50, 500, 5000])
def test_deep_bodies_are_bounded(depth):
    one, two = (post(b"[" * depth + leaf + b"]" * depth) for leaf in (b"1", b"2"))
    assert same_request(one, post(b"[" * depth + b"1 " + b"]" * depth)) == (depth < 900)
    assert not same_request(one, two)
    [(where, recorded, asked)] = told(one, two)
    assert where.startswith("body")
    assert len(recorded + asked) < 400


def test_deep_values_are_bounded():
    assert same_value(nested(100_000, 1), nested(100_000, 1))
    assert not same_value(nested(100_000, 1), nested(100_000, 2))
    assert len(value_differences(nested(3000, 1), nested(3000, 2), "input")) == 1
    assert 0 <= value_similarity(nested(3000, 1), nested(3000, 2)) <= 1


def test_huge_lists_are_bounded():
    rng = random.Random(1)
    one = [rng.random() for _ in range(60_000)]
    two = [*one[:5], 0.5, *one[5:30_000], 7, *one[30_001:]]
    assert [found.where for found in value_differences(one, two)] == ["[5]", "[30001]"]
    assert len(value_differences([one], [one[:9] + one[10:]])) == 1


def test_the_nearest_request_is_the_most_alike():
    base = [f"turn {n}: {'lorem ipsum ' * 20}{n}" for n in range(20)]
    asked = post(chat(*base[:10], "a question that was put in another way"))
    candidates = [post(chat(*base[:n])) for n in range(1, 20)] + [post(chat(*base[:10]), "https://a/v1/other")]
    ranked = sorted(candidates, key=lambda recorded: similarity(recorded, asked), reverse=True)
    assert ranked[0] == candidates[9] or ranked[0] == candidates[10]
    assert similarity(asked, asked) == 1
    assert similarity(post({}, "http://a/x"), post({}, "http://a/y")) <= 0.5
    assert similarity(post(b""), post(b"{}")) < similarity(post(b"{}"), post(b"{}"))


def test_values_of_the_codec_are_compared_by_what_they_are():
    pairs = [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({3, 1, 2}, {2, 3, 1}),
        ({"x": {(1,): 1, (2,): 2}}, {"x": {(2,): 2, (1,): 1}}),
    ]
    for one, two in pairs:
        assert same_value(codec.encode(one), codec.encode(two))
    for one, two in [({1: "a"}, {1: "b"}), ((1,), [1]), (b"a", "a"), ({1: 1}, {True: 1}), ({1.0: 1}, {1: 1})]:
        assert not same_value(codec.encode(one), codec.encode(two))
    [found] = value_differences(
        codec.encode({"args": [{1: "a", 2: "b"}]}), codec.encode({"args": [{2: "c", 1: "a"}]}), "input"
    )
    assert found.where == "input.args[0]['2']"
    assert (found.recorded, found.asked) == ('"b"', '"c"')
    nan = codec.encode(float("nan"))
    assert same_value(nan, codec.encode(float("nan")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4) | st.just("$"), inner, max_size=4),
    max_leaves=20,
)


@thorough
@given(json_values, json_values)
def test_values_differ_somewhere_exactly_where_they_are_not_the_same(one, two):
    assert same_value(one, one)
    assert same_value(one, two) == same_value(two, one)
    assert bool(value_differences(one, two)) == (not same_value(one, two))
    assert 0 <= value_similarity(one, two) <= 1


def expected(value):
    """An independent notion of the same: JSON text, keys sorted."""
    return json.dumps(value, sort_keys=True)


@thorough
@given(json_values, st.randoms(use_true_random=False))
def test_shuffled_keys_are_the_same_and_one_changed_leaf_is_one_difference(value, rng):
    def shuffled(part):
        if isinstance(part, dict):
            items = [(key, shuffled(inner)) for key, inner in part.items()]
            rng.shuffle(items)
            return dict(items)
        return [shuffled(inner) for inner in part] if isinstance(part, list) else part

    wrapped, other = {"value": value, "leaf": 1}, {"leaf": 2, "value": shuffled(value)}
    one, two = post(wrapped), post(other)
    assert expected(value) == expected(other["value"])
    assert [where for where, *_ in told(one, two)] == ["body.leaf"]


@thorough
@given(
    st.binary(max_size=60),
    st.binary(max_size=60),
    st.sampled_from(
        ["application/json", "multipart/form-data; boundary=b", "application/x-www-form-urlencoded", "", "é;;="]
    ),
    st.text(max_size=30),
)
def test_any_bytes_can_be_compared(one, two, kind, path):
    recorded, asked = post(one, f"http://h/{urllib.parse.quote(path)}", kind), post(two, "http://h/", kind)
    assert same_request(recorded, recorded)
    assert bool(differences(recorded, asked)) == (not same_request(recorded, asked))
    assert 0 <= similarity(recorded, asked) <= 1
