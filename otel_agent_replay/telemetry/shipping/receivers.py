"""OTLP over gRPC and over HTTP, from bytes that are encoded already.

The clients are imported only here, and this only where something is shipped.
"""

from __future__ import annotations

import gzip
import re
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import UsageError
from otel_agent_replay.telemetry.shipping import answers
from otel_agent_replay.telemetry.shipping.answers import Answer, Verdict
from otel_agent_replay.telemetry.shipping.destination import GRPC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.telemetry.shipping.answers import Receiver
    from otel_agent_replay.telemetry.shipping.destination import Destination

_PACKERS = {"gzip": lambda body: gzip.compress(body, 6), "deflate": zlib.compress}
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_TOO_LARGE = re.compile(r"larger than max|exceeds maximum|too large", re.IGNORECASE)
_HARMLESS = re.compile(
    r"connection refused|connection reset|timed out|name or service not known|name resolution|no route to host"
    r"|network is unreachable|certificate verify failed(?:: [a-z -]+)?|hostname mismatch|wrong version number"
    r"|alert [a-z ]+|closed connection without response|connection aborted|unexpected eof|invalid header|header value"
    r"|no host supplied|metadata was invalid",
    re.IGNORECASE,
)
"""What of an exception's text may be said."""
_REFUSED = frozenset({"INVALID_ARGUMENT", "FAILED_PRECONDITION", "ALREADY_EXISTS"})
_BLOCKED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "NOT_FOUND"})
_BLOCKED_STATUS = frozenset({401, 403, 404, 405, 407, 415, 421, 426})
_LATER_STATUS = frozenset({408, 425, 429})


def connect(destination: Destination) -> Receiver:
    """A client of the receiver; nothing is connected yet. Raises UsageError where a certificate cannot be read."""
    return GrpcReceiver(destination) if destination.protocol == GRPC else HttpReceiver(destination)


