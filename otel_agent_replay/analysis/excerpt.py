"""What a crossing asked and got, in words that fit a line of a table.

For model calls the forms of OpenAI (chat, responses, embeddings) and Anthropic (messages) are known, plain and
streamed; anything else is shown as it stands. Nothing here decides anything: it is for people to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from otel_agent_replay.recording import exact
from otel_agent_replay.recording.contents import MissingContent
from otel_agent_replay.recording.values import End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.values import Attempt, CrossingRecord, Json

_DATA = b"data:"


def asked(crossing: CrossingRecord) -> str:
    """The input of a crossing."""
    if crossing.attempts:
        request = crossing.attempts[-1].request
        try:
            body = request.body
        except MissingContent as missing:
            return f"{request.method} {request.url} ({missing})"
        return question(body) or f"{request.method} {request.url}"
    return plain(crossing.input)


def answered(crossing: CrossingRecord) -> str:
    """The outcome of a crossing."""
    if crossing.end is End.UNFINISHED:
        return ""
    if crossing.end is End.RAISED or not crossing.attempts:
        return plain(crossing.outcome) if not crossing.items else " ".join(map(plain, crossing.items))
    last = crossing.attempts[-1]
    if last.head is None:
        return plain(last.error)
    return answer(b"".join(last.chunks))


def statuses(crossing: CrossingRecord) -> str:
    """HTTP status of each attempt, and how many chunks the last one came in."""
    parts = [str(attempt.head.status) if attempt.head is not None else "none" for attempt in crossing.attempts]
    if crossing.attempts and (chunks := len(crossing.attempts[-1].chunks)) > 1:
        parts[-1] += f" in {chunks} chunks"
    return ", ".join(parts)


def plain(value: Json) -> str:
    """A recorded value; an exception as its type and message."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("$") == "error":
        kind = str(value.get("c", "")).rpartition(":")[2]
        return f"{kind}: {plain(value.get('m'))}"
    return exact.dumps(value).strip()


def question(body: bytes) -> str:
    """What a model was asked: the last message, and how many came before it."""
    found = _loads(body)
    if not isinstance(found, dict):
        return _readable(body)
    messages = found.get("messages", found.get("input"))
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list) or not messages:
        return _readable(body)
    last = messages[-1]
    if not isinstance(last, dict):
        return _text(messages)
    before = f"(+{len(messages) - 1}) " if len(messages) > 1 else ""
    return f"{before}{last.get('role', last.get('type', ''))}: {_text(last.get('content', last.get('output')))}"


def answer(body: bytes) -> str:
    """What a model answered: its text and the tools that it calls."""
    found = _loads(body)
    if isinstance(found, dict):
        return _said(found) or _readable(body)
    events = list(_events(body))
    if events:
        return "".join(map(_delta, events)) or f"{len(events)} events"
    return _readable(body)


def _said(reply: dict[str, Any]) -> str:
    parts: list[str] = []
    for choice in _dicts(reply.get("choices")):
        message = choice.get("message")
        if isinstance(message, dict):
            parts.append(_text(message.get("content")))
            parts += [_called(call.get("function")) for call in _dicts(message.get("tool_calls"))]
    for block in [*_dicts(reply.get("content")), *_dicts(reply.get("output"))]:
        if block.get("type") in ("tool_use", "function_call"):
            parts.append(_called({"name": block.get("name"), "arguments": block.get("input", block.get("arguments"))}))
        else:
            parts.append(_text(block.get("text", block.get("content"))))
    error = reply.get("error")
    if isinstance(error, dict):
        parts.append(str(error.get("message", "")))
    return " ".join(part for part in parts if part)


def _delta(event: dict[str, Any]) -> str:
    """The piece of text in one event of a stream."""
    for choice in _dicts(event.get("choices")):
        delta = choice.get("delta")
        if isinstance(delta, dict):
            called = "".join(_arguments(call.get("function")) for call in _dicts(delta.get("tool_calls")))
            return _text(delta.get("content")) + called
    delta = event.get("delta")
    if isinstance(delta, dict):
        return str(delta.get("text") or delta.get("partial_json") or "")
    return delta if isinstance(delta, str) else ""


def _called(function: object) -> str:
    if not isinstance(function, dict):
        return ""
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else plain(arguments)
    return f"{function.get('name')}({text})"


def _arguments(function: object) -> str:
    if not isinstance(function, dict):
        return ""
    name = function.get("name")
    return (f"{name}: " if name else "") + str(function.get("arguments") or "")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else plain(content)  # type: ignore[arg-type]  # it is JSON
    parts = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, dict):
            parts.append(f"[{part.get('type', 'part')}]")
        else:
            parts.append(str(part))
    return " ".join(parts)


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        if line.startswith(_DATA) and isinstance(found := _loads(line[len(_DATA) :].strip()), dict):
            yield found


def _dicts(found: object) -> list[dict[str, Any]]:
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _loads(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except ValueError:
        return None


def _readable(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes"


def sizes(attempt: Attempt) -> tuple[int, int]:
    """Chunks and bytes of a response."""
    return len(attempt.chunks), sum(map(len, attempt.chunks))
