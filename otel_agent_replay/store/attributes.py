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
    }
)
"""Names whose values are floating point numbers."""

BOOLEANS = frozenset({"gen_ai.request.stream"})
"""Names whose values are true or false."""

LISTS = frozenset(
    {"gen_ai.request.stop_sequences", "gen_ai.request.encoding_formats", "gen_ai.response.finish_reasons"}
)
"""Names whose values are lists of strings."""


def typed(name: str, text: str) -> Attribute:
    """The value that `text` stands for; the text itself where it does not have the form of its type."""
    try:
        if name in INTEGERS:
            return int(text)
        if name in NUMBERS:
            return float(text)
        if name in LISTS:
            items = orjson.loads(text)
            return [str(item) for item in items] if isinstance(items, list) else text
    except ValueError:
        return text
    if name in BOOLEANS and text in ("true", "false"):
        return text == "true"
    return text
