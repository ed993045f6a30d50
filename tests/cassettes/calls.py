"""What the driver program is told to call: exchanges as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cassettes.corpus import Exchange

RETRIED = {408, 409, 429}
"""Statuses below 500 after which both SDKs ask again."""


@dataclass(frozen=True)
class Call:
    """One call of an SDK, and the exchanges that its attempts are answered with, the last one being its result."""

    attempts: tuple[Exchange, ...]

    @property
    def last(self) -> Exchange:
        return self.attempts[-1]

    def told(self) -> dict[str, Any]:
        """What `program.py` reads, as a value of JSON."""
        one = self.last
        return {
            "id": one.source,
            "sdk": one.sdk,
            "method": one.method,
            "prefix": one.prefix,
            "operation": one.operation,
            "query": dict(one.query),
            "body": one.body,
            "style": style(one),
            "asynchronous": one.headers.get("x-stainless-async", "false") != "false",
            "retries": len(self.attempts) - 1,
        }


def style(one: Exchange) -> str:
    """The form of the SDK's method that the recorded program called: `plain`, `raw`, `parse` or `stream`."""
    if "x-stainless-stream-helper" in one.headers:
        return "stream"
    if one.headers.get("x-stainless-helper-method", "").endswith("parse"):
        return "parse"
    return "raw" if "x-stainless-raw-response" in one.headers else "plain"


def calls(exchanges: list[Exchange]) -> list[Call]:
    """Join the attempts of one call: the same request again, after a status that the SDK retries."""
    found: list[Call] = []
    for one in exchanges:
        previous = found[-1].last if found else None
        if previous is not None and _is_retry(previous, one):
            found[-1] = Call((*found[-1].attempts, one))
        else:
            found.append(Call((one,)))
    return found


def _is_retry(first: Exchange, second: Exchange) -> bool:
    return (
        first.source.rpartition("#")[0] == second.source.rpartition("#")[0]
        and (first.reply.status in RETRIED or first.reply.status >= 500)
        and int(second.headers.get("x-stainless-retry-count", 0)) > 0
        and request_key(first.method, first.path, first.query, sent_body(first))
        == request_key(second.method, second.path, second.query, sent_body(second))
    )


def sent_body(one: Exchange) -> Any:
    """The body as today's SDK sends it: `embeddings.create` asks for base64 where the caller names no format."""
    asks = one.operation == "/embeddings" and isinstance(one.body, dict) and "encoding_format" not in one.body
    return {**one.body, "encoding_format": "base64"} if asks else one.body


def request_key(method: str, path: str, query: tuple[tuple[str, str], ...], body: Any) -> str:
    """What two requests have in common that a server cannot tell apart.

    `beta=true` is left out: `anthropic` used to send it, and does no longer.
    """
    return json.dumps([method, path, sorted(set(query) - {("beta", "true")}), body], sort_keys=True)
