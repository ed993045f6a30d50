"""How a body is described by an earlier body: which of its pieces stay, and which bytes are new.

A body is a row of pieces. `describe` compares it with the earlier body as memory (no hashing, no copying), cuts
only what is new, and finds its way back into the earlier body where it can. Cuts fall on the ends of long JSON
strings and between list items (``},{"`` and ``}],"``, which cannot occur inside a string), so that the same
message gives the same piece in another lane, or inside a response; but nothing here parses, and any bytes work.

Parts of a description, in order; the pieces that they name, joined, are the body:

    [i, n]          n pieces of the earlier body, from piece i
    [i, a, b]       bytes a to b of its piece i, as one piece
    "=text"         new text, one piece
    "#digest"       a new piece, kept apart under its digest (BLAKE3, its first 128 bits as 32 hex digits)
    {"$": "b64", …} new bytes that are not UTF-8, one piece
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from blake3 import blake3

from otel_agent_replay.recording.alike import end_alike, start_alike
from otel_agent_replay.recording.compiled import PART
from otel_agent_replay.recording.cuts import LONG, cuts_of, quote_after, quote_before

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_agent_replay.recording.values import Json

INLINE = 160
"""Bytes: a new piece up to this length stands in the description itself. A piece kept apart costs about as much
in names, and a description is written twice (with the input, and again with the outcome)."""

SLICE = 24
"""Bytes: a shorter match inside a piece is not worth a part."""

SHORT = 10
"""Bytes: a new piece up to this length is not looked for, as naming its place takes as much …"""

BESIDE = 8
"""… and longer ones up to INLINE are looked for in so many earlier pieces."""

HEAD = 48
"""Bytes by which a place in the earlier body is recognised."""

MISSES = 64
"""Strings of a replaced stretch that are looked for in what they replace …"""

FINE = 8192
"""… and bytes of that in which each is."""

FEW = 4
"""Pieces that were replaced: so few are compared as one stretch."""


def digest_of(piece: bytes) -> str:
    """The name of a piece: 32 hex digits."""
    return blake3(piece).hexdigest(16)


def is_named(piece: bytes, digest: str) -> bool:
    """Whether that is the name of a piece. Frames of schema 1 name theirs by blake2b-128."""
    return digest_of(piece) == digest or blake2b(piece, digest_size=16).hexdigest() == digest


def text_or_base64(data: bytes) -> Json:
    """Bytes as a JSON string where they are UTF-8, else tagged."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"$": "b64", "v": b64encode(data).decode()}


@dataclass(slots=True)
class Description:
    """A body, described by an earlier one.

    Attributes:
        body: piece i of it is ``body[bounds[i]:bounds[i + 1]]``.
        parts: as above.
        apart: new pieces to keep apart, with their digests; the same one may occur twice.
        bounds: of its pieces, from 0 to its length, as 64-bit integers.
        tail: first of the pieces that end both bodies: a chat's next turn most likely begins to differ there.
    """

    body: bytes
    parts: list[Json]
    apart: list[tuple[str, bytes]]
    bounds: array[int]
    tail: int


NONE = array("q", (0,))
"""Bounds of an empty body."""


def describe(body: bytes, old: bytes = b"", old_bounds: array[int] = NONE, old_tail: int = 0) -> Description:
    """Describe `body` by an earlier one, whose bounds and tail are those of its own description."""
    if PART is None:
        return interpreted(body, old, old_bounds, old_tail)
    parts, apart, bounds, tail = PART.describe(body, old, old_bounds, digest_of, text_or_base64)
    return Description(body, parts, apart, array("q", bounds), tail)


def interpreted(body: bytes, old: bytes = b"", old_bounds: array[int] = NONE, old_tail: int = 0) -> Description:
    """The same without the compiled part, which does what is written here."""
    made = _Describing(body, old, old_bounds, old_tail)
    return Description(body, made.parts, made.apart, array("q", made.bounds), made.tail)


