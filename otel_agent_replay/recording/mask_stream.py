"""Streams of events, whose texts come in pieces: what they say is looked at joined.

A stream of server-sent events, or of lines of JSON, tells one text piece by piece, each in a document of its own. A
credential that is cut in two by that stands nowhere as it is. So the pieces that stand at the same place of their
documents are joined, and what is found is put where its first piece begins; the others lose what belongs to it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from otel_agent_replay.recording.mask_find import Finder, Span, decoded, mapped, merged
from otel_agent_replay.recording.mask_rules import suspicious
from otel_agent_replay.recording.mask_walk import Leaf, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_EVENTS = re.compile(rb"\s*(?:data|event|id|retry|):")
_LINE = re.compile(r"^(?:data:[ ]?)?([^\r\n]+)", re.MULTILINE)
_FIELD = re.compile(r"(?:event|id|retry):|:")
_PIECE = re.compile(
    rb'"(?!id"|object"|model"|type"|role"|item_id"|event_id"|obfuscation"|system_fingerprint"|service_tier")'
    rb'([\w-]{1,40})"\s*:\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)"',
    re.DOTALL,
)
_INDEX = re.compile(rb'index"\s*:\s*(\d+)')


def is_stream(data: bytes) -> bool:
    """Whether a body is a row of documents."""
    if data[:1] != b"{":
        return _EVENTS.match(data) is not None
    end = data.find(b"\n")
    return end > 0 and data[end - 2 : end].rstrip().endswith(b"}") and data[end + 1 : end + 2] == b"{"


def may_hold(data: bytes, suspicion: Callable[[bytes, int, int], bool] = suspicious) -> bool:
    """Whether what the pieces of a stream say together may hold something that none of them holds."""
    indexes = [int(index) for index in _INDEX.findall(data)]
    if indexes != sorted(indexes):
        return True  # several texts in turn: only a closer look tells them apart
    texts: dict[bytes, list[bytes]] = {}
    for key, piece in _PIECE.findall(data):
        if piece:
            texts.setdefault(key, []).append(piece)
    for pieces in texts.values():
        if len(pieces) > 1:
            joined = b"".join(pieces)
            if suspicion(joined, 0, len(joined)):
                return True
    plain = [line for line in data.split(b"\n") if line.startswith(b"data:") and line[5:7].strip() not in (b"{", b"")]
    if len(plain) > 1:
        joined = b"".join(line.rstrip(b"\r")[5:].removeprefix(b" ") for line in plain)
        return suspicion(joined, 0, len(joined))
    return False


class _Text:
    """What is told piece by piece at one place."""

    def __init__(self, named: str) -> None:
        self.named = named
        self.pieces: list[tuple[str, str, int]] = []
        """As it stands, what it says, and where it stands."""

    def spans(self, finder: Finder) -> Iterator[Span]:
        said = "".join(piece[1] for piece in self.pieces)
        found = finder.said(said, self.named, 0)
        begin = 0
        for raw, text, start in self.pieces:
            end = begin + len(text)
            inside = [
                Span(
                    max(span.start, begin) - begin, min(span.end, end) - begin, span.text if span.start >= begin else ""
                )
                for span in found
                if span.start < end and span.end > begin
            ]
            yield from mapped(inside, raw, text, start)
            begin = end


def find(text: str, finder: Finder) -> list[Span]:
    """What is to be masked in a stream."""
    texts: dict[object, _Text] = {}
    found: list[Span] = []
    for match in _LINE.finditer(text):
        line, start = match[1], match.start(1)
        if start == match.start() and _FIELD.match(line):
            found += _moved(finder.text(line), start)
        elif line[0] in "{[":
            try:
                json.loads(line)
            except (ValueError, RecursionError):
                found += _moved(finder.text(line), start)
            else:
                found += _document(line, start, finder, texts)
        else:
            texts.setdefault("line", _Text("")).pieces.append((line, line, start))
    for told in texts.values():
        found += told.spans(finder)
    return merged(found)


def _document(line: str, start: int, finder: Finder, texts: dict[object, _Text]) -> Iterator[Span]:
    told: list[Leaf] = []
    for leaf in walk(line, finder.rules, placed=True):
        if leaf.string and leaf.place != ("\0key",) and not leaf.base64:
            told.append(leaf)
        else:
            yield from _moved(finder.leaf(line, leaf, 0), start)
    for leaf in told:  # only now are the numbers known that stand after a text
        place = (leaf.place, leaf.named, *(tuple(sorted(marks.items())) for marks in leaf.marks))
        raw = line[leaf.start : leaf.end]
        texts.setdefault(place, _Text(leaf.named)).pieces.append((raw, decoded(raw), start + leaf.start))


def _moved(spans: Iterable[Span], by: int) -> list[Span]:
    return [Span(span.start + by, span.end + by, span.text) for span in spans]
