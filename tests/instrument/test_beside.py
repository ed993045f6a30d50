"""Beside other instrumentation: spans that the SDKs make themselves, and wrappers that others put around them."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
import wrapt
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SAID: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def spans() -> Any:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def told(exporter: InMemorySpanExporter) -> Any:
    finished = exporter.get_finished_spans()
    exporter.clear()
    return [(span.name, span.status.status_code, span.attributes["http.response.status_code"]) for span in finished]


@pytest.mark.parametrize("how", ["plain", "stream", "left"])
def test_the_spans_of_anthropic_are_as_they_were(server: Any, tape: Any, spans: Any, how: str) -> None:
    provider, exporter = spans

    def program() -> Any:
        options: Any = {"tracer_provider": provider}
        with anthropic.Anthropic(api_key="k", base_url=server.url, open_telemetry=options) as client:
            if how == "plain":
                client.messages.create(model="c", max_tokens=5, messages=SAID)
            else:
                stream = client.messages.create(model="c", max_tokens=5, messages=SAID, stream=True)
                for _ in stream:
                    if how == "left":
                        break
                stream.close()
        return told(exporter)

    bare = program()
    assert len(bare) == 1
    with tape.record() as session:
        assert program() == bare
    assert len(session.crossings) == 1
    assert [exchange.ends for exchange in session.crossings[0].exchanges] == [1]
    with tape.replay():
        assert program() == bare


async def test_the_spans_of_async_anthropic_are_as_they_were(server: Any, tape: Any, spans: Any) -> None:
    provider, exporter = spans

    async def program() -> Any:
        options: Any = {"tracer_provider": provider}
        async with (
            anthropic.AsyncAnthropic(api_key="k", base_url=server.url, open_telemetry=options) as client,
            client.messages.stream(model="c", max_tokens=5, messages=SAID) as stream,
        ):
            await stream.get_final_message()
        return told(exporter)

    bare = await program()
    with tape.record() as session:
        assert await program() == bare
    assert len(session.crossings) == 1
    with tape.replay():
        assert await program() == bare


def test_a_middleware_of_anthropic_runs_in_a_replay_too(server: Any, tape: Any) -> None:
    seen: list[int] = []

    def middleware(request: Any, call_next: Any) -> Any:
        response = call_next(request)
        seen.append(response.http_response.status_code)
        return response

    def program() -> Any:
        with anthropic.Anthropic(api_key="k", base_url=server.url, middleware=[middleware]) as client:
            return client.messages.create(
                model="c", max_tokens=5, messages=[{"role": "user", "content": "flaky middleware"}]
            ).model_dump()

    with tape.record() as session:
        live = program()
    assert [len(record.attempts) for record in session.records] == [3]
    with tape.replay():
        assert program() == live
    assert seen == [429, 429, 200] * 2


def test_a_wrapper_around_the_same_choke_point(server: Any, tape: Any) -> None:
    """Others patch `request` too, as Logfire does, and see one call in a recording and in a replay."""
    seen: list[Any] = []

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        answer = wrapped(*args, **kwargs)
        seen.append(answer.id)
        return answer

    def program() -> Any:
        with openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
            client.request = wrapt.FunctionWrapper(client.request, wrapper)  # type: ignore[method-assign]
            return client.chat.completions.create(model="m", messages=SAID)

    with tape.record() as session:
        live = program()
    assert len(session.crossings) == 1
    with tape.replay():
        assert program() == live
    assert seen == [live.id, live.id]
