"""Content codings: undone for what is written down, done again for what a replay serves."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from otel_agent_replay.recording.values import WireHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_agent_replay.recording.values import Headers

CODERS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""Codings that can be done again, with the window bits that zlib knows them by."""

CONTENT_ENCODING = "content-encoding"
CONTENT_LENGTH = "content-length"


class Undo:
    """Takes the content coding off a body chunk by chunk, with the HTTP library's own decoder."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def chunk(self, raw: bytes) -> bytes:
        """What the program will see of this chunk; empty where the decoder holds it back."""
        return _joined(self._decoder.decode(raw))

    def flush(self) -> bytes:
        """What the decoder held back."""
        return _joined(self._decoder.flush())


def _joined(decoded: Any) -> bytes:
    # httpx gives bytes, httpx2 an iterator of bounded pieces.
    return decoded if isinstance(decoded, bytes) else b"".join(decoded)


def codings(headers: Headers) -> list[str]:
    """The content codings of a body, in the order in which they were applied."""
    return [
        coding
        for name, value in headers
        if len(name) == 16 and name.lower() == CONTENT_ENCODING
        for part in value.split(",")
        if (coding := part.strip().lower()) not in ("", "identity")
    ]


def redo(head: WireHead, chunks: Sequence[bytes], *, whole: bool) -> tuple[WireHead, list[bytes]]:
    """The head and chunks to serve for a body that was recorded with its coding undone.

    Each chunk is coded and flushed by itself, so that the program decodes the same pieces. Where the
    coding cannot be done again the body is served plain, and its header left out.

    Args:
        head: as recorded.
        chunks: the body as the recorded program decoded it.
        whole: whether the body came to its end, so that the coding is brought to its own.
    """
    applied = codings(head.headers)
    if not applied or not any(chunks):
        return head, list(chunks)
    headers = head.headers
    if len(applied) == 1 and applied[0] in CODERS:
        served = _coded(chunks, CODERS[applied[0]], whole=whole)
    else:
        served = list(chunks)
        headers = [(name, value) for name, value in headers if name.lower() != CONTENT_ENCODING]
    if whole:
        length = str(sum(map(len, served)))
        headers = [(name, length if name.lower() == CONTENT_LENGTH else value) for name, value in headers]
    return WireHead(head.status, head.reason, headers, head.http_version), served


def _coded(chunks: Sequence[bytes], window: int, *, whole: bool) -> list[bytes]:
    coder = zlib.compressobj(1, zlib.DEFLATED, window)
    served = [coder.compress(chunk) + coder.flush(zlib.Z_SYNC_FLUSH) for chunk in chunks]
    if whole:
        served[-1] += coder.flush(zlib.Z_FINISH)
    return served
