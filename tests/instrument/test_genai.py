"""Semantic attributes: what is set on a model call, and what makes its serving configuration."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from otel_agent_replay.instrument import genai
from otel_agent_replay.recording.values import Kind, WireHead
from tests.instrument.tapes import written

JSON = WireHead(200, "OK", [("Content-Type", "application/json")])
EVENTS = WireHead(200, "OK", [("content-type", "text/event-stream; charset=utf-8")])
SAID: Any = [{"role": "user", "content": "secret prompt"}]

CHAT_RESPONSE = {
    "http.response.status_code": 200,
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.response.model": "gpt-x-0613",
    "gen_ai.usage.input_tokens": 11,
    "gen_ai.usage.output_tokens": 7,
    "gen_ai.usage.cache_read.input_tokens": 3,
    "gen_ai.usage.reasoning.output_tokens": 2,
}


def one(tape: Any, program: Any) -> Any:
    with tape.record() as session:
        program()
    (record,) = session.records
    return record


def given(record: Any) -> dict[str, Any]:
    """Its attributes without those that are new each time, and without the hash, which is the same all over."""
    new = ("gen_ai.response.id", "server.port", "agent_replay.serving")
    if record.kind is Kind.MODEL or record.kind is Kind.EMBEDDING:
        assert record.attributes["agent_replay.serving"] == genai.serving_hash(record.attributes)
    assert all(isinstance(record.attributes[name], (str, int)) for name in new if name in record.attributes)
    return {name: value for name, value in record.attributes.items() if name not in new}


@pytest.fixture
def oa(server: Any) -> Any:
    with openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
        yield client


@pytest.fixture
def claude(server: Any) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=server.url) as client:
        yield client


def test_a_chat(oa: Any, tape: Any) -> None:
    record = one(
        tape,
        lambda: oa.chat.completions.create(
            model="gpt-x",
            messages=SAID,
            temperature=0,
            top_p=0.5,
            max_completion_tokens=9,
            seed=7,
            n=2,
            stop=["END"],
            frequency_penalty=1,
            reasoning_effort="low",
            response_format={"type": "json_object"},
            service_tier="flex",
            logit_bias={"50256": -100},
            extra_body={"top_k": 4, "unheard_of": {"x": 1}},
        ),
    )
    assert record.name == "chat gpt-x"
    assert record.kind is Kind.MODEL
    assert record.position.key == "model:openai.chat"
    assert given(record) == {
        **CHAT_RESPONSE,
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "openai.response.service_tier": "default",
        "openai.response.system_fingerprint": "fp_1",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.top_k": 4,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.frequency_penalty": 1.0,
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.output.type": "json",
        "openai.request.service_tier": "flex",
        "openai.request.logit_bias": '{"50256":-100}',
        "openai.api.type": "chat_completions",
        "server.address": "127.0.0.1",
    }
    assert isinstance(record.attributes["gen_ai.request.temperature"], float)
    assert "secret" not in repr(record.attributes)


def test_a_streamed_chat(oa: Any, tape: Any) -> None:
    def read() -> None:
        options = {"include_usage": True}
        for _ in oa.chat.completions.create(model="m", messages=SAID, stream=True, stream_options=options):
            pass

    attributes = given(one(tape, read))
    assert {name: attributes[name] for name in CHAT_RESPONSE} == CHAT_RESPONSE
    assert attributes["gen_ai.request.stream"] is True


def test_a_chat_left_early_tells_what_came(oa: Any, tape: Any) -> None:
    def read() -> None:
        stream = oa.chat.completions.create(model="m", messages=SAID, stream=True)
        next(stream)
        stream.close()

    attributes = given(one(tape, read))
    assert attributes["gen_ai.response.model"] == "gpt-x-0613"
    assert "gen_ai.response.finish_reasons" not in attributes


def test_retries_leave_the_attributes_of_the_last(oa: Any, tape: Any) -> None:
    record = one(tape, lambda: oa.chat.completions.create(model="m", messages=[{"role": "user", "content": "flaky g"}]))
    assert [attempt.head.status for attempt in record.attempts] == [429, 429, 200]
    assert record.attributes["http.response.status_code"] == 200
    assert record.attributes["gen_ai.usage.output_tokens"] == 7


def test_an_error_has_a_status_and_no_usage(oa: Any, tape: Any) -> None:
    def fail() -> None:
        with pytest.raises(openai.BadRequestError):
            oa.chat.completions.create(model="m", messages=[{"role": "user", "content": "bad400"}])

    attributes = given(one(tape, fail))
    assert attributes["http.response.status_code"] == 400
    assert not [name for name in attributes if name.startswith(("gen_ai.usage", "gen_ai.response"))]


@pytest.mark.parametrize("stream", [False, True])
def test_responses(oa: Any, tape: Any, stream: bool) -> None:
    def ask() -> None:
        got = oa.responses.create(
            model="m",
            input="secret",
            stream=stream,
            reasoning={"effort": "high"},
            max_output_tokens=5,
            previous_response_id="resp_0",
            text={"verbosity": "low", "format": {"type": "text"}},
            conversation="conv_1",
        )
        list(got) if stream else got

    record = one(tape, ask)
    assert record.position.key == "model:openai.responses"
    attributes = given(record)
    assert attributes.pop("gen_ai.request.stream") is stream
    assert attributes == {
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.reasoning.level": "high",
        "gen_ai.request.previous_response.id": "resp_0",
        "gen_ai.conversation.id": "conv_1",
        "gen_ai.output.type": "text",
        "openai.request.verbosity": "low",
        "openai.api.type": "responses",
        "gen_ai.response.model": "gpt-x-0613",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 21,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_write.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 5,
        "server.address": "127.0.0.1",
    }


def test_embeddings(oa: Any, tape: Any) -> None:
    record = one(tape, lambda: oa.embeddings.create(model="e", input="secret", dimensions=4))
    assert record.kind is Kind.EMBEDDING
    assert record.position.key == "embedding:openai.embeddings"
    assert record.name == "embeddings e"
    attributes = given(record)
    assert attributes.pop("gen_ai.response.model").startswith("embed-")
    assert attributes == {
        "http.response.status_code": 200,
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "e",
        "gen_ai.request.encoding_formats": ["base64"],
        "gen_ai.embeddings.dimension.count": 4,
        "gen_ai.usage.input_tokens": 6,
        "server.address": "127.0.0.1",
    }


def test_text_completions(oa: Any, tape: Any) -> None:
    record = one(tape, lambda: oa.completions.create(model="gpt-i", prompt="p", best_of=2))
    assert record.position.key == "model:openai.completions"
    assert record.name == "text_completion gpt-i"
    attributes = given(record)
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes["gen_ai.usage.output_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_counts_cached_tokens_in(claude: Any, tape: Any, stream: bool) -> None:
    def ask() -> None:
        got = claude.messages.create(
            model="claude-x",
            max_tokens=2048,
            messages=SAID,
            stream=stream,
            extra_body={"top_k": 3},
            stop_sequences=["X"],
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        list(got) if stream else got

    record = one(tape, ask)
    assert record.position.key == "model:anthropic.messages"
    assert record.name == "chat claude-x"
    attributes = given(record)
    assert attributes.pop("gen_ai.request.stream", False) is stream
    assert attributes == {
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.request.max_tokens": 2048,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.stop_sequences": ["X"],
        "anthropic.thinking.type": "enabled",
        "anthropic.thinking.budget_tokens": 1024,
        "gen_ai.response.model": "claude-x-1",
        "gen_ai.response.finish_reasons": ["end_turn"],
        "gen_ai.usage.input_tokens": 135,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.usage.cache_write.input_tokens": 100,
        "gen_ai.usage.output_tokens": 15 if stream else 2,
        "server.address": "127.0.0.1",
    }


def test_the_serving_configuration_is_who_answers_and_how_it_samples(oa: Any, claude: Any, tape: Any) -> None:
    def ask(**options: Any) -> Any:
        with tape.record() as session:
            oa.chat.completions.create(model="m", messages=SAID, **options)
        call = session.crossings[-1].call
        return genai.serving(call.attributes)

    plain = ask(temperature=0)
    assert plain == {"gen_ai.provider.name": "openai", "gen_ai.request.model": "m", "gen_ai.request.temperature": 0.0}
    assert ask(temperature=0.0) == plain
    assert ask(temperature=0, response_format={"type": "text"}) == plain
    for change in ({"temperature": 0.1}, {"seed": 1}, {"reasoning_effort": "low"}, {"verbosity": "low"}, {"top_p": 1}):
        assert ask(**{"temperature": 0, **change}) != plain
    assert ask(temperature=0, extra_body={"model": "other"})["gen_ai.request.model"] == "other"


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.openai.com", "openai"),
        ("api.deepseek.com", "deepseek"),
        ("api.x.ai", "x_ai"),
        ("api.max.ai", "openai"),
        ("generativelanguage.googleapis.com", "gcp.gemini"),
        ("me.openai.azure.com", "azure.ai.openai"),
    ],
)
def test_who_answers_is_told_by_the_host(tape: Any, host: str, provider: str) -> None:
    reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200, json=reply)))
    client = openai.OpenAI(api_key="k", base_url=f"https://{host}/v1", http_client=http)
    record = one(tape, lambda: client.chat.completions.create(model="m", messages=SAID))
    assert record.attributes["gen_ai.provider.name"] == provider
    assert record.attributes["server.port"] == 443
    http.close()


def test_azure_is_known_by_its_client(tape: Any) -> None:
    reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200, json=reply)))
    client = openai.AzureOpenAI(api_key="k", azure_endpoint="https://a.test", api_version="1", http_client=http)
    record = one(tape, lambda: client.chat.completions.create(model="m", messages=SAID))
    assert record.position.key == "model:openai.chat"
    assert record.attributes["gen_ai.provider.name"] == "azure.ai.openai"
    assert ("api-key", "k") not in written(record).attempts[0].request.headers
    http.close()


def test_other_endpoints_are_http_calls(oa: Any, tape: Any) -> None:
    record = one(tape, lambda: oa.files.create(file=("a.txt", b"x"), purpose="assistants"))
    assert record.position.key == "http:POST 127.0.0.1"


@pytest.mark.parametrize("reading", [genai.chat, genai.responses, genai.embeddings, genai.messages])
@pytest.mark.parametrize("head", [JSON, EVENTS])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'{"choices": 3, "usage": 4, "id": 5, "output": {}}',
        b'{"choices": [1, {"finish_reason": 2}], "usage": {"prompt_tokens": "x", "prompt_tokens_details": 1}}',
        b'data: {"choices": [null], "usage": []}\n\ndata: {"type": "message_start", "message": 1}\n\ndata: {',
        b'data: {"type": "message_delta", "delta": [], "usage": {"output_tokens": null}}\n\n',
        b"\xff\xfe",
    ],
)
def test_a_body_of_another_shape_tells_nothing(reading: Any, head: Any, body: bytes) -> None:
    assert not [name for name in reading(head, body) if name not in ("gen_ai.usage.input_tokens",)]


def test_a_stream_that_talks_about_finish_reasons_is_not_misread() -> None:
    said = json.dumps(
        {"choices": [{"index": 0, "delta": {"content": '"finish_reason": "bad"'}, "finish_reason": None}]}
    )
    last = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = f"data: {said}\r\n\r\ndata: {last}\r\n\r\ndata: [DONE]\r\n\r\n".encode()
    assert genai.chat(EVENTS, body) == {"gen_ai.response.finish_reasons": ["stop"]}


def test_an_integer_beyond_64_bits_is_told_in_digits() -> None:
    assert genai.request(genai.OPENAI, {"seed": 2**70}) == {"gen_ai.request.seed": str(2**70)}


@pytest.mark.parametrize(
    ("reading", "head", "body", "tokens"),
    [
        (
            genai.chat,
            JSON,
            b'{"id":"c","model":"m","x":"%s","usage":{"prompt_tokens":3,"completion_tokens":4}}',
            (3, 4),
        ),
        (genai.responses, JSON, b'{"model":"m","usage":{"input_tokens":3,"output_tokens":4},"output":"%s"}', (3, 4)),
        (
            genai.responses,
            EVENTS,
            b'data: {"type":"response.completed","response":{"model":"m","output":"%s",'
            b'"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":1},"output_tokens":4}}}\n\n',
            (3, 4),
        ),
        (genai.messages, JSON, b'{"model":"m","content":"%s","usage":{"input_tokens":3,"output_tokens":4}}', (3, 4)),
    ],
)
def test_a_large_body_is_skimmed(reading: Any, head: Any, body: bytes, tokens: tuple[int, int]) -> None:
    found = reading(head, body % (b'\\"usage\\": {' + b"A" * genai.LARGE))
    assert found["gen_ai.response.model"] == "m"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == tokens
