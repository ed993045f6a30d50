"""httpx and httpx2: every HTTP call that is no model call is a crossing of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import genai, wire
from otel_agent_replay.instrument._failures import transport_errors
from otel_agent_replay.instrument._patch import Library, Target
from otel_agent_replay.recording.values import Kind, Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.instrument.wire import Refused

TELEMETRY = (
    ("api.openai.com", "/v1/traces/ingest"),
    (".langchain.com", "/runs"),
    (".langchain.com", "/otel"),
    (".langfuse.com", "/api/public/ingestion"),
    (".langfuse.com", "/api/public/otel"),
    (".posthog.com", ""),
    (".sentry.io", ""),
)
"""Telemetry and crash reports, by end of host and beginning of path: never recorded, refused in a replay."""

OTLP = frozenset(("/v1/traces", "/v1/metrics", "/v1/logs"))
"""Paths that OTLP over HTTP is posted to, on any host."""

IN_PROCESS = frozenset(("ASGITransport", "WSGITransport", "_TestClientTransport"))
"""Transports that call the program's own code, which is no boundary: what that code asks for is."""


def _describe(name: str) -> Callable[..., Call | Refused | None]:
    """What a call of `send` is, in the family `name`."""

    def describe(client: Any, request: Any, **_: object) -> Call | Refused | None:
        url = request.url
        host = url.host.lower()
        if is_telemetry(request.method, host, url.path):
            return _refused(name) if _replaying() else None
        if _in_process(client, url):
            return None
        if "upgrade" in request.headers:
            _note(Note(NoteKind.UNCAPTURED, f"a connection upgraded to {request.headers['upgrade']}", host))
            return None
        attributes = {
            genai.HTTP_METHOD: request.method,
            genai.URL_SCHEME: url.scheme,
            **genai.server(url.scheme, host, url.port),
        }
        return Call(
            Kind.HTTP,
            f"http:{request.method} {host}",
            wire=True,
            name=f"{request.method} {host}",
            attributes=attributes,
            allowed=transport_errors(),
        )

    return describe


def is_telemetry(method: str, host: str, path: str) -> bool:
    """Whether a request only reports on the program."""
    if path in OTLP:
        return method == "POST"
    return any(f".{host}".endswith(end) and path.startswith(beginning) for end, beginning in TELEMETRY)


def _refused(name: str) -> Refused:
    return wire.Refused(sys.modules[name].ConnectError("telemetry does not leave a replay"))


def _replaying() -> bool:
    lane = lanes.current()
    return lane is not None and lane.session.replaying


def _note(note: Note) -> None:
    lane = lanes.current()
    if lane is not None:
        lane.session.note(note)


def _in_process(client: Any, url: Any) -> bool:
    transport = client._transport_for_url(url)  # noqa: SLF001 (the choke point that we patch)
    return not IN_PROCESS.isdisjoint(kind.__name__ for kind in type(transport).__mro__)


def _library(name: str) -> Library:
    mark, transport = wire.marker(_describe(name)), wire.transported(name)
    return Library(
        name,
        (
            Target(name, "Client.send", mark, ("request",)),
            Target(name, "AsyncClient.send", mark, ("request",)),
            Target(name, "Client._transport_for_url", transport, ("url",)),
            Target(name, "AsyncClient._transport_for_url", transport, ("url",)),
        ),
        ((name, "Response._get_content_decoder"), (name, "SyncByteStream"), (name, "AsyncByteStream")),
    )


HTTPX = _library("httpx")
HTTPX2 = _library("httpx2")
