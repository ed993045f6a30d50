"""The types of attributes, for values that come back from a map of strings.

`schemas/attributes.yaml` is the registry; a test holds these tables to it. A name that is in neither stays a
string, which is how the store keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from otel_agent_replay.recording import names

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Attribute

INTEGERS = frozenset(
    {
        names.SCHEMA,
        names.ORDINAL,
        names.SEQ,
        names.NOTES,
        names.FLAWS,
        names.MASKED,
        names.PAYLOAD_LENGTH,
        "gen_ai.request.max_tokens",
        "gen_ai.request.top_k",
        "gen_ai.request.seed",
        "gen_ai.request.choice.count",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.embeddings.dimension.count",
        "openai.request.best_of",
        "openai.request.top_logprobs",
        "anthropic.thinking.budget_tokens",
        "server.port",
        "http.response.status_code",
        "http.request.resend_count",
    }
)
"""Names whose values are whole numbers."""

NUMBERS = frozenset(
    {
        "gen_ai.request.temperature",
        "gen_ai.request.top_p",
        "gen_ai.request.frequency_penalty",
        "gen_ai.request.presence_penalty",
        "gen_ai.response.time_to_first_chunk",
        "openai.request.min_p",
        "openai.request.repetition_penalty",
    }
)
"""Names whose values are floating point numbers."""

BOOLEANS = frozenset({"gen_ai.request.stream", "openai.request.parallel_tool_calls"})
"""Names whose values are true or false."""

EITHER = frozenset({"openai.request.logprobs"})
"""Names whose values are true or false to one endpoint, and whole numbers to another."""

LISTS = frozenset(
    {"gen_ai.request.stop_sequences", "gen_ai.request.encoding_formats", "gen_ai.response.finish_reasons"}
)
"""Names whose values are lists of strings."""


def typed(name: str, text: str) -> Attribute:
    """The value that `text` stands for; the text itself where it does not have the form of its type."""
    if (name in BOOLEANS or name in EITHER) and text in ("true", "false"):
        return text == "true"
    try:
        if name in INTEGERS or name in EITHER:
            return int(text)
        if name in NUMBERS:
            return float(text)
        if name in LISTS:
            items = orjson.loads(text)
            return [str(item) for item in items] if isinstance(items, list) else text
    except ValueError:
        return text
    return text
