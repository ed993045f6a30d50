"""Recorded exchanges of real model APIs: read from the cassettes of other projects, every one accounted for.

A cassette is a YAML file of vcrpy (`interactions` of a request and a reply) or a JSON file that holds a reply
alone. An exchange is kept when the `openai` or the `anthropic` SDK can ask for it at an address of our choice;
each of the others is returned as `Skipped`, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = "AGENT_REPLAY_DATA"
"""Environment variable: a folder that holds `cassettes/`. Default: `shared/data` beside the repository."""

OPENAI_HOST = "api.openai.com"
ANTHROPIC_HOST = "api.anthropic.com"

OPENAI_COMPATIBLE = re.compile(r"(?<!^/api)/(chat/completions|completions|responses|embeddings)$")
"""Paths that many providers serve in OpenAI's form; the SDK is given their address as its base URL. `/api/` is
Ollama's own form."""

ANTHROPIC_PATH = re.compile(r"/v1/(messages(/.*)?|complete)$")
AZURE_PATH = re.compile(r"^/openai/deployments/(?P<deployment>[^/]+)(?P<operation>/.+)$")

TELEMETRY_PATH = "/v1/traces/ingest"
"""Where openai-agents reports its spans to."""

ENCODINGS = ("gzip", "deflate")
"""Content encodings that both SDKs accept on any installation."""

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "te", "upgrade"}
"""Headers of a reply that belong to the recorded connection; the server sets its own."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Reply:
    """What was answered. `body` is decoded; `encoding` is how it travelled (empty: as it is)."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    encoding: str
    chunked: bool

    @property
    def streams(self) -> bool:
        return any(name.lower() == "content-type" and "event-stream" in value for name, value in self.headers)


@dataclass(frozen=True)
class Exchange:
    """One request and its reply.

    `sdk` is `openai`, `azure` or `anthropic`; `prefix` and `operation` are the two parts of the path. `invented`:
    the cassette holds no request, so this one is ours.
    """

    source: str
    sdk: str
    method: str
    prefix: str
    operation: str
    query: tuple[tuple[str, str], ...]
    body: Any
    headers: dict[str, str] = field(hash=False)
    reply: Reply
    invented: bool = False

    @property
    def path(self) -> str:
        return self.prefix + self.operation


@dataclass(frozen=True)
class Skipped:
    """An exchange that no SDK of ours asks for, and why."""

    source: str
    reason: str


class UnusableError(Exception):
    """This exchange cannot be served; the message is the reason."""


def folder() -> Path:
    """Where the cassettes lie; it may be absent."""
    named = os.environ.get(DATA)
    base = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    return base / "cassettes"


def read(root: Path) -> tuple[list[Exchange], list[Skipped]]:
    """All exchanges below `root`, in the order of their files' names, and all that were skipped."""
    kept: list[Exchange] = []
    skipped: list[Skipped] = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".yaml", ".yml", ".json"}:
            continue
        source = path.relative_to(root).as_posix()
        try:
            interactions = list(_interactions(path))
        except (ValueError, yaml.YAMLError) as error:
            skipped.append(Skipped(source, f"a file that cannot be read: {type(error).__name__}"))
            continue
        for position, one in enumerate(interactions):
            name = f"{source}#{position}"
            try:
                kept.append(_exchange(name, one))
            except UnusableError as reason:
                skipped.append(Skipped(name, str(reason)))
    return kept, skipped


def _interactions(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_LOADER)
    if isinstance(document, dict) and isinstance(document.get("interactions"), list):
        yield from document["interactions"]
    else:
        yield document


def _exchange(source: str, one: Any) -> Exchange:
    if not isinstance(one, dict):
        raise UnusableError("not an exchange")
    if "request" in one and "response" in one:
        return _recorded(source, one["request"], one["response"])
    if "messages" in one:
        raise UnusableError("messages of a command line program, not of HTTP")
    return _reply_alone(source, one)


def _recorded(source: str, request: dict[str, Any], response: dict[str, Any]) -> Exchange:
    url = urlsplit(request["uri"])
    sdk, prefix, operation = _operation(url.netloc or url.path, url.path)
    headers = {name.lower(): value for name, value in _headers(request.get("headers"))}
    return Exchange(
        source=source,
        sdk=sdk,
        method=request["method"].upper(),
        prefix=prefix,
        operation=operation,
        query=tuple(sorted(parse_qsl(url.query, keep_blank_values=True))),
        body=_request_body(request.get("body")),
        headers=headers,
        reply=_reply(response),
    )


