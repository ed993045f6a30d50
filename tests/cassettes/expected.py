"""What the driver program must print for a recorded exchange, worked out from the cassette without any SDK."""

from __future__ import annotations

import array
import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from tests.cassettes.calls import style

if TYPE_CHECKING:
    from tests.cassettes.corpus import Exchange

ERRORS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
"""What both SDKs call the statuses of errors; from 500 on it is an `InternalServerError`."""


def misfit(one: Exchange, line: dict[str, Any]) -> str | None:
    """Why a line of output cannot have come from this exchange, or None. It may hold more than was recorded."""
    if one.reply.status >= 400:
        return _error_misfit(one, line)
    if "error" in line:
        return None if _unreadable(one) else f"an error: {line['error']}"
    if one.reply.streams:
        return _stream_misfit(one, line)
    _, value = line["result"]
    if one.reply.status == 204:
        return f"a result where nothing was sent: {value!r}" if value else None
    return unlike(value, json.loads(one.reply.body))


def _error_misfit(one: Exchange, line: dict[str, Any]) -> str | None:
    name, status, body, *_ = line.get("error", [None] * 3)
    recorded: Any = one.reply.body.decode()
    try:
        recorded = json.loads(recorded)
    except ValueError:
        pass
    if one.sdk != "anthropic" and isinstance(recorded, dict):
        recorded = recorded.get("error", recorded)
    if name != ERRORS.get(one.reply.status, "InternalServerError") or status != one.reply.status:
        return f"{name} with status {status} for status {one.reply.status}"
    return None if body == recorded else "the body of the error"


def _unreadable(one: Exchange) -> bool:
    """A success whose body is no JSON makes the SDK raise."""
    try:
        json.loads(one.reply.body)
    except ValueError:
        return not one.reply.streams
    return False


def _stream_misfit(one: Exchange, line: dict[str, Any]) -> str | None:
    sent = events(one.reply.body)
    seen = [value for _, value in line["chunks"]]
    if style(one) == "stream":
        return None if len(seen) >= len(sent) else f"{len(seen)} events for {len(sent)} sent"
    if len(seen) != len(sent):
        return f"{len(seen)} chunks for {len(sent)} sent"
    return next((why for got, was in zip(seen, sent, strict=True) if (why := unlike(got, was))), None)


def events(body: bytes) -> list[Any]:
    """The data of an event stream that an SDK hands on: what is neither a ping nor the end mark."""
    found: list[Any] = []
    for block in body.decode().replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].lstrip() for line in block.split("\n") if line.startswith("data:"))
        if not data or data.startswith("[DONE]"):
            continue
        value = json.loads(data)
        if not isinstance(value, dict) or value.get("type") != "ping":
            found.append(value)
    return found


def unlike(got: Any, recorded: Any, where: str = "$") -> str | None:
    """The first place where `got` lacks something of `recorded` or differs from it. Nulls may be left out."""
    if isinstance(recorded, dict) and isinstance(got, dict):
        for name, value in recorded.items():
            if name not in got and value is None:
                continue
            if why := unlike(got.get(name), value, f"{where}.{name}"):
                return why
        return None
    if isinstance(recorded, list) and isinstance(got, list) and len(got) == len(recorded):
        pairs = enumerate(zip(got, recorded, strict=True))
        return next((why for index, (one, other) in pairs if (why := unlike(one, other, f"{where}[{index}]"))), None)
    if got == recorded or got == _floats(recorded):
        return None
    return f"{where}: {str(got)[:80]!r} instead of {str(recorded)[:80]!r}"


def _floats(value: Any) -> list[float] | None:
    """An embedding that travelled as the base64 of 32-bit floats."""
    if not isinstance(value, str) or len(value) < 16:
        return None
    try:
        return array.array("f", base64.b64decode(value, validate=True)).tolist()
    except (binascii.Error, ValueError):
        return None
