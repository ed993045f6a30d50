"""Credentials are taken out of headers and URLs before anything is handed on to be written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.values import Headers

MASK = "<masked>"
"""Stands for a credential."""

CREDENTIAL_HEADERS = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"x-amz-security-token",
    )
)
"""Headers whose whole value is a credential, in lower case."""

_COOKIE = re.compile(r"(^|;\s*)([^=;]+)=[^;]*")
_USERINFO = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/@?#]*@", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&](?:key|api[_-]?key|(?:access_|auth_|x-amz-security-)?token|sig|(?:x-amz-)?signature)=)[^&#]*", re.IGNORECASE
)


def headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers as they are written down: in order, with duplicates, credentials masked.

    A cookie keeps its name and its attributes, so that a replay sends it back as the program did.
    """
    return [(_plain[name], value.decode("latin-1")) if name in _plain else _learned(name, value) for name, value in raw]


def url(text: str) -> str:
    """A URL without its user, password and the query values that are credentials by name."""
    if "@" in text:
        text = _USERINFO.sub(rf"\1{MASK}@", text)
    if "?" in text:
        text = _QUERY.sub(rf"\1{MASK}", text)
    return text


_plain: dict[bytes, str] = {}
"""Names of headers, as spelt, that hold no credential: a client sends the same ones with each request."""

_MOST_NAMES = 1000


def _learned(name: bytes, value: bytes) -> tuple[str, str]:
    text = name.decode("latin-1")
    kind = name.lower()
    if kind in CREDENTIAL_HEADERS:
        return text, MASK
    if kind == b"cookie":
        return text, _cookies(value.decode("latin-1"))
    if kind == b"set-cookie":
        pair, semicolon, rest = value.decode("latin-1").partition(";")
        return text, _cookies(pair) + semicolon + rest
    if len(_plain) < _MOST_NAMES:
        _plain[name] = text
    return text, value.decode("latin-1")


def _cookies(text: str) -> str:
    return _COOKIE.sub(rf"\1\2={MASK}", text) if "=" in text else MASK
