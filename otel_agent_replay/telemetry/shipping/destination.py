"""Where frames are shipped to: OpenTelemetry's standard variables for OTLP traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from otel_agent_replay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = "OTEL_EXPORTER_OTLP_"
"""How their names begin."""

GRPC, HTTP = "grpc", "http/protobuf"

TIMEOUT = 10.0
"""Seconds that a request may take, unless set otherwise; as the exporters of OpenTelemetry for Python have it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A receiver, and how it is spoken to."""

    protocol: str
    endpoint: str
    """A URL; for gRPC what a channel is opened to."""
    secure: bool
    headers: tuple[tuple[str, str], ...] = ()
    compression: str = ""
    """``gzip``, ``deflate`` or nothing."""
    timeout: float = TIMEOUT
    """Seconds."""
    certificate: str = ""
    """File of the certificate authorities that are believed; empty for those of this machine."""
    client_key: str = ""
    client_certificate: str = ""
    variables: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """What names it, as it stood in the environment when that was read."""

    @property
    def name(self) -> str:
        """16 hex digits that stand for the receiver and what it is told to tell its callers apart."""
        parts = (self.protocol, self.endpoint, str(self.secure), self.certificate, self.client_certificate)
        text = "\n".join((*parts, *(f"{name}={value}" for name, value in self.headers)))
        return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()

    @property
    def where(self) -> str:
        """How messages name it; holds no password."""
        parts = urlsplit(self.endpoint)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}" if host else self.endpoint.rpartition("@")[2]


def read(environ: Mapping[str, str]) -> Destination | None:
    """The destination that the environment names; None for none.

    Raises:
        UsageError: a variable has no meaning.
    """
    own, common = _value(environ, "TRACES_ENDPOINT"), _value(environ, "ENDPOINT")
    if not (own or common):
        return None
    protocol = (_either(environ, "PROTOCOL") or GRPC).lower()
    if protocol not in (GRPC, HTTP):
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; set it to {GRPC} or {HTTP}.")
    endpoint = own or common
    parts = urlsplit(endpoint)
    if protocol == HTTP:
        if parts.scheme not in ("http", "https") or not parts.netloc:
            shown = endpoint.rpartition("@")[2].partition("?")[0]
            raise UsageError(f"OTEL_EXPORTER_OTLP_ENDPOINT is {shown!r}; over {HTTP} it must be an http or https URL.")
        secure = parts.scheme == "https"
        endpoint = own or common.removesuffix("/") + "/v1/traces"
    else:
        insecure = _either(environ, "INSECURE").lower()
        secure = parts.scheme == "https" or (insecure != "true" if insecure else parts.scheme != "http")
        endpoint = parts.netloc or endpoint
    return Destination(
        protocol,
        endpoint,
        secure,
        _headers(_either(environ, "HEADERS")),
        _compression(_either(environ, "COMPRESSION")),
        _timeout(_either(environ, "TIMEOUT")),
        _either(environ, "CERTIFICATE"),
        _either(environ, "CLIENT_KEY"),
        _either(environ, "CLIENT_CERTIFICATE"),
        tuple((name, value) for name, value in environ.items() if name.startswith(VARIABLES)),
    )


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def _either(environ: Mapping[str, str], name: str) -> str:
    """The variable of traces, else the common one."""
    return _value(environ, f"TRACES_{name}") or _value(environ, name)


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    if not text:
        return ()
    from opentelemetry.util.re import parse_env_headers  # noqa: PLC0415 (only where there are headers)

    return tuple(parse_env_headers(text, liberal=True).items())


def _compression(text: str) -> str:
    if text.lower() not in ("", "none", "gzip", "deflate"):
        raise UsageError(f"OTEL_EXPORTER_OTLP_COMPRESSION is {text!r}; set it to gzip, deflate or none.")
    return "" if text.lower() == "none" else text.lower()


def _timeout(text: str) -> float:
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"OTEL_EXPORTER_OTLP_TIMEOUT is {text!r}; set it to a number of seconds.")
    return seconds
