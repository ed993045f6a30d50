"""What every served request shares: where its application is found again, who called, what is kept of it."""

from __future__ import annotations

import re
import sys
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.values import Json

SERVING: ContextVar[bool] = ContextVar("otel_agent_replay_serving", default=False)
"""Set inside a request: a framework inside a server inside a middleware is still one request."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}\Z")

KEPT_BODY = 64 * 1024
"""So many bytes of a response are kept, to show where two differ; all of it is digested."""


def locate(application: object) -> dict[str, Json]:
    """Where an application stands as a module's variable, so that it can be found again; empty if nowhere.

    The script itself is named by its file, since its module has another name when it is imported.
    """
    for name, module in list(sys.modules.items()):
        variables = getattr(module, "__dict__", None)
        if not isinstance(variables, dict):
            continue
        for attribute, value in list(variables.items()):
            if value is application:
                place: dict[str, Json] = {"module": name, "attribute": attribute}
                if name == "__main__":
                    place["file"] = str(variables.get("__file__", ""))
                return place
    return {}


def caller(traceparent: str | None) -> tuple[int, int] | None:
    """Trace id and span id that a W3C `traceparent` header names; None where it names none."""
    match = _TRACEPARENT.match((traceparent or "").strip())
    if match is None:
        return None
    trace_id, span_id = int(match[1], 16), int(match[2], 16)
    return (trace_id, span_id) if trace_id and span_id else None


class Response:
    """What was sent back, as far as it is compared: status, headers, and a digest of the body."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: list[Json] = []
        self._digest = blake2b(digest_size=16)
        self._length = 0
        self._kept = bytearray()

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        # Date and server are the machine's, not the program's.
        self._status = status
        self._headers = [[name, value] for name, value in headers if name.lower() not in ("date", "server")]

    def body(self, data: bytes) -> None:
        self._digest.update(data)
        self._length += len(data)
        if len(self._kept) < KEPT_BODY:
            self._kept += data[: KEPT_BODY - len(self._kept)]

    def declared(self) -> dict[str, Json]:
        return {
            "response": {
                "status": self._status,
                "headers": list(self._headers),
                "digest": self._digest.hexdigest(),
                "length": self._length,
                "text": self._kept.decode("utf-8", "replace"),
            }
        }
