"""Masked values in a recording: how they look, and how they are compared.

A masked value is written as ``masked.KIND.HEX``: KIND says what found it, HEX is the same for equal values. Every
character of it stands for itself in JSON, URLs, headers and forms, so it comes through whatever a program does with
it. When a recording is compared with what a program asks now, it is a variable: it stands for the value that it is
first compared with, equal ones for equal values. It always stands for itself too, as a replay hands it out.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_agent_replay.recording.values import Json

HEX = 20
"""Hex digits of a token."""

ANYTHING = "<masked>"
"""Stands for any value, another one each time: a digest of what was masked. Older recordings have no other form."""

TOKEN = re.compile(rf"masked\.[a-z0-9]+(?:-[a-z0-9]+)*\.([0-9a-f]{{{HEX}}})|{ANYTHING}")
"""Finds them; the first group is what equal ones have in common."""


def beginning(text: str, most: int) -> str:
    """The first characters of a text that is too long, up to a blank: no credential is cut so that it is not known.

    Without a blank among the last 200 it is cut there; what is left of a credential is long enough to be known.
    """
    if len(text) <= most:
        return text
    return text[: max(text.rfind(" ", 0, most), text.rfind("\n", 0, most), most - 200)]


def token(kind: str, digest: str) -> str:
    """How a masked value is written. `kind` is lower-case words and hyphens, `digest` has HEX hex digits."""
    return f"masked.{kind}.{digest}"


def has_token(text: str) -> bool:
    """Whether a text holds a masked value."""
    return "masked" in text and TOKEN.search(text) is not None


class Bindings:
    """What the masked values of one recording stand for in one replay."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def copy(self) -> Bindings:
        """The same, to be bound further without changing these."""
        made = Bindings()
        made._values.update(self._values)
        return made

    def trial(self) -> Trial:
        """Compare with what is known so far; what is learned counts only once it is kept."""
        return Trial(self._values)


class Trial:
    """One comparison."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known
        self._learned: dict[str, str] = {}

    def keep(self) -> None:
        """The comparison held: what was learned is known from now on."""
        self._known.update(self._learned)

    def text(self, recorded: str, asked: str) -> bool:
        """Whether `asked` is `recorded` with a fitting value for each masked one."""
        found = list(TOKEN.finditer(recorded)) if "masked" in recorded else []
        if not found:
            return recorded == asked
        if not asked.startswith(recorded[: found[0].start()]):
            return False
        at = found[0].start()
        for match, following in _with_following(found, recorded):
            end = self._value(match, asked, at, following, last=match.end() + len(following) == len(recorded))
            if end is None:
                return False
            at = end + len(following)
        return at == len(asked)

    def value(self, recorded: str, asked: Json) -> bool:
        """Whether a text that is nothing but a masked value stands for another kind of value."""
        match = TOKEN.fullmatch(recorded) if "masked" in recorded else None
        return match is not None and self._bind(match[1], json.dumps(asked, sort_keys=True, default=str))

    def keys(self, recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, str] | None:
        """Which key of `asked` is which of `recorded`, where some are masked; None where they are not the same."""
        left = [key for key in asked if key not in recorded]
        pairs = {key: key for key in recorded if key in asked}
        for key in recorded:
            if key in pairs:
                continue
            other = next((other for other in left if self.text(key, other)), None)
            if other is None:
                return None
            left.remove(other)
            pairs[key] = other
        return None if left else pairs

    def _value(self, match: re.Match[str], asked: str, at: int, following: str, *, last: bool) -> int | None:
        """Where the value that begins at `at` ends; None where none fits."""
        known = self._known.get(match[1]) or self._learned.get(match[1])
        for value in (match[0], known):
            if value is not None and asked.startswith(value, at):
                end = at + len(value)
                if asked[end:] == following if last else asked.startswith(following, end):
                    return end
        if last:
            end = len(asked) - len(following) if asked.endswith(following) else -1
        else:
            end = asked.find(following, at + 1)
        if end <= at or not self._bind(match[1], asked[at:end]):
            return None
        return end

    def _bind(self, digest: str | None, value: str) -> bool:
        if digest is None:
            return True
        known = self._known.get(digest) or self._learned.get(digest)
        if known is None:
            self._learned[digest] = value
            return True
        return known == value or _plain(known) == _plain(value)


def _with_following(found: list[re.Match[str]], recorded: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each masked value with the text up to the next; of those that stand side by side, only the last."""
    for number, match in enumerate(found):
        after = found[number + 1].start() if number + 1 < len(found) else len(recorded)
        if after > match.end() or after == len(recorded):
            yield match, recorded[match.end() : after]


def _plain(value: str) -> str:
    """A value without what URLs and JSON strings put around some characters."""
    return unquote(value.replace("\\", "")) if "%" in value or "\\" in value else value
