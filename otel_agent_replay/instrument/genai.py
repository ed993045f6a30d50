"""Semantic-convention attributes of model and HTTP calls, read from request and response bodies.

Pure and cheap: a request gives its scalars without being serialised; a response is parsed once, and of a
stream only the events that matter. What has an unexpected shape is left out. The dotted names stand here
and nowhere else. Source: the OpenTelemetry GenAI conventions (`docs/gen-ai/client-inference.md`), and the
HTTP conventions 1.44.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.values import Attribute, WireHead

Attributes: TypeAlias = "dict[str, Attribute]"
Reading: TypeAlias = "Callable[[WireHead, bytes], Attributes]"
"""Reads a whole response body, content coding undone, or as much of it as came."""
Rules: TypeAlias = "Mapping[str, str | Rules]"
"""Where a request body holds what: field name to attribute name, or to the rules for what is inside."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
_TEMPERATURE = "gen_ai.request.temperature"
_TOP_P = "gen_ai.request.top_p"
_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
_STREAM = "gen_ai.request.stream"
_STOP = "gen_ai.request.stop_sequences"
_ENCODINGS = "gen_ai.request.encoding_formats"
_REASONING = "gen_ai.request.reasoning.level"
_PREVIOUS = "gen_ai.request.previous_response.id"
_CONVERSATION = "gen_ai.conversation.id"
_OUTPUT_TYPE = "gen_ai.output.type"
_LOGIT_BIAS = "openai.request.logit_bias"
API_TYPE = "openai.api.type"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_METHOD = "http.request.method"
HTTP_STATUS = "http.response.status_code"
URL_SCHEME = "url.scheme"

_SAMPLING: Rules = {
    "model": REQUEST_MODEL,
    "temperature": _TEMPERATURE,
    "top_p": _TOP_P,
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "stream": _STREAM,
}

OPENAI: Rules = {
    **_SAMPLING,
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": _FREQUENCY_PENALTY,
    "presence_penalty": _PRESENCE_PENALTY,
    "n": "gen_ai.request.choice.count",
    "best_of": "openai.request.best_of",
    "stop": _STOP,
    "reasoning_effort": _REASONING,
    "reasoning": {"effort": _REASONING, "mode": "openai.request.reasoning.mode"},
    "verbosity": "openai.request.verbosity",
    "text": {"verbosity": "openai.request.verbosity", "format": {"type": _OUTPUT_TYPE}},
    "response_format": {"type": _OUTPUT_TYPE},
    "service_tier": "openai.request.service_tier",
    "logit_bias": _LOGIT_BIAS,
    "logprobs": "openai.request.logprobs",
    "top_logprobs": "openai.request.top_logprobs",
    "parallel_tool_calls": "openai.request.parallel_tool_calls",
    "truncation": "openai.request.truncation",
    "dimensions": "gen_ai.embeddings.dimension.count",
    "encoding_format": _ENCODINGS,
    "previous_response_id": _PREVIOUS,
    "conversation": {"id": _CONVERSATION},
    # Servers that speak the same protocol take these beside it.
    "min_p": "openai.request.min_p",
    "repetition_penalty": "openai.request.repetition_penalty",
}
"""Requests to `openai` endpoints, and to servers that speak their protocol."""

ANTHROPIC: Rules = {
    **_SAMPLING,
    "max_tokens_to_sample": "gen_ai.request.max_tokens",
    "stop_sequences": _STOP,
    "service_tier": "anthropic.request.service_tier",
    "speed": "anthropic.request.speed",
    "thinking": {"type": "anthropic.thinking.type", "budget_tokens": "anthropic.thinking.budget_tokens"},
    "output_config": {"effort": _REASONING, "format": {"type": _OUTPUT_TYPE}},
}
"""Requests to `anthropic` endpoints."""

_OPENAI_RESPONSE: Rules = {
    "id": RESPONSE_ID,
    "model": RESPONSE_MODEL,
    "service_tier": "openai.response.service_tier",
    "system_fingerprint": "openai.response.system_fingerprint",
    "usage": {
        "prompt_tokens": INPUT_TOKENS,
        "input_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": CACHE_READ_TOKENS, "cache_write_tokens": CACHE_WRITE_TOKENS},
        "input_tokens_details": {"cached_tokens": CACHE_READ_TOKENS, "cache_write_tokens": CACHE_WRITE_TOKENS},
        "completion_tokens_details": {"reasoning_tokens": REASONING_TOKENS},
        "output_tokens_details": {"reasoning_tokens": REASONING_TOKENS},
    },
}

_ANTHROPIC_RESPONSE: Rules = {
    "id": RESPONSE_ID,
    "model": RESPONSE_MODEL,
    "usage": {
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "cache_read_input_tokens": CACHE_READ_TOKENS,
        "cache_creation_input_tokens": CACHE_WRITE_TOKENS,
        "output_tokens_details": {"thinking_tokens": REASONING_TOKENS},
        "service_tier": "anthropic.response.service_tier",
    },
}