class GrpcReceiver:
    """OTLP/gRPC."""

    def __init__(self, destination: Destination) -> None:
        import grpc  # noqa: PLC0415 (a fifth of a second, only where it is spoken)

        self._error: type[Exception] = grpc.RpcError
        options = [
            ("grpc.primary_user_agent", _agent()),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if destination.secure:
            key, chain = _file(destination.client_key), _file(destination.client_certificate)
            credentials = grpc.ssl_channel_credentials(_file(destination.certificate), key, chain)
            self._channel = grpc.secure_channel(destination.endpoint, credentials, options)
        else:
            self._channel = grpc.insecure_channel(destination.endpoint, options)
        self._export = self._channel.unary_unary(_METHOD)
        self._metadata = tuple((name.lower(), value) for name, value in destination.headers)
        known = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
        self._compression = known.get(destination.compression, grpc.Compression.NoCompression)
        self._timeout = destination.timeout

    def send(self, body: bytes) -> Answer:
        try:
            reply: bytes = self._export(
                body, timeout=self._timeout, metadata=self._metadata, compression=self._compression
            )
        except self._error as error:
            return _grpc_answer(error)
        except Exception as error:  # noqa: BLE001 (a header that gRPC does not take, for one; it may be mended)
            return Answer(Verdict.BLOCKED, _told(error))
        return answers.of_response(reply)

    def close(self) -> None:
        self._channel.close()


def _grpc_answer(error: Any) -> Answer:
    code = str(getattr(error.code(), "name", "UNKNOWN"))
    details = str(error.details() or "")
    why = f"{code}: {details}"[:300]
    after = 0.0
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin" and isinstance(value, bytes):
            after = answers.of_status(value)[1]
    if code in ("RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "INVALID_ARGUMENT") and _TOO_LARGE.search(details):
        return Answer(Verdict.TOO_LARGE, why)
    if code in _REFUSED:
        return Answer(Verdict.REFUSED, why)
    if code in _BLOCKED or "certificate" in details.lower():
        return Answer(Verdict.BLOCKED, why)
    return Answer(Verdict.LATER, why, after=after)


class HttpReceiver:
    """OTLP/HTTP with protobuf bodies."""

    def __init__(self, destination: Destination) -> None:
        import requests  # noqa: PLC0415 (a tenth of a second, only where it is spoken)

        self._error = requests.RequestException
        self._tls_error = requests.exceptions.SSLError
        self._session = requests.Session()
        self._session.headers.update({"Content-Type": "application/x-protobuf", "User-Agent": _agent()})
        self._session.headers.update(dict(destination.headers))
        if destination.compression:
            self._session.headers["Content-Encoding"] = destination.compression
        for path in (destination.certificate, destination.client_certificate, destination.client_key):
            _file(path)
        # Given with each request: what the session has, REQUESTS_CA_BUNDLE in the environment would override.
        self._verify: str | bool = destination.certificate or True
        if destination.client_certificate:
            certificate, key = destination.client_certificate, destination.client_key
            self._session.cert = (certificate, key) if key else certificate
        self._endpoint = destination.endpoint
        self._pack = _PACKERS.get(destination.compression)
        self._timeout = destination.timeout

    def send(self, body: bytes) -> Answer:
        data = self._pack(body) if self._pack is not None else body
        try:
            response = self._session.post(
                self._endpoint, data, timeout=self._timeout, allow_redirects=False, verify=self._verify
            )
        except self._tls_error as error:
            return Answer(Verdict.BLOCKED, f"TLS: {_told(error)}")
        except self._error as error:  # a header or a URL that HTTP does not take is a ValueError too
            return Answer(Verdict.BLOCKED if isinstance(error, ValueError) else Verdict.LATER, _told(error))
        except Exception as error:  # noqa: BLE001 (whatever else somebody has to mend)
            return Answer(Verdict.BLOCKED, _told(error))
        return http_answer(response.status_code, response.headers, response.content)

    def close(self) -> None:
        self._session.close()


def _told(error: Exception) -> str:
    """What went wrong here. The texts of exceptions hold headers and URLs, with the passwords in them."""
    found = _HARMLESS.search(str(error))
    return f"{type(error).__name__}{f': {found[0]}' if found else ''}"


def http_answer(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """What a response says."""
    if 200 <= status < 300:
        return answers.of_response(body) if "json" not in headers.get("Content-Type", "") else _of_json(body)
    message = answers.of_status(body)[0] or body[:200].decode("utf-8", "replace")
    why = f"HTTP {status} {message}".strip()[:300]
    if status == 413 or (status == 400 and _TOO_LARGE.search(why)):  # the Collector says 400
        return Answer(Verdict.TOO_LARGE, why)
    if status in _BLOCKED_STATUS or status < 400:
        return Answer(Verdict.BLOCKED, why)
    if status in _LATER_STATUS or status >= 500:
        return Answer(Verdict.LATER, why, after=_retry_after(headers.get("Retry-After", "")))
    return Answer(Verdict.REFUSED, why)


def _of_json(body: bytes) -> Answer:
    """The same where the receiver answers in JSON, whatever it was asked in."""
    import orjson  # noqa: PLC0415 (hardly ever)

    with suppress(ValueError, TypeError, AttributeError, KeyError):
        said = orjson.loads(body)["partialSuccess"]
        rejected = int(said.get("rejectedSpans", 0))
        if rejected > 0:
            return Answer(Verdict.PARTIAL, str(said.get("errorMessage") or "rejected, no reason given"), rejected)
    return Answer(Verdict.ACCEPTED)


def _retry_after(text: str) -> float:
    """Seconds, from a number of them or from a date."""
    try:
        seconds = float(text)
        return min(seconds, 1e6) if seconds > 0 else 0.0
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return 0.0
    now = datetime.fromtimestamp(real.time_ns() / 1e9, UTC)
    return min(max((moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds(), 0.0), 1e6)


def _file(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"The file {path} cannot be read ({error.strerror}); see OTEL_EXPORTER_OTLP_CERTIFICATE."
        ) from error


def _agent() -> str:
    return f"otel-agent-replay/{version('otel-agent-replay')}"
