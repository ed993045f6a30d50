"""openai: one crossing for each model call, with all its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import genai, wire
from otel_agent_replay.instrument._failures import transport_errors
from otel_agent_replay.instrument._patch import Library, Target
from otel_agent_replay.recording import names
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from otel_agent_replay.instrument.genai import Reading


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model call, by its path."""

    kind: Kind
    key: str
    operation: str
    api: str
    reading: Reading


ENDPOINTS = {
    "/chat/completions": Endpoint(Kind.MODEL, "model:openai.chat", "chat", "chat_completions", genai.chat),
    "/responses": Endpoint(Kind.MODEL, "model:openai.responses", "chat", "responses", genai.responses),
    "/completions": Endpoint(Kind.MODEL, "model:openai.completions", "text_completion", "", genai.chat),
    "/embeddings": Endpoint(Kind.EMBEDDING, "embedding:openai.embeddings", "embeddings", "", genai.embeddings),
}
"""Other endpoints are recorded as the HTTP calls that they are."""

wire.readings.update((endpoint.key, endpoint.reading) for endpoint in ENDPOINTS.values())

PROVIDERS = (
    (".azure.com", "azure.ai.openai"),
    (".deepseek.com", "deepseek"),
    (".groq.com", "groq"),
    (".mistral.ai", "mistral_ai"),
    (".perplexity.ai", "perplexity"),
    (".x.ai", "x_ai"),
    (".googleapis.com", "gcp.gemini"),
)
"""Who answers, by the end of the host's name; else openai, as whose protocol it is."""


def describe(client: Any, cast_to: Any, options: Any, *_: object, **__: object) -> Call | None:
    """What a call of the client's `request` is."""
    endpoint = ENDPOINTS.get(options.url.partition("?")[0])
    if endpoint is None or options.method.lower() != "post":
        return None
    attributes = genai.request(genai.OPENAI, options.json_data, options.extra_json)
    attributes.update(_who(type(client).__name__, client.base_url))
    attributes[genai.OPERATION] = endpoint.operation
    if endpoint.api:
        attributes[genai.API_TYPE] = endpoint.api
    attributes[names.SERVING] = genai.serving_hash(attributes)
    name = f"{endpoint.operation} {attributes.get(genai.REQUEST_MODEL, '')}".rstrip()
    return Call(endpoint.kind, endpoint.key, wire=True, name=name, attributes=attributes, allowed=transport_errors())


@wire.remembered
def _who(client: str, url: Any) -> genai.Attributes:
    """Who answers at this URL, by the class of the client, and where that is."""
    provider = next((name for end, name in PROVIDERS if f".{url.host}".endswith(end)), "openai")
    if "Azure" in client:
        provider = "azure.ai.openai"
    return {genai.PROVIDER: provider, **genai.server(url.scheme, url.host, url.port)}


_mark = wire.marker(describe)

OPENAI = Library(
    "openai",
    (
        Target("openai._base_client", "SyncAPIClient.request", _mark, ("cast_to", "options")),
        Target("openai._base_client", "AsyncAPIClient.request", _mark, ("cast_to", "options")),
    ),
)