class _Describing:
    """Describes `body` by an earlier one, whose piece i is ``old[bounds[i]:bounds[i + 1]]``."""

    __slots__ = ("_view", "apart", "body", "bounds", "old", "old_bounds", "parts", "tail")

    def __init__(self, body: bytes, old: bytes, old_bounds: Sequence[int], old_tail: int) -> None:
        self.body = body
        self.old = old
        self.old_bounds = old_bounds
        self._view = memoryview(old)
        self.bounds: list[int] = [0]
        self.parts: list[Json] = []
        self.apart: list[tuple[str, bytes]] = []
        self.tail = 0
        self._describe(old_tail)

    def _describe(self, old_tail: int) -> None:
        body, old, bounds = self.body, self.old, self.old_bounds
        first = self._same_pieces(old_tail)
        at = bounds[first]
        self._keep(0, first)
        last = bisect_left(bounds, len(old) - end_alike(body, len(body), old, len(old), min(len(body), len(old)) - at))
        end = len(body) - (len(old) - bounds[last])
        if at < end:
            if first == last:
                self._new(at, end, list(cuts_of(body, at, end)), first)
            else:
                self._changed(at, end, first, last)
        self.tail = len(self.bounds) - 1
        self._keep(last, len(bounds) - 1 - last)

    def _same_pieces(self, guess: int) -> int:
        """How many pieces of the earlier body the body begins with; `guess` makes it cheap."""
        starts, view, bounds = self.body.startswith, self._view, self.old_bounds
        low, high = 0, len(bounds)
        step = guess or 1
        while low + 1 < high:
            middle = min(low + step, (low + high) // 2) if high < len(bounds) else min(low + step, high - 1)
            if starts(view[bounds[low] : bounds[middle]], bounds[low]):
                low = middle
                step = 1 if step == guess else 8 * step
            else:
                high = middle
                step = len(bounds)
        return low

    def _keep(self, first: int, count: int) -> None:
        """Pieces of the earlier body that stay."""
        if count == 0:
            return
        before = self.parts[-1] if self.parts else None
        if isinstance(before, list) and len(before) == 2 and before[0] + before[1] == first:  # type: ignore[operator]
            before[1] += count  # type: ignore[operator]
        else:
            self.parts.append([first, count])
        moved = self.bounds[-1] - self.old_bounds[first]
        kept = self.old_bounds[first + 1 : first + count + 1]
        self.bounds += [bound + moved for bound in kept] if moved else kept

    def _copy(self, begin: int, end: int) -> None:
        """Bytes begin to end of the earlier body, whatever pieces they lie in."""
        bounds = self.old_bounds
        index = bisect_right(bounds, begin) - 1
        while begin < end:
            if begin == bounds[index] and bounds[index + 1] <= end:
                whole = bisect_right(bounds, end) - 1
                self._keep(index, whole - index)
                begin, index = bounds[whole], whole
            else:
                stop = min(end, bounds[index + 1])
                self.parts.append([index, begin - bounds[index], stop - bounds[index]])
                self.bounds.append(self.bounds[-1] + stop - begin)
                begin = stop
                index += 1

    def _new(self, at: int, end: int, cuts: list[int], near: int) -> None:
        """Bytes at to end of the body, new; `cuts` may lie outside. They stand where piece `near` stood."""
        body, parts = self.body, self.parts
        for cut in [*(cut for cut in cuts if at < cut < end), end]:
            piece = body[at:cut]
            at = cut
            if SHORT < len(piece) <= INLINE and (place := self._beside(piece, near)) >= 0:
                self._keep(place, 1)
                continue
            self.bounds.append(cut)
            if len(piece) <= INLINE:
                text = text_or_base64(piece)
                parts.append(f"={text}" if isinstance(text, str) else text)
            else:
                digest = digest_of(piece)
                parts.append(f"#{digest}")
                self.apart.append((digest, piece))

    def _beside(self, piece: bytes, near: int) -> int:
        """Where the same short piece stands in the earlier body a little before, as between two messages; or -1."""
        bounds = self.old_bounds
        for index in range(min(near, len(bounds) - 2), max(near - BESIDE, 0) - 1, -1):
            begin, end = bounds[index], bounds[index + 1]
            if end - begin == len(piece) and self.old.startswith(piece, begin):
                return index
        return -1

    def _changed(self, at: int, end: int, first: int, last: int) -> None:
        """Bytes at to end stand where pieces first to last stood: find what of those is still there."""
        if end - at <= INLINE or (last - first <= FEW and end - at <= FINE):
            self._replaced(at, end, first, last, None)  # few pieces have no order to be found again
            return
        body, old, bounds = self.body, self.old, self.old_bounds
        heads: dict[bytes, list[int]] = {}
        for index in range(first, last):
            heads.setdefault(old[bounds[index] : bounds[index] + HEAD], []).append(index)
        begin = at
        cuts: list[int] = []
        ends = cuts_of(body, at, end)
        while at < end:
            places = heads.get(body[at : at + HEAD], ())
            found = bisect_left(places, first)
            if found < len(places):
                place = places[found]
                same = start_alike(body, at, old, bounds[place], min(end - at, bounds[last] - bounds[place]))
                after = bisect_right(bounds, bounds[place] + same) - 1
                if after > place:
                    self._replaced(begin, at, first, place, cuts)
                    self._keep(place, after - place)
                    at += bounds[after] - bounds[place]
                    first = after
                    begin, cuts, ends = at, [], cuts_of(body, at, end)
                    continue
            at = next(ends)
            cuts.append(at)
        self._replaced(begin, end, first, last, cuts)

    def _replaced(self, at: int, end: int, first: int, last: int, cuts: list[int] | None) -> None:
        """Bytes at to end stand for pieces first to last: look for parts of those. `cuts` of the new, if known."""
        body, old = self.body, self.old
        old_at, old_end = self.old_bounds[first], self.old_bounds[last]
        most = min(end - at, old_end - old_at)
        same = start_alike(body, at, old, old_at, most)
        same_end = end_alike(body, end, old, old_end, most - same)
        same, same_end = (
            self._characters(at, same, 1, end - same_end),
            self._characters(end, same_end, -1, at + same),
        )
        self._copy(old_at, old_at + same)
        at, old_at = at + same, old_at + same
        end, old_end = end - same_end, old_end - same_end
        if end - at >= SLICE and old_end - old_at >= SLICE:
            for start, length, place in self._runs(at, end, old_at, old_end):
                if start > at:
                    self._new(at, start, self._cuts(at, start) if cuts is None else cuts, first)
                self._copy(place, place + length)
                at = start + length
        if at < end:
            self._new(at, end, self._cuts(at, end) if cuts is None else cuts, first)
        self._copy(old_end, old_end + same_end)

    def _cuts(self, at: int, end: int) -> list[int]:
        return [] if end - at <= INLINE else list(cuts_of(self.body, at, end))

    def _characters(self, at: int, count: int, step: int, other: int) -> int:
        """`count` bytes after or before `at`, less what would cut a UTF-8 character, or a string that is mostly new.

        What is new ends, or begins, at `other`. 0 if so few are not worth a part.
        """
        body = self.body
        if count >= SLICE and step * (other - at) > count:
            count = self._whole_string(at, count, step, other)
        while count >= SLICE and at + step * count < len(body) and body[at + step * count] & 0xC0 == 0x80:
            count -= 1
        return count if count >= SLICE else 0

    def _whole_string(self, at: int, count: int, step: int, other: int) -> int:
        """`count`, less the beginning or end of a long string of which more is new.

        It is a piece as a whole: an answer that begins as the one before is so found again when it is sent back.
        """
        body = self.body
        edge = at + step * count
        if step > 0:
            begin = quote_before(body, max(at - 1, edge - FINE, 0), edge) + 1
            shared, least = edge - begin, begin + max(LONG, 2 * (edge - begin) + 1)
            long = begin > 0 and least <= other and quote_after(body, edge, least) >= least
        else:
            end = quote_after(body, edge, min(at + 1, edge + FINE))
            shared, least = end - edge, end - max(LONG, 2 * (end - edge) + 1)
            long = end <= at and other <= least and quote_before(body, least, edge) < 0
        return count - shared if long else count

    def _runs(self, at: int, end: int, place: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Stretches of the body that the earlier one has too, in its order: start, length, place there.

        They begin with a string of JSON; after MISSES that do not, the rest counts as new.
        """
        body, old, find = self.body, self.old, self.old.find
        misses = 0
        while at + SLICE <= end and misses < MISSES:
            found = find(body[at : at + SLICE], place, min(last, place + FINE))
            same = 0
            if found >= 0:
                same = start_alike(body, at, old, found, min(end - at, last - found))
                same = self._characters(at, same, 1, end)
            if same:
                yield at, same, found
                at += same
                place = found + same
            misses += 1
            at = body.find(b'"', at, end) + 1
            if not at:
                return