_NOT_SERVING = frozenset((_STREAM, _PREVIOUS, _CONVERSATION, _OUTPUT_TYPE, _ENCODINGS))
"""Request attributes that do not change who answers, or how it samples."""

_SERVING = ("gen_ai.request.", "openai.request.", "anthropic.request.", "anthropic.thinking.", "gen_ai.embeddings.")

_FLOATS = frozenset((_TEMPERATURE, _TOP_P, _FREQUENCY_PENALTY, _PRESENCE_PENALTY))
_LISTS = frozenset((_STOP, _ENCODINGS))
_TEXTS = frozenset((RESPONSE_ID, RESPONSE_MODEL))
_SPECIAL = _FLOATS | _LISTS | _TEXTS | {_OUTPUT_TYPE, _LOGIT_BIAS}
"""Attributes whose value is not simply what the body holds."""
_OUTPUT_TYPES = {"json_object": "json", "json_schema": "json", "text": "text"}

_INT64 = 1 << 63
_SCALARS = (str, int, float)
_NUMBERS = (int, float)


def request(rules: Rules, *bodies: object) -> Attributes:
    """The attributes of a request; a later body overrides an earlier one. What is no mapping has none."""
    found: Attributes = {}
    for body in bodies:
        if type(body) is dict or isinstance(body, Mapping):
            _collect(rules, body, found)
    return found


def _collect(rules: Rules, body: Mapping[str, object], found: Attributes) -> None:
    for field, value in body.items():
        rule = rules.get(field)
        if rule is None or value is None:
            continue
        if isinstance(rule, str):
            attribute: Attribute | None
            if rule in _SPECIAL:
                attribute = value if type(value) is float and rule in _FLOATS else _special(rule, value)
            else:
                attribute = value if type(value) is str else _scalar(value)
            if attribute is not None:
                found[rule] = attribute
        elif type(value) is dict or isinstance(value, Mapping):
            _collect(rule, value, found)
        elif field == "conversation" and isinstance(value, str):
            found[_CONVERSATION] = value


def _scalar(value: object) -> Attribute | None:
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return str(value)
    return value if isinstance(value, _SCALARS) else None


def _special(name: str, value: object) -> Attribute | None:
    """The value in the type that the convention gives it; None where it cannot be had."""
    if name in _LISTS:
        if isinstance(value, str):
            return [value]
        return [str(item) for item in value] if isinstance(value, (list, tuple)) else None
    if name in _FLOATS:
        return float(value) if isinstance(value, _NUMBERS) else None
    if name == _LOGIT_BIAS:
        return _canonical(value)
    if not isinstance(value, str) or not value:
        return None
    return _OUTPUT_TYPES.get(value) if name == _OUTPUT_TYPE else value


def _canonical(value: object) -> str | None:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return None


def serving(attributes: Mapping[str, Attribute]) -> Attributes:
    """Who answers a call and how it samples: provider, model, every sampling and effort parameter.

    Args:
        attributes: of a call, as given by `request` and the library's own table.
    """
    return {
        name: value
        for name, value in sorted(attributes.items())
        if name == PROVIDER or (name.startswith(_SERVING) and name not in _NOT_SERVING)
    }


def serving_hash(attributes: Mapping[str, Attribute]) -> str:
    """The serving configuration of a call in 16 hex digits; the same on every machine."""
    key = (*attributes.items(), *map(type, attributes.values()))  # for 1 == 1.0 == True
    try:
        found = _hashes.get(key)
    except TypeError:  # a list is among them
        return _hash(attributes)
    if found is None:
        if len(_hashes) >= _MOST_HASHES:
            _hashes.clear()
        found = _hashes[key] = _hash(attributes)
    return found


def _hash(attributes: Mapping[str, Attribute]) -> str:
    return blake2b(orjson.dumps(serving(attributes)), digest_size=8).hexdigest()


_hashes: dict[tuple[object, ...], str] = {}
"""By the attributes of a call: most calls of a program differ in their messages only."""

_MOST_HASHES = 256


def server(scheme: str, host: str, port: int | None) -> Attributes:
    """Where a request goes."""
    return {SERVER_ADDRESS: host, SERVER_PORT: port if port is not None else (443 if scheme == "https" else 80)}


def http_response(head: WireHead) -> Attributes:
    """What every response tells."""
    return {HTTP_STATUS: head.status}


def chat(head: WireHead, body: bytes) -> Attributes:
    """Responses of chat and text completions, plain or streamed."""
    if _is_stream(head):
        return _chat_stream(body)
    message = _parsed(body)
    found = request(_OPENAI_RESPONSE, message)
    _finish_reasons(message.get("choices"), found)
    return found


