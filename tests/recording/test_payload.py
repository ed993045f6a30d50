"""A crossing's payload: small, and it gives back the crossing that it was composed of."""

import dataclasses
import json
import random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.errors import UnreadableRecording
from otel_agent_replay.recording.contents import ContentReader, ContentWriter, MissingContent
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.exact import dumps, loads
from otel_agent_replay.recording.payload import StoredRequest, compose, ident, references, restore, unnamed
from otel_agent_replay.recording.values import Attempt, CrossingRecord, End, Kind, WireHead, WireRequest

thorough = settings(max_examples=60, deadline=None, derandomize=True, database=None)


class Sink:
    """Composes payloads as a sink does, and restores them from what was written."""

    def __init__(self):
        self.writer = ContentWriter()
        self.pieces: dict[str, bytes] = {}
        self.written: list[tuple[str, CrossingRecord]] = []
        self.refs: dict[str, tuple[bytes, object]] = {}

    def write(self, record: CrossingRecord) -> str:
        def refer(slot, body):
            name = ident(record.span_id, slot)
            if name in self.refs and self.refs[name][0] == body:
                return self.refs[name][1]
            ref, fresh = self.writer.refer(f"{record.position.lane} {record.position.key} {slot[-1]}", name, body)
            self.pieces.update(fresh)
            self.refs[name] = (body, unnamed(ref, name))
            return self.refs[name][1]

        text = dumps(compose(record, refer))
        self.written.append((text, record))
        return text

    def reader(self) -> ContentReader:
        reader = ContentReader(self.pieces)
        for text, record in self.written:
            for ref in references(loads(text), record.span_id):
                reader.add_rope(ref)
        return reader


def bare(record: CrossingRecord) -> CrossingRecord:
    emptied = {"input": None, "outcome": None, "attempts": [], "items": [], "after": None, "same": {}, "signals": []}
    return dataclasses.replace(record, wire=False, **emptied)


def crossing(**fields) -> CrossingRecord:
    return CrossingRecord(
        Position("main", "model:x", fields.pop("ordinal", 0)), Kind.MODEL, fields.pop("span_id", 5), 1, 9, **fields
    )


headers = st.lists(
    st.tuples(
        st.sampled_from(["content-type", "Content-Length", "x-request-id", "set-cookie"])
        | st.text(st.characters(max_codepoint=255), max_size=9),
        st.text(st.characters(max_codepoint=255), max_size=60),
    ),
    max_size=12,
)
bodies = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300).map(str.encode),
    st.integers(0, 2000).map(
        lambda n: json.dumps({"messages": [{"role": "user", "content": "word " * n}], "n": n}).encode()
    ),
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()), max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def attempts(draw):
    body = draw(bodies)
    sent = draw(headers) + draw(
        st.sampled_from([[], [("content-length", str(len(body)))], [("Content-Length", str(len(body) + 1))]])
    )
    chunks = draw(st.lists(bodies, max_size=5))
    return Attempt(
        WireRequest(draw(st.sampled_from(["POST", "GET", "put", ""])), draw(st.text(max_size=40)), sent, body),
        draw(
            st.none()
            | st.builds(
                WireHead,
                st.sampled_from([200, 404, 429, 599, 0]),
                st.text(max_size=9),
                headers,
                st.sampled_from(["HTTP/1.1", "HTTP/2"]),
            )
        ),
        chunks,
        draw(st.just([]) | st.lists(st.integers(0, 10**9), min_size=len(chunks), max_size=len(chunks))),
        draw(st.sampled_from(list(End))),
        draw(json_values),
        draw(st.just([]) | st.lists(st.none() | st.integers(0, 9999), min_size=len(chunks), max_size=len(chunks))),
        draw(st.none() | st.integers(0, 9999)),
    )


