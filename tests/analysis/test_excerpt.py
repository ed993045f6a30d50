"""What a crossing asked and got, in words: the forms of OpenAI and Anthropic, and whatever else comes."""

from __future__ import annotations

import json

import pytest

from otel_agent_replay.analysis import excerpt


def sse(*events: object) -> bytes:
    return (
        b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "user: hi"),
        (
            {
                "messages": [
                    {"role": "system", "content": "be"},
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
                ]
            },
            "(+1) user: a [image_url]",
        ),
        ({"input": "embed me"}, "embed me"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}]}, "user: q"),
        ({"input": [{"type": "function_call_output", "output": "42"}]}, "function_call_output: 42"),
        ({"input": ["a", "b"]}, "a b"),
        ({"other": 1}, '{"other": 1}'),
        ([1, 2], "[1, 2]"),
    ],
)
def test_the_question(body, text):
    assert excerpt.question(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"plain", b"\xff\xfe", b"[", b'{"messages": [1]}', b'{"messages": {"a": 1}}'])
def test_a_body_of_any_form_is_shown_somehow(body):
    assert isinstance(excerpt.question(body), str)
    assert isinstance(excerpt.answer(body), str)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"message": {"content": "yes"}}]}, "yes"),
        (
            {
                "choices": [
                    {"message": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]}}
                ]
            },
            'f({"a":1})',
        ),
        (
            {"content": [{"type": "text", "text": "yes"}, {"type": "tool_use", "name": "f", "input": {"a": 1}}]},
            'yes f({"a":1})',
        ),
        (
            {
                "output": [
                    {"type": "message", "content": [{"type": "output_text", "text": "yes"}]},
                    {"type": "function_call", "name": "f", "arguments": "{}"},
                ]
            },
            "yes f({})",
        ),
        ({"error": {"message": "overloaded"}}, "overloaded"),
        ({"data": []}, '{"data": []}'),
    ],
)
def test_the_answer(body, text):
    assert excerpt.answer(json.dumps(body).encode()) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            sse(
                {"choices": [{"delta": {"content": "a"}}]},
                {"choices": [{"delta": {"content": "b"}}]},
                {"choices": [], "usage": {}},
            ),
            "ab",
        ),
        (
            sse(
                {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}}]},
                {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
            ),
            "f: {}",
        ),
        (
            sse(
                {"type": "message_start"},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
                {"delta": {"partial_json": "{"}},
            ),
            "a{",
        ),
        (
            sse(
                {"type": "response.output_text.delta", "delta": "a"},
                {"type": "response.output_text.delta", "delta": "b"},
            ),
            "ab",
        ),
        (sse({"type": "ping"}), "1 events"),
    ],
)
def test_the_answer_of_a_stream(body, text):
    assert excerpt.answer(body) == text