def responses(head: WireHead, body: bytes) -> Attributes:
    """Responses of the responses endpoint, plain or streamed."""
    if not _is_stream(head):
        return _responses_message(_parsed(body))
    events = _events(body)
    for line in (*reversed(events[-4:]), *events[:1]):
        event = _parsed(line)
        message = event.get("response", event)
        if isinstance(message, dict) and "model" in message:
            return _responses_message(message)
    return {}


def embeddings(head: WireHead, body: bytes) -> Attributes:
    """Responses of the embeddings endpoint: long vectors, which are not parsed."""
    return request(_OPENAI_RESPONSE, _skimmed(body))


def messages(head: WireHead, body: bytes) -> Attributes:
    """Responses of the anthropic messages endpoint, plain or streamed."""
    if not _is_stream(head):
        return _anthropic_message(_parsed(body))
    events = _events(body)
    message: dict[str, Any] = {}
    for line in events[:4]:
        event = _parsed(line)
        if event.get("type") == "message_start":
            message = _dict(event.get("message"))
            break
    for line in reversed(events[-8:]):
        event = _parsed(line)
        if event.get("type") == "message_delta":
            message |= _dict(event.get("delta"))
            # Its counts are totals, and those that it leaves out stand as they were at the start.
            counted = {name: count for name, count in _dict(event.get("usage")).items() if count is not None}
            message["usage"] = _dict(message.get("usage")) | counted
            break
    return _anthropic_message(message)


LARGE = 1 << 20
"""Bodies of so many bytes (images, long vectors) are skimmed for what matters and not parsed."""

_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')


def _chat_stream(body: bytes) -> Attributes:
    events = _events(body)
    found: Attributes = {}
    for line in events[:3]:  # some servers begin with an event that names nothing
        _collect(_OPENAI_RESPONSE, _parsed(line), found)
        if RESPONSE_ID in found:
            break
    for line in reversed(events[-6:]):
        last = _parsed(line)
        if last.get("usage"):
            _collect(_OPENAI_RESPONSE, last, found)
            break
    finished = [_parsed(line) for line in events if _FINISHED.search(line) is not None]
    _finish_reasons([choice for event in finished for choice in _list(event.get("choices"))], found)
    return found


def _responses_message(message: Mapping[str, Any]) -> Attributes:
    found = request(_OPENAI_RESPONSE, message)
    status = message.get("status")
    if status == "completed":
        called = any(_dict(item).get("type") == "function_call" for item in _list(message.get("output")))
        found[FINISH_REASONS] = ["tool_calls" if called else "stop"]
    elif status == "incomplete":
        found[FINISH_REASONS] = [str(_dict(message.get("incomplete_details")).get("reason", status))]
    elif status in ("failed", "cancelled"):
        found[FINISH_REASONS] = [str(status)]
    return found


def _anthropic_message(message: Mapping[str, Any]) -> Attributes:
    found = request(_ANTHROPIC_RESPONSE, message)
    if isinstance(reason := message.get("stop_reason"), str):
        found[FINISH_REASONS] = [reason]
    # The provider counts cached tokens apart; the convention counts them in.
    counts = [found[name] for name in (INPUT_TOKENS, CACHE_READ_TOKENS, CACHE_WRITE_TOKENS) if name in found]
    if INPUT_TOKENS in found:
        found[INPUT_TOKENS] = sum(count for count in counts if isinstance(count, int))
    return found


def _finish_reasons(choices: object, found: Attributes) -> None:
    reasons = {
        choice.get("index", place): choice["finish_reason"]
        for place, choice in enumerate(_list(choices))
        if isinstance(choice, dict) and isinstance(choice.get("finish_reason"), str)
    }
    if reasons:
        found[FINISH_REASONS] = [reasons[index] for index in sorted(reasons)]


def _is_stream(head: WireHead) -> bool:
    for name, value in head.headers:
        if len(name) == 12 and name.lower() == "content-type":
            return value.lower().startswith("text/event-stream")
    return False


def _events(body: bytes) -> list[bytes]:
    """The data of each server-sent event that holds JSON."""
    return [line[5:] for line in body.splitlines() if line.startswith((b"data:{", b"data: {"))]


def _parsed(body: bytes) -> dict[str, Any]:
    if len(body) >= LARGE:
        return _skimmed(body)
    try:
        return _dict(orjson.loads(body))
    except orjson.JSONDecodeError:
        return {}


def _skimmed(body: bytes) -> dict[str, Any]:
    """The model and the usage in a JSON object, found without parsing it; strings cannot hold a bare quote."""
    found: dict[str, Any] = {}
    if (model := _MODEL.search(body)) is not None:
        found["model"] = model[1].decode("utf-8", "replace")
    if (usage := _USAGE.match(body, max(0, body.rfind(b'"usage"')))) is not None:
        found["usage"] = _parsed(usage[1])
    return found


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Iterable[Any]:
    return value if isinstance(value, list) else ()
