"""Bodies: what is to be masked in them, looked for only in what is new."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from otel_agent_replay.recording import mask_stream
from otel_agent_replay.recording.alike import end_alike, start_alike
from otel_agent_replay.recording.mask_find import Span

if TYPE_CHECKING:
    from otel_agent_replay.recording.mask_find import Finder

HELD = 64 << 20
"""Bytes of earlier bodies that are held, so that only what is new in the next ones is looked at …"""

WORTH_HOLDING = 2048
"""… where they are no shorter than this."""

_FORM = re.compile(rb"[\w.\[\]%+-]{1,100}=[^\s{\[]*\Z")
_CUT = b'},{"'
"""Ends a member of a list of objects; a JSON string cannot hold it."""


class _Last:
    """The last body of a stream, and what was found in it, in bytes."""

    __slots__ = ("body", "spans")

    def __init__(self, body: bytes, spans: list[Span]) -> None:
        self.body = body
        self.spans = spans


class Bodies:
    """Finds what is to be masked in bodies; holds the last one of each stream. Not thread-safe."""

    def __init__(self, finder: Finder) -> None:
        self.rules = finder.rules
        self._finder = finder
        self._last: OrderedDict[str, _Last] = OrderedDict()
        self._held = 0

    def spans(self, data: bytes) -> list[Span]:
        """What is to be masked, in bytes."""
        if data[:1] == b"{" and b"\n" not in data:  # one document, as most bodies are: no form and no stream
            if not self.rules.everywhere and not self.rules.suspicious(data, 0, len(data)):
                return []
            text, coding = _readable(data)
            return _in_bytes(self._finder.text(text), text, coding)
        if _is_form(data):
            text, coding = _readable(data)
            worth = self.rules.everywhere or bool(self.rules.keys)
            worth = worth or self.rules.suspicious(b"?" + data, 0, len(data) + 1)
            return _in_bytes(self._finder.form(text), text, coding) if worth else []
        streamed = mask_stream.is_stream(data)
        worth = self.rules.everywhere or self.rules.suspicious(data, 0, len(data))
        if not worth and not (streamed and mask_stream.may_hold(data, self.rules.suspicious)):
            return []
        text, coding = _readable(data)
        found = mask_stream.find(text, self._finder) if streamed else self._finder.text(text)
        return _in_bytes(found, text, coding)

    def spans_after(self, body: bytes, stream: str) -> list[Span]:
        """The same, where what the last body of the stream held too has been looked at already."""
        last = self._last.get(stream)
        spans = None if last is None or self.rules.paths else self._window(body, last)
        if spans is None:
            spans = self.spans(body)
        self._hold(stream, last, body, spans)
        return spans

    def _window(self, body: bytes, last: _Last) -> list[Span] | None:
        """What is found in the members of lists that are new; None where all has to be looked at."""
        old = last.body
        if body[:1] != b"{" and body[:1] != b"[":
            return None
        most = min(len(body), len(old))
        same = start_alike(body, 0, old, 0, most)
        begin = body.rfind(_CUT, 0, same) + 2
        if begin < len(body) // 8 or begin < WORTH_HOLDING // 2:
            return None
        same_end = end_alike(body, len(body), old, len(old), most - same)
        end = body.find(_CUT, len(body) - same_end) + 1 if same_end > len(_CUT) else 0
        end = end or len(body)
        shift = len(old) - len(body)
        kept = [span for span in last.spans if span.end <= begin]
        after = [Span(s.start - shift, s.end - shift, s.text) for s in last.spans if s.start >= end + shift]
        named = self.rules.named
        if named is not None and (last.spans or named.search(body, begin, end)):
            return None  # what a name masks may reach beyond the members that are new
        if self.rules.everywhere or self.rules.suspicious(body, begin, end):
            text, coding = _readable(body[begin:end])
            found = _in_bytes(self._finder.json(text), text, coding)
            kept += (Span(span.start + begin, span.end + begin, span.text) for span in found)
        return kept + after

    def _hold(self, stream: str, last: _Last | None, body: bytes, spans: list[Span]) -> None:
        if last is not None:
            self._held -= len(last.body)
            del self._last[stream]
        if len(body) < WORTH_HOLDING:
            return
        self._last[stream] = _Last(body, spans)
        self._held += len(body)
        while self._held > HELD and self._last:
            self._held -= len(self._last.popitem(last=False)[1].body)


def _is_form(data: bytes) -> bool:
    """Whether a body looks like the fields of a form."""
    return _FORM.match(data) is not None


def _readable(data: bytes) -> tuple[str, str]:
    """Bytes as text, and the coding that gives them back."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _in_bytes(spans: list[Span], text: str, coding: str) -> list[Span]:
    """Places in a text as places in its bytes."""
    if coding == "latin-1" or not spans or text.isascii():
        return spans
    made: list[Span] = []
    at = offset = 0
    for span in spans:
        offset += len(text[at : span.start].encode())
        length = len(text[span.start : span.end].encode())
        made.append(Span(offset, offset + length, span.text))
        offset += length
        at = span.end
    return made


def put(body: bytes, spans: list[Span]) -> bytes:
    """A body with what was found in it."""
    parts: list[bytes] = []
    at = 0
    for span in spans:
        parts += (body[at : span.start], span.text.encode())
        at = span.end
    parts.append(body[at:])
    return b"".join(parts)


def put_in_pieces(data: bytes, chunks: list[bytes], spans: list[Span]) -> list[bytes]:
    """The same for a body in pieces; each keeps its place. `data` is the body whole."""
    made: list[bytes] = []
    begin = 0
    number = 0
    for chunk in chunks:
        end = begin + len(chunk)
        parts: list[bytes] = []
        at = begin
        while number < len(spans) and spans[number].start < end:
            span = spans[number]
            if span.start >= begin:
                parts += (data[at : span.start], span.text.encode())
            at = min(span.end, end)
            if span.end > end:
                break
            number += 1
        parts.append(data[at:end])
        made.append(b"".join(parts))
        begin = end
    return made
