"""What a program gets from the real SDKs in a replay is what it got live, with every socket closed."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import httpx2
import openai
import pydantic
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCENARIOS: dict[str, Callable[..., Any]] = {}


def scenario(program: Callable[[str], Any]) -> Callable[[str], Any]:
    SCENARIOS[program.__name__] = program
    return program


class City(pydantic.BaseModel):
    city: str
    n: int


TOOLS: Any = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}]


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def plain(model: Any) -> Any:
    return model.model_dump(mode="json", warnings=False)


def oa(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key="sk-x", base_url=f"{url}/v1", **options)


def aoa(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="sk-x", base_url=f"{url}/v1", **options)


def chat(client: Any, text: str, **options: Any) -> Any:
    return client.chat.completions.create(model="gpt-x", messages=said(text), **options)


def message(client: Any, text: str, **options: Any) -> Any:
    return client.messages.create(model="claude-x", max_tokens=9, messages=said(text), **options)


def told(error: Any) -> list[Any]:
    cause = error.__cause__
    return [
        f"{type(error).__module__}.{type(error).__name__}",
        str(error),
        getattr(error, "status_code", None),
        getattr(error, "body", None),
        getattr(error, "request_id", None),
        None if cause is None else f"{type(cause).__module__}.{type(cause).__name__}: {cause}",
    ]


@scenario
def chat_plain(url: str) -> Any:
    with oa(url) as client:
        return plain(chat(client, "a"))


@scenario
def chat_same_prompt_twice(url: str) -> Any:
    with oa(url) as client:
        return [plain(chat(client, "twice")), plain(chat(client, "twice"))]


@scenario
def chat_gzipped(url: str) -> Any:
    with oa(url) as client:
        return plain(chat(client, "gzipped"))


@scenario
def chat_stream(url: str) -> Any:
    with oa(url) as client:
        return [plain(chunk) for chunk in chat(client, "b", stream=True, stream_options={"include_usage": True})]


@scenario
def chat_stream_gzipped(url: str) -> Any:
    with oa(url) as client:
        return [plain(chunk) for chunk in chat(client, "b gzipped", stream=True)]


@scenario
def chat_tools(url: str) -> Any:
    with oa(url) as client:
        return plain(chat(client, "c", tools=TOOLS))


@scenario
def chat_tools_stream(url: str) -> Any:
    with oa(url) as client:
        return [plain(chunk) for chunk in chat(client, "d", tools=TOOLS, stream=True)]


@scenario
def chat_raw_response(url: str) -> Any:
    with oa(url) as client:
        raw = client.chat.completions.with_raw_response.create(model="gpt-x", messages=said("e"))
        return [plain(raw.parse()), raw.headers["x-request-id"], raw.status_code, raw.retries_taken, raw.text]


@scenario
def chat_streaming_response(url: str) -> Any:
    with (
        oa(url) as client,
        client.chat.completions.with_streaming_response.create(model="gpt-x", messages=said("f")) as raw,
    ):
        return ["".join(raw.iter_text()), raw.headers["x-request-id"]]


@scenario
def chat_stream_helper(url: str) -> Any:
    with oa(url) as client, client.chat.completions.stream(model="gpt-x", messages=said("g")) as stream:
        return [event.type for event in stream] + [plain(stream.get_final_completion())]


@scenario
def chat_parse(url: str) -> Any:
    with oa(url) as client:
        return plain(client.chat.completions.parse(model="gpt-x", messages=said("h"), response_format=City))


@scenario
def text_completion(url: str) -> Any:
    with oa(url) as client:
        return plain(client.completions.create(model="gpt-i", prompt="once"))


@scenario
def responses_plain(url: str) -> Any:
    with oa(url) as client:
        return plain(client.responses.create(model="gpt-x", input="hi"))


@scenario
def responses_stream(url: str) -> Any:
    with oa(url) as client:
        return [plain(event) for event in client.responses.create(model="gpt-x", input="hi", stream=True)]


@scenario
def responses_stream_helper(url: str) -> Any:
    with oa(url) as client, client.responses.stream(model="gpt-x", input="hi") as stream:
        return [event.type for event in stream] + [plain(stream.get_final_response())]


@scenario
def embeddings_gzip(url: str) -> Any:
    with oa(url) as client:
        return plain(client.embeddings.create(model="e", input="z"))


@scenario
def file_multipart(url: str) -> Any:
    with oa(url) as client:
        return plain(client.files.create(file=("a.txt", b"\x00\xffbin"), purpose="assistants"))


@scenario
def retried_429_429_200(url: str) -> Any:
    with oa(url) as client:
        raw = client.chat.completions.with_raw_response.create(model="gpt-x", messages=said("flaky sync"))
        return [plain(raw.parse()), raw.retries_taken]


@scenario
def rate_limit_error(url: str) -> Any:
    with oa(url) as client, pytest.raises(openai.RateLimitError) as caught:
        chat(client.with_options(max_retries=1), "always429")
    return [*told(caught.value), caught.value.code, caught.value.response.headers["x-ratelimit-remaining"]]


@scenario
def bad_request_error(url: str) -> Any:
    with oa(url) as client, pytest.raises(openai.BadRequestError) as caught:
        chat(client, "bad400")
    return [*told(caught.value), caught.value.param]


@scenario
def bad_request_of_a_stream(url: str) -> Any:
    with oa(url) as client, pytest.raises(openai.BadRequestError) as caught:
        chat(client, "bad400 stream", stream=True)
    return told(caught.value)


@scenario
def stream_cut_midway(url: str) -> Any:
    got: list[Any] = []
    with oa(url) as client, pytest.raises(openai.APIConnectionError) as caught:
        got.extend(plain(chunk) for chunk in chat(client, "cutme", stream=True))
    return [*got, told(caught.value)]


@scenario
def stream_closed_early(url: str) -> Any:
    with oa(url) as client:
        stream = chat(client, "early", stream=True)
        first = plain(next(iter(stream)))
        stream.close()
        return first


@scenario
def connection_refused(url: str) -> Any:
    with oa("http://127.0.0.1:9", max_retries=1) as client, pytest.raises(openai.APIConnectionError) as caught:
        chat(client, "x")
    return told(caught.value)


@scenario
def legacy_httpx_client(url: str) -> Any:
    with httpx.Client() as http, oa(url, http_client=http) as client:
        streamed = [plain(chunk) for chunk in chat(client, "legacy", stream=True)]
        return [plain(chat(client, "legacy")), streamed, plain(client.embeddings.create(model="e", input="z"))]


@scenario
def legacy_httpx_error(url: str) -> Any:
    with httpx.Client() as http, oa(url, http_client=http) as client, pytest.raises(openai.RateLimitError) as caught:
        chat(client.with_options(max_retries=1), "always429 legacy")
    return told(caught.value)


@scenario
def custom_transport(url: str) -> Any:
    with httpx2.Client(transport=httpx2.HTTPTransport(retries=1)) as http, oa(url, http_client=http) as client:
        return plain(chat(client, "custom"))


@scenario
def mounted_transport(url: str) -> Any:
    with httpx2.Client(mounts={"http://": httpx2.HTTPTransport()}) as http, oa(url, http_client=http) as client:
        return plain(chat(client, "mounted"))


@scenario
def options_and_hooks(url: str) -> Any:
    seen: list[Any] = []
    hooks: Any = {"request": [lambda r: seen.append(r.method)], "response": [lambda r: seen.append(r.status_code)]}
    with httpx2.Client(event_hooks=hooks) as http, oa(url, http_client=http) as client:
        other = client.with_options(timeout=7, default_headers={"x-mine": "1"})
        return [plain(chat(other, "options", extra_headers={"x-call": "2"})), seen]


@scenario
def claude_plain(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        return plain(message(client, "a"))


@scenario
def claude_stream(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        return [plain(event) for event in message(client, "b", stream=True)]


@scenario
def claude_stream_helper(url: str) -> Any:
    with (
        anthropic.Anthropic(api_key="k", base_url=url) as client,
        client.messages.stream(model="claude-x", max_tokens=9, messages=said("c")) as stream,
    ):
        return [list(stream.text_stream), plain(stream.get_final_message())]


@scenario
def claude_raw_response(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        raw = client.messages.with_raw_response.create(model="claude-x", max_tokens=9, messages=said("d"))
        return [plain(raw.parse()), raw.headers["x-request-id"]]


@scenario
def claude_beta(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        return plain(client.beta.messages.create(model="claude-x", max_tokens=9, messages=said("beta")))


@scenario
def claude_retried(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        return plain(message(client, "flaky claude"))


@scenario
def claude_error(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url) as client, pytest.raises(anthropic.BadRequestError) as caught:
        message(client, "bad400 claude")
    return told(caught.value)


@scenario
def claude_stream_cut_midway(url: str) -> Any:
    got: list[Any] = []
    with anthropic.Anthropic(api_key="k", base_url=url) as client, pytest.raises(httpx2.RemoteProtocolError) as caught:
        got.extend(plain(event) for event in message(client, "cutme", stream=True))
    return [*got, type(caught.value).__module__, str(caught.value)]


@scenario
async def async_chat_plain(url: str) -> Any:
    async with aoa(url) as client:
        return plain(await chat(client, "aa"))


@scenario
async def async_chat_stream(url: str) -> Any:
    async with aoa(url) as client:
        return [plain(chunk) async for chunk in await chat(client, "ab", stream=True)]


@scenario
async def async_chat_stream_gzipped(url: str) -> Any:
    async with aoa(url) as client:
        return [plain(chunk) async for chunk in await chat(client, "ab gzipped", stream=True)]


@scenario
async def async_stream_closed_early(url: str) -> Any:
    async with aoa(url) as client:
        stream = await chat(client, "a early", stream=True)
        first = await anext(aiter(stream))
        await stream.close()
        return plain(first)


@scenario
async def async_stream_cut_midway(url: str) -> Any:
    got: list[Any] = []
    async with aoa(url) as client:
        with pytest.raises(openai.APIConnectionError) as caught:
            async for chunk in await chat(client, "a cutme", stream=True):
                got.append(plain(chunk))
    return [*got, told(caught.value)]


@scenario
async def async_gather_of_five(url: str) -> Any:
    async with aoa(url) as client:
        return [plain(one) for one in await asyncio.gather(*[chat(client, f"g{i}") for i in range(5)])]


@scenario
async def async_stream_helper(url: str) -> Any:
    async with aoa(url) as client, client.chat.completions.stream(model="gpt-x", messages=said("ag")) as stream:
        return [event.type async for event in stream] + [plain(await stream.get_final_completion())]


@scenario
async def async_retried(url: str) -> Any:
    async with aoa(url) as client:
        return plain(await chat(client, "flaky async"))


@scenario
async def async_responses_stream(url: str) -> Any:
    async with aoa(url) as client:
        return [plain(event) async for event in await client.responses.create(model="gpt-x", input="a", stream=True)]


@scenario
async def async_legacy_httpx_client(url: str) -> Any:
    async with httpx.AsyncClient() as http, aoa(url, http_client=http) as client:
        streamed = [plain(chunk) async for chunk in await chat(client, "a legacy", stream=True)]
        return [plain(await chat(client, "a legacy")), streamed]


@scenario
async def async_connection_refused(url: str) -> Any:
    async with aoa("http://127.0.0.1:9", max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError) as caught:
            await chat(client, "ax")
    return told(caught.value)


@scenario
async def async_claude_plain(url: str) -> Any:
    async with anthropic.AsyncAnthropic(api_key="k", base_url=url) as client:
        return plain(await message(client, "aa"))


@scenario
async def async_claude_stream_helper(url: str) -> Any:
    async with (
        anthropic.AsyncAnthropic(api_key="k", base_url=url) as client,
        client.messages.stream(model="claude-x", max_tokens=9, messages=said("ab")) as stream,
    ):
        return [[text async for text in stream.text_stream], plain(await stream.get_final_message())]


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_replay_gives_what_the_recording_got(name: str, server: Any, tape: Any) -> None:
    program = SCENARIOS[name]

    async def run() -> Any:
        if inspect.iscoroutinefunction(program):
            return await asyncio.wait_for(program(server.url), 20)
        return program(server.url)

    bare = await run()
    with tape.record() as recording:
        live = await run()
    before = len(server.requests)
    with tape.replay() as answering:
        again = await run()
    assert again == live
    assert shape(live) == shape(bare), "recording changed what the program sees"
    assert len(server.requests) == before
    assert answering.waiting == []
    assert all(exchange.ends == 1 for crossing in recording.crossings for exchange in crossing.exchanges)
    assert all(crossing.closed for crossing in recording.crossings)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_same_with_the_sessions_of_the_product(name: str, server: Any, real_tape: Any) -> None:
    program = SCENARIOS[name]

    async def run() -> Any:
        if inspect.iscoroutinefunction(program):
            return await asyncio.wait_for(program(server.url), 20)
        return program(server.url)

    with real_tape.record():
        live = await run()
    before = len(server.requests)
    with real_tape.replay():
        assert await run() == live
    assert len(server.requests) == before


def shape(value: Any) -> Any:
    """A result without the numbers that the server makes new for each answer."""
    import re

    return re.sub(r"\d{7}", "#", repr(value))
