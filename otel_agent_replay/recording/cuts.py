"""Where bodies are cut into pieces: at the ends of long JSON strings, and between the items of lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 256
"""Bytes: a JSON string from this length is a piece of its own."""

LARGEST = 1 << 20
"""Bytes: no piece is longer."""

_BACKSLASH = ord("\\")


def cuts_of(body: bytes, at: int, end: int) -> Iterator[int]:
    """Where the pieces of a new stretch end; the last is `end`.

    Only the distance between quotes is looked at, so it does not matter whether `at` is inside a string. What
    lies between two quotes and is long is a piece: a string, or a list of numbers. A larger stretch gets larger
    pieces, at most a few thousand, so that its description stays small.
    """
    find = body.find
    long = max(LONG, 1 << ((end - at) >> 10).bit_length())
    begin = gap = at
    while begin < end:
        quote = find(b'"', at, end)
        if quote < 0:
            quote = end
        elif quote and body[quote - 1] == _BACKSLASH and (body[quote - 2] != _BACKSLASH or _escaped(body, quote)):
            at = quote + 1
            continue
        if quote - gap >= long:
            if gap > begin:
                yield gap
                begin = gap
            while quote - begin > LARGEST:
                begin = _whole_character(body, begin + LARGEST)
                yield begin
            yield quote
            begin = quote
        elif quote == end:
            yield end
            return
        elif quote - begin >= 2 * long:
            brace = body.rfind(b"}", quote - 4, quote)
            if brace > begin or quote - begin >= LARGEST // 2:
                begin = brace + 1 if brace > begin else quote
                yield begin
        gap = at = quote + 1


def quote_before(body: bytes, begin: int, at: int) -> int:
    """The last quote before `at` that is not escaped, from `begin` on; or -1."""
    quote = body.rfind(b'"', begin, at)
    while quote > begin and body[quote - 1] == _BACKSLASH and _escaped(body, quote):
        quote = body.rfind(b'"', begin, quote)
    return quote


def quote_after(body: bytes, at: int, end: int) -> int:
    """The first quote from `at` on that is not escaped; or `end`."""
    quote = body.find(b'"', at, end)
    while quote > 0 and body[quote - 1] == _BACKSLASH and _escaped(body, quote):
        quote = body.find(b'"', quote + 1, end)
    return end if quote < 0 else quote


def _escaped(body: bytes, quote: int) -> bool:
    """Whether an odd number of backslashes stands before the quote."""
    at = quote
    while at and body[at - 1] == _BACKSLASH:
        at -= 1
    return (quote - at) % 2 == 1


def _whole_character(body: bytes, at: int) -> int:
    """`at`, or up to three bytes before it, where no UTF-8 character is cut."""
    for back in range(4):
        if body[at - back] & 0xC0 != 0x80:
            return at - back
    return at
