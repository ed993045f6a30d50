"""Whatever stands around a credential, and however it is cut, it is found; and nothing else is changed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording import canonical
from otel_agent_replay.recording.alike import end_alike, start_alike
from otel_agent_replay.recording.mask_rules import Rules
from otel_agent_replay.recording.masking import Masker
from otel_agent_replay.recording.variables import TOKEN, Bindings

SECRET = "sk-proj-Zq7Wx9Ke2Rt5Yu8Io1Pa4Sd"
ALTERED = "sk-proj-0000000000000000000000z"

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
AROUND = st.one_of(TEXT, st.sampled_from(['"', "\\", "\n", "é", "😀", "},{", '\\"', "data: ", "{", "[1", ": "]))
LEAF = st.one_of(TEXT, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none())


@st.composite
def planted(draw: st.DrawFn) -> tuple[Any, int]:
    """A document with the secret in it, as a text, as a key, or inside JSON inside texts; and how often."""
    document: Any = draw(
        st.recursive(
            LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=5
        )
    )
    times = draw(st.integers(1, 3))
    for _ in range(times):
        where = draw(st.sampled_from(["text", "key", "nested", "list"]))
        said = f"{draw(AROUND)} {SECRET} {draw(AROUND)}"
        if where == "nested":
            ascii_only = draw(st.booleans())
            said = json.dumps({"k": [said]}, ensure_ascii=ascii_only)
            if draw(st.booleans()):
                said = json.dumps([{"deeper": said}], ensure_ascii=ascii_only)
        document = (
            {said: document} if where == "key" else [said, document] if where == "list" else {"a": document, "t": said}
        )
    return document, times


def texts(value: Any) -> str:
    """All that a document says, its texts read as documents too where they are such."""
    if isinstance(value, dict):
        return "\n".join(texts(part) for item in value.items() for part in item)
    if isinstance(value, list):
        return "\n".join(map(texts, value))
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return texts(json.loads(value))
        except ValueError:
            return value
    return str(value)


@settings(deadline=None)
@given(planted(), st.booleans(), st.sampled_from([None, 2]), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_documents(found: tuple[Any, int], ascii_only: bool, indent: int | None, sizes: list[int]) -> None:
    document, times = found
    masker = Masker(Rules(), b"k" * 32)
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    made = masker.body(body)
    said = json.loads(made)
    assert SECRET not in texts(said)
    assert SECRET.encode() not in made
    token = masker.token(SECRET, "x")
    assert texts(said).count(token) == times
    assert json.loads(body) == json.loads(made.replace(token.encode(), SECRET.encode()))
    assert masker.body(made) == made

    chunks, at, turn = [], 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        chunks.append(body[at : at + size])
        at, turn = at + size, turn + 1
    cut = masker.chunks(chunks)
    assert b"".join(cut) == made
    assert len(cut) == len(chunks)

    assert masker.value(document) == said
    other = json.loads(json.dumps(document).replace(SECRET, ALTERED))
    assert canonical.same_value(said, other, Bindings())
    assert canonical.same_value(said, said, Bindings())


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_bytes_that_hold_nothing_stay(before: bytes, after: bytes) -> None:
    masker = Masker(Rules(), b"k" * 32)
    made = masker.body(before + b" " + SECRET.encode() + b" " + after)
    assert SECRET.encode() not in made
    assert TOKEN.search(made.decode("latin-1"))
    assert made.startswith(before + b" ")


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=20), st.integers(1, 3000))
def test_what_two_bodies_share(start: bytes, one: bytes, other: bytes, times: int) -> None:
    a, b = start * times + one, start * times + other
    most = min(len(a), len(b))
    same = start_alike(a, 0, b, 0, most)
    assert a[:same] == b[:same]
    assert same == most or a[same] != b[same]
    a, b = one + start * times, other + start * times
    most = min(len(a), len(b))
    same = end_alike(a, len(a), b, len(b), most)
    assert same == 0 or a[-same:] == b[-same:]
    assert same == most or a[-same - 1] != b[-same - 1]
