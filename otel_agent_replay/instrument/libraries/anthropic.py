"""anthropic: one crossing for each model call, with all its attempts."""

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

    key: str
    operation: str
    reading: Reading


ENDPOINTS = {
    "/v1/messages": Endpoint("model:anthropic.messages", "chat", genai.messages),
    "/v1/complete": Endpoint("model:anthropic.completions", "text_completion", genai.messages),
}
"""Other endpoints are recorded as the HTTP calls that they are."""

wire.readings.update((endpoint.key, endpoint.reading) for endpoint in ENDPOINTS.values())

PROVIDERS = (
    ("Bedrock", "aws.bedrock"),
    ("AWS", "aws.bedrock"),
    ("Vertex", "gcp.vertex_ai"),
    ("GoogleCloud", "gcp.vertex_ai"),
)
"""Who answers, by what the name of the client's class holds; else anthropic."""


def describe(client: Any, cast_to: Any, options: Any, *_: object, **__: object) -> Call | None:
    """What a call of the client's `request` is."""
    endpoint = ENDPOINTS.get(options.url.partition("?")[0])
    if endpoint is None or options.method.lower() != "post":
        return None
    attributes = genai.request(genai.ANTHROPIC, options.json_data, options.extra_json)
    attributes.update(_who(type(client).__name__, client.base_url))
    attributes[genai.OPERATION] = endpoint.operation
    attributes[names.SERVING] = genai.serving_hash(attributes)
    name = f"{endpoint.operation} {attributes.get(genai.REQUEST_MODEL, '')}".rstrip()
    return Call(Kind.MODEL, endpoint.key, wire=True, name=name, attributes=attributes, allowed=transport_errors())


@wire.remembered
def _who(client: str, url: Any) -> genai.Attributes:
    """Who answers at this URL, by the class of the client, and where that is."""
    provider = next((name for part, name in PROVIDERS if part in client), "anthropic")
    return {genai.PROVIDER: provider, **genai.server(url.scheme, url.host, url.port)}


_mark = wire.marker(describe)

ANTHROPIC = Library(
    "anthropic",
    (
        Target("anthropic._base_client", "SyncAPIClient.request", _mark, ("cast_to", "options")),
        Target("anthropic._base_client", "AsyncAPIClient.request", _mark, ("cast_to", "options")),
    ),
)