crossings = st.builds(
    crossing,
    wire=st.booleans(),
    input=json_values,
    outcome=json_values,
    items=st.lists(json_values, max_size=4),
    after=json_values,
    same=st.dictionaries(st.sampled_from(["moved", "known"]), st.lists(st.lists(st.integers(0, 300))), max_size=2),
    attempts=st.lists(attempts(), max_size=3),
    signals=st.lists(st.lists(st.integers(0, 9999), min_size=2, max_size=2), max_size=2),
    end=st.sampled_from(list(End)),
    seq=st.none() | st.integers(0, 99),
    attributes=st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


@thorough
@given(st.lists(crossings, min_size=1, max_size=4))
def test_a_crossing_comes_back_from_its_payload(records):
    sink = Sink()
    for number, record in enumerate(records):
        record.span_id = number + 1
        sink.write(dataclasses.replace(record, outcome=None))  # the frame that begins it
        sink.write(record)
    reader = sink.reader()
    for text, record in sink.written:
        back = restore(loads(text), bare(record), reader.resolve)
        assert back == record
        assert all(isinstance(a.request.body, bytes) for a in back.attempts)


@thorough
@given(
    json_values, st.sampled_from(["w", "i", "I", "o", "O", "y", "Y", "a", "k"]), st.sampled_from([*"mhbsrvgdntqexk"])
)
def test_a_payload_that_was_changed_gives_a_crossing_or_one_sentence(value, key, inner):
    for payload in (
        {key: value},
        {"a": [{"h": ["http://x"], inner: value}]},
        {"a": [{"s": 200, "d": "abc", inner: value}]},
    ):
        try:
            reader = ContentReader({})
            for ref in references(payload, 1):
                reader.add_rope(ref)
            restore(payload, crossing(), reader.resolve)
        except UnreadableRecording as error:
            assert str(error).endswith(".")


REQUEST_HEADERS = [
    ("host", "api.openai.com"), ("accept-encoding", "gzip, deflate"), ("connection", "keep-alive"),
    ("accept", "application/json"),
    ("content-type", "application/json"), ("user-agent", "OpenAI/Python 3.57.0"), ("x-stainless-lang", "python"),
    ("x-stainless-package-version", "3.57.0"), ("x-stainless-os", "Linux"), ("x-stainless-arch", "x64"),
    ("x-stainless-runtime", "CPython"), ("x-stainless-runtime-version", "3.11.7"),
    ("authorization", "[masked:1234567890abcdef]"),
    ("x-stainless-async", "false"), ("x-stainless-retry-count", "0"), ("x-stainless-read-timeout", "600"),
]  # fmt: skip


def chat(turns: int, size: int, *, long_headers: bool):
    """The crossings of a chat through an SDK; each turn adds `size` bytes to what is said."""
    rng = random.Random(3)
    words = [f"{rng.randrange(1 << 20):x}" for _ in range(2000)]
    text = lambda n: " ".join(rng.choices(words, k=n // 5))[:n]  # noqa: E731
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": text(size // 2)})
        body = orjson.dumps({"messages": messages, "model": "gpt-5"})
        sent = [*(REQUEST_HEADERS if long_headers else REQUEST_HEADERS[4:5]), ("content-length", str(len(body)))]
        record = crossing(ordinal=turn, span_id=1000 + turn, wire=True)
        record.attempts = [Attempt(WireRequest("POST", "https://api.openai.com/v1/chat/completions", sent, body))]
        yield record
        said = text(size // 2)
        messages.append({"role": "assistant", "content": said})
        answer = {
            "id": f"chatcmpl-{rng.getrandbits(96):024x}", "object": "chat.completion",
            "created": 1764444444 + turn, "model": "gpt-5",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": said, "refusal": None},
            "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 250 * turn, "completion_tokens": 125, "total_tokens": 250 * turn + 125},
        }  # fmt: skip
        data = orjson.dumps(answer)
        got = [("content-type", "application/json"), ("content-length", str(len(data)))]
        if long_headers:
            got += [
                ("date", f"Sun, 29 Nov 2026 18:{turn // 60:02d}:{turn % 60:02d} GMT"),
                ("x-request-id", f"req_{rng.getrandbits(128):032x}"),
            ]
        attempt = dataclasses.replace(
            record.attempts[0], head=WireHead(200, "OK", got), chunks=[data], offsets=[812_345], end=End.ENDED
        )
        yield dataclasses.replace(record, attempts=[attempt], end=End.RETURNED)


@pytest.mark.parametrize(("size", "long_headers", "most"), [(1000, False, 730), (1000, True, 850), (8000, True, 850)])
def test_what_stands_beside_the_content_of_a_chat_is_small_and_does_not_grow(size, long_headers, most):
    turns = 150
    sink = Sink()
    per_turn = [0] * turns
    for number, record in enumerate(chat(turns, size, long_headers=long_headers)):
        per_turn[number // 2] += len(sink.write(record))
    assert max(per_turn[2:]) <= most
    assert sum(per_turn[-20:]) <= 1.1 * sum(per_turn[1:21])
    stored = sum(map(len, sink.pieces.values()))
    assert stored <= 1.05 * turns * size + 3000
    reader = sink.reader()
    for text, record in sink.written[::17]:
        assert restore(loads(text), bare(record), reader.resolve) == record


def test_long_values_are_content_and_come_back():
    sink = Sink()
    state = {"history": ["line of text " * 40], "n": 2**70, "bad": "\ud800"}
    sizes = []
    for number in range(20):
        state["history"].append(f"turn {number} " * 30)
        record = crossing(
            span_id=number + 1,
            input=json.loads(json.dumps(state)),
            outcome={"said": "x" * 5000},
            after={"args": ["z" * 500]},
            items=["y" * 100] * 30,
        )
        sizes.append(len(sink.write(record)))
        assert restore(loads(sink.written[-1][0]), bare(record), sink.reader().resolve) == record
    assert max(sizes) < 800
    assert sum(map(len, sink.pieces.values())) < 40_000


def test_a_request_body_is_resolved_when_it_is_read():
    sink = Sink()
    *_, record = chat(5, 2000, long_headers=True)
    text = sink.write(record)
    asked = []
    reader = sink.reader()

    def resolve(ref):
        asked.append(ref)
        return reader.resolve(ref)

    back = restore(loads(text), bare(record), resolve)
    request = back.attempts[0].request
    before = len(asked)
    assert request.body == record.attempts[0].request.body
    assert len(asked) == before + 1
    assert isinstance(request, StoredRequest)
    assert request == record.attempts[0].request == request
    assert dataclasses.replace(request, url="http://y").body == request.body
    assert WireRequest("POST", "http://y", request.headers, request.body) != request
    request.body = b"changed"
    assert request.body == b"changed"


def test_a_lost_piece_is_told_when_it_is_asked_for():
    sink = Sink()
    *_, record = chat(3, 2000, long_headers=False)
    text = sink.write(record)
    reader = sink.reader()
    body = record.attempts[0].request.body
    digest = next(
        digest for digest, piece in sink.pieces.items() if piece in body and piece not in record.attempts[0].chunks[0]
    )
    del sink.pieces[digest]
    back = restore(loads(text), bare(record), reader.resolve)
    with pytest.raises(MissingContent, match=digest):
        _ = back.attempts[0].request.body


def test_defaults_are_left_out():
    record = crossing(
        wire=True,
        attempts=[Attempt(WireRequest("POST", "http://x/", [], b""), WireHead(200, "OK", []), [], [], End.ENDED)],
    )
    assert compose(record, lambda _slot, body: body.decode()) == {"w": 1, "a": [{"h": ["http://x/"], "s": 200}]}
    assert compose(crossing(), lambda _slot, body: body.decode()) == {}