def _operation(host: str, path: str) -> tuple[str, str, str]:
    """Which SDK asks for a path, and where in the path its base URL ends."""
    if path == TELEMETRY_PATH:
        raise UnusableError("telemetry of openai-agents, which no recording holds")
    if host == ANTHROPIC_HOST or (ANTHROPIC_PATH.search(path) and host != OPENAI_HOST):
        return "anthropic", "", path
    if azure := AZURE_PATH.match(path):
        return "azure", path.removesuffix(azure["operation"]), azure["operation"]
    if host == OPENAI_HOST and path.startswith("/v1/"):
        return "openai", "/v1", path.removeprefix("/v1")
    if found := OPENAI_COMPATIBLE.search(path):
        return "openai", path[: found.start()], found.group()
    raise UnusableError(f"another API: {_provider(host)}")


def _provider(host: str) -> str:
    """A host without what differs between regions and accounts."""
    if "aiplatform" in host:
        return "Vertex AI"
    if host.startswith("bedrock"):
        return "Bedrock"
    return "Ollama" if host.endswith(":11434") else host


def _headers(headers: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, values in (headers or {}).items():
        found.extend((str(name), str(value)) for value in (values if isinstance(values, list) else [values]))
    return found


def _request_body(body: Any) -> Any:
    body = _text_of(body)
    if body in (None, "", b""):
        return None
    try:
        return json.loads(body)
    except ValueError:
        raise UnusableError("the request's body is not JSON") from None


def _text_of(body: Any) -> Any:
    """A body in any of the forms that vcrpy writes: text, bytes, or a mapping that holds one of them."""
    if isinstance(body, dict):
        body = body.get("string", body.get("base64_string"))
    return body


def _reply(response: dict[str, Any]) -> Reply:
    status = response.get("status", {}).get("code") or response.get("status_code")
    body = _text_of(response.get("body", response.get("content")))
    if status is None:
        raise UnusableError("the reply has no status")
    headers = _headers(response.get("headers"))
    lowered = {name.lower(): value.lower() for name, value in headers}
    raw = body if isinstance(body, bytes) else (body or "").encode("utf-8", "surrogatepass")
    decoded, encoding = _decoded(raw, lowered.get("content-encoding", ""))
    kept = tuple((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP)
    return Reply(int(status), _typed(kept, decoded), decoded, encoding, lowered.get("transfer-encoding") == "chunked")


def _decoded(raw: bytes, encoding: str) -> tuple[bytes, str]:
    """The body without its content encoding, and that encoding if the recorded bytes really had it."""
    if encoding in ENCODINGS:
        try:
            return zlib.decompress(raw, wbits=47), encoding
        except zlib.error:
            return raw, ""
    if encoding and encoding != "identity":
        try:
            raw.decode()
        except UnicodeDecodeError:
            raise UnusableError(f"the reply is encoded with {encoding}") from None
    return raw, ""


def _typed(headers: tuple[tuple[str, str], ...], body: bytes) -> tuple[tuple[str, str], ...]:
    """The headers with a content type; cassettes whose headers were redacted have lost it."""
    if not body or any(name.lower() == "content-type" for name, _ in headers):
        return headers
    streams = re.match(rb"\s*(event|data):", body) is not None
    return (*headers, ("content-type", "text/event-stream" if streams else "application/json"))


def _reply_alone(source: str, document: dict[str, Any]) -> Exchange:
    """A file that holds a reply but no request: a request of ours stands in."""
    whole = "body" in document and "status" in document
    reply = _reply(
        {"status": {"code": document["status"]}, "headers": document["headers"], "body": document["body"]}
        if whole
        else {"status": {"code": 200}, "headers": {}, "body": json.dumps(document)}
    )
    model = re.search(rb'"model"\s*:\s*"([^"]+)"', reply.body)
    if model is None:
        raise UnusableError("a reply without a request, and of no known kind")
    body: dict[str, Any] = {"model": model[1].decode(), "messages": [{"role": "user", "content": source}]}
    if reply.streams:
        body["stream"] = True
    anthropic = b'"chat.completion' not in reply.body
    if anthropic:
        body["max_tokens"] = 1024
    return Exchange(
        source=source,
        sdk="anthropic" if anthropic else "openai",
        method="POST",
        prefix="" if anthropic else "/v1",
        operation="/v1/messages" if anthropic else "/chat/completions",
        query=(),
        body=body,
        headers={},
        reply=reply,
        invented=True,
    )
