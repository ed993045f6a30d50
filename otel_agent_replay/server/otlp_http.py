"""OTLP over HTTP: `/v1/traces` as protobuf or JSON, and `/health`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from otel_agent_replay.recording.wire import MalformedError
from otel_agent_replay.server import otlp
from otel_agent_replay.server.commit import OverloadedError, UnavailableError
from otel_agent_replay.server.http import Handler, HttpError, Server
from otel_agent_replay.server.spans_json import to_protobuf

if TYPE_CHECKING:
    from otel_agent_replay.server.commit import Committer
    from otel_agent_replay.server.http import Access

PROTOBUF, JSON = "application/x-protobuf", "application/json"
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 3, 8, 12, 14, 16
_CODES = {429: RESOURCE_EXHAUSTED, 503: UNAVAILABLE, 401: UNAUTHENTICATED, 404: UNIMPLEMENTED}


class OtlpServer(Server):
    """The port for spans."""

    def __init__(self, host: str, port: int, access: Access, committer: Committer) -> None:
        """Listen. Raises OSError."""
        self.committer = committer
        super().__init__(host, port, OtlpHandler, access)


class OtlpHandler(Handler):
    """One connection."""

    server: OtlpServer

    def answer(self) -> None:
        """Answer one request. Raises HttpError."""
        if self.path_only == "/health":
            self.reply(200, orjson.dumps(health(self.server.committer)), JSON)
            return
        if not self.server.access.may_send(self.token()):
            raise HttpError(401, "A token is needed here; send it as `Authorization: Bearer TOKEN`.")
        if self.path_only in ("/v1/metrics", "/v1/logs"):
            raise HttpError(404, otlp.TRACES_ONLY)
        if self.path_only != "/v1/traces":
            raise HttpError(404, "There is /v1/traces here, and /health.")
        if self.command != "POST":
            raise HttpError(405, "Spans are sent by POST.")
        if not self._is_json() and self._kind() != PROTOBUF:
            raise HttpError(415, f"Spans are sent as {PROTOBUF} or {JSON}.")
        self._export()

    def refuse(self, error: HttpError) -> None:
        """Answer with a Status, in the form that was sent."""
        code = _CODES.get(error.status, INVALID_ARGUMENT)
        headers = {"Retry-After": str(otlp.RETRY_SECONDS)} if error.status in (429, 503) else {}
        if self._is_json():
            self.reply(error.status, orjson.dumps({"code": code, "message": str(error)}), JSON, headers)
        else:
            self.reply(error.status, otlp.status(code, str(error)), PROTOBUF, headers)

    def _export(self) -> None:
        body = self.body()
        try:
            batch = otlp.export(self.server.committer, to_protobuf(body) if self._is_json() else body)
        except MalformedError as error:
            raise HttpError(400, f"This is no export of spans: {error}.") from None
        except OverloadedError as error:
            raise HttpError(429, f"The server is busy ({error}); come again.") from None
        except UnavailableError as error:
            raise HttpError(503, f"The spans could not be stored ({error}); send them again.") from None
        if self._is_json():
            said = {"partialSuccess": {"rejectedSpans": str(batch.rejected), "errorMessage": otlp.why(batch)}}
            self.reply(200, orjson.dumps(said if batch.rejected else {}), JSON)
        else:
            self.reply(200, otlp.response(batch), PROTOBUF)

    def _kind(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def _is_json(self) -> bool:
        return self._kind() == JSON


def health(committer: Committer) -> dict[str, object]:
    """What `/health` says."""
    counts = committer.counts
    return {
        "status": "ok",
        "requests": counts.requests,
        "accepted_spans": counts.accepted,
        "rejected_spans": counts.rejected,
        "inserts": counts.groups,
        "failed_inserts": counts.failures,
        "overloads": counts.overloads,
    }
