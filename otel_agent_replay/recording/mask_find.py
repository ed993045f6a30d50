"""Where in a text something is to be masked, and what is to stand there.

Text is looked at as what it says: strings of JSON are read with their escapes undone, JSON inside them too, however
deep it is nested. What is found is told in places of the text as it stands, so that everything around it stays.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import quote, unquote_plus

from otel_agent_replay.recording.mask_rules import HEADER_NAMES, SHAPES, plain_name
from otel_agent_replay.recording.mask_walk import Leaf, walk
from otel_agent_replay.recording.variables import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_agent_replay.recording.mask_rules import Hook, Rules

DEEPEST = 6
"""JSON inside strings of JSON is looked into so deep."""

HOOK_FAILED = "hook-failed"
"""Kind of a text that is masked whole because the user's hook raised."""


class Span(NamedTuple):
    """A stretch of a text, and what is to stand there."""

    start: int
    end: int
    text: str


Tokens: TypeAlias = "Callable[[str, str], str]"
"""The token for a value, given its kind."""


class Finder:
    """Finds what the rules name.

    Args:
        rules: what is masked.
        tokens: gives the token for a value and a kind.
        failed: told of a hook that raised.
    """

    def __init__(self, rules: Rules, tokens: Tokens, failed: Callable[[Exception], None]) -> None:
        self.rules = rules
        self._tokens = tokens
        self._failed = failed

    def text(self, text: str, depth: int = 0) -> list[Span]:
        """What is to be masked in any text, in order, nothing twice."""
        if depth < DEEPEST and _OPENS.match(text):
            try:
                json.loads(text)
            except (ValueError, RecursionError):
                return merged([*self.json(text, depth), *self._plain(text), *self._loose(text, depth)])
            return self.json(text, depth)
        found = self._plain(text)
        if "\\" in text and depth < DEEPEST:
            found = merged([*found, *self._loose(text, depth)])
        return found

    def json(self, text: str, depth: int = 0) -> list[Span]:
        """The same for JSON, or what looks like it."""
        found: list[Span] = []
        for leaf in walk(text, self.rules):
            found += self.leaf(text, leaf, depth)
        return merged(found)

    def leaf(self, text: str, leaf: Leaf, depth: int) -> Iterable[Span]:
        """What is to be masked of one value, or of one key, of a document."""
        raw = text[leaf.start : leaf.end]
        if not leaf.string:  # a number, or an object that stands for one value, under a name that the user has given
            return [Span(leaf.start, leaf.end, f'"{self._tokens(raw, self._kind(raw, leaf.named))}"')]
        said = decoded(raw)
        if leaf.base64:
            return self._base64(leaf, raw)
        spans = self.said(said, leaf.named, depth)
        return mapped(spans, raw, said, leaf.start) if spans else ()

    def said(self, said: str, named: str, depth: int) -> list[Span]:
        """What is to be masked of a string, its escapes undone; `named` is what its key or place makes of it."""
        if not named:
            return self.text(said, depth + 1)
        return self.value(said, named)

    def value(self, value: str, name: str) -> list[Span]:
        """What is to be masked of a value that is a credential by its name: all but the scheme of a header."""
        if not value.strip() or TOKEN.fullmatch(value):
            return []
        if name.endswith("cookie"):
            return self._cookies(value, set_cookie=name == "set-cookie")
        if name.endswith("authorization"):
            scheme = _SCHEME.match(value)
            if scheme:
                value, at = value[scheme.end() :], scheme.end()
                kind = self._kind(value, "basic" if scheme[1].lower() == "basic" else "authorization")
                return [] if TOKEN.fullmatch(value) else [Span(at, at + len(value), self._tokens(value, kind))]
            name = "authorization"
        elif name == "query-string":
            return self.form(value)
        return [Span(0, len(value), self._tokens(value, self._kind(value, name)))]

    def url(self, url: str) -> list[Span]:
        """What is to be masked of a URL: its user information, parts that are credentials by name or shape."""
        found = self._plain(url)
        user = _USER.match(url)
        if self.rules.defaults and user and user[1] != "git" and not TOKEN.fullmatch(user[1]):
            found.append(Span(user.start(1), user.end(1), self._tokens(user[1], self._kind(user[1], "url-password"))))
        if "%" in url or "+" in url or self.rules.keys:
            found += self._pairs(url)
        return merged(found)

    def form(self, text: str) -> list[Span]:
        """The same for a form, or a query without its URL."""
        return [Span(s.start - 1, s.end - 1, s.text) for s in self.url("?" + text)]

    def _pairs(self, url: str) -> list[Span]:
        """What is found in the parts of a URL once their escapes are undone."""
        found: list[Span] = []
        for match in _PART.finditer(url):
            part = match["value"] if match["value"] is not None else match[0]
            start = match.end() - len(part)
            name = plain_name(unquote_plus(match["name"] or ""))
            said = unquote_plus(part)
            if said and name in self.rules.keys:
                found.append(Span(start, match.end(), self._tokens(said, self._kind(said, name))))
            elif said != part:
                spans = self.text(said)
                if spans:
                    found.append(Span(start, match.end(), quote(replaced(said, spans), safe="")))
        return found

    def _plain(self, text: str) -> list[Span]:
        """What has the shape of a credential, or what the user has named, in a text as it stands."""
        found: list[tuple[int, int, str]] = []
        if self.rules.defaults:
            for kind, pattern in SHAPES:
                for match in pattern.finditer(text):
                    found.append((*_span(match), kind))
        for pattern in self.rules.patterns:
            found += ((*_span(match), "pattern") for match in pattern.finditer(text))
        if self.rules.hook is not None and text:
            found += self._asked(self.rules.hook, text)
        return [
            Span(start, end, self._tokens(text[start:end], self._kind(text[start:end], kind)))
            for start, end, kind in united(found)
            if not TOKEN.fullmatch(text, start, end)
        ]

    def _asked(self, hook: Hook, text: str) -> list[tuple[int, int, str]]:
        """What the user's hook names; all of the text where it cannot tell."""
        found: list[tuple[int, int, str]] = []
        try:
            parts = hook(text)
            for part in (parts,) if isinstance(parts, str) else parts or ():
                if not isinstance(part, str):
                    raise TypeError(f"it gave {type(part).__name__}, not text")
                at = text.find(part) if part else -1
                while at >= 0:
                    found.append((at, at + len(part), "hook"))
                    at = text.find(part, at + len(part))
        except Exception as error:  # noqa: BLE001 (the user's code: what it may have meant is masked whole)
            self._failed(error)
            return [(0, len(text), HOOK_FAILED)]
        return found

    def _kind(self, value: str, name: str) -> str:
        """What a value is called: by its shape where it has one, so that equal values have one token."""
        if self.rules.defaults:
            for kind, pattern in SHAPES:
                if "secret" not in pattern.groupindex and pattern.fullmatch(value):
                    return kind
        name = plain_name(name)
        return "api-key" if name in _API_KEYS else _NO_WORD.sub("-", name).strip("-")[:40].strip("-") or "credential"

    def _cookies(self, value: str, *, set_cookie: bool) -> list[Span]:
        """The value of each cookie; its name and its attributes stay, so that a replay sends it back."""
        found: list[Span] = []
        for match in _COOKIE.finditer(value):
            given = match[1] if match[1] is not None else match[2]
            if given and not TOKEN.fullmatch(given):
                at = match.start(1) if match[1] is not None else match.start(2)
                found.append(Span(at, at + len(given), self._tokens(given, self._kind(given, "cookie"))))
            if set_cookie:
                break
        return found

    def _loose(self, text: str, depth: int) -> list[Span]:
        """What is found in quoted stretches of a text that is no JSON, with their escapes undone."""
        found: list[Span] = []
        for match in _QUOTED.finditer(text):
            raw = match[1]
            if "\\" in raw:
                said = decoded(raw)
                if said != raw:
                    found += mapped(self.text(said, depth + 1), raw, said, match.start(1))
        return found

    def _base64(self, leaf: Leaf, raw: str) -> Iterable[Span]:
        """Bytes that stand in a document as base64."""
        try:
            data = b64decode(raw, validate=True)
        except ValueError:
            return ()
        said = data.decode("latin-1")
        spans = self.text(said)
        if not spans:
            return ()
        return [Span(leaf.start, leaf.end, b64encode(replaced(said, spans).encode("latin-1")).decode())]


_API_KEYS = frozenset(name for name in HEADER_NAMES if "key" in name)
_OPENS = re.compile(r"\s*[{\[]")
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]{0,20})\s+(?=\S)")
_COOKIE = re.compile(r"(?:(?:^|;)\s*[^=;]*=([^;]*))|^([^=;]+)$")
_USER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^\s/?#@:]+)@")
_PART = re.compile(r"(?P<name>[^/?#&=]*)=(?P<value>[^&#]*)|[^/?#&=]+")
_NO_WORD = re.compile(r"[^a-z0-9]+")
_QUOTED = re.compile(r'"((?:[^"\\]*+(?:\\.[^"\\]*+)*+))(?:"|\Z)', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)


def decoded(raw: str) -> str:
    """What stands between the quotes of a JSON string, its escapes undone; as it is where they are none of JSON's."""
    if "\\" not in raw:
        return raw
    try:
        said = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return said if isinstance(said, str) else raw


def mapped(spans: Iterable[Span], raw: str, said: str, offset: int) -> list[Span]:
    """Places in what a string says as places of where it stands, with escapes in what is put there."""
    if said == raw:
        return [Span(offset + s.start, offset + s.end, _escaped(s.text)) for s in spans]
    said_ends, raw_ends = [0], [0]
    for match in _ESCAPE.finditer(raw):
        said_ends.append(said_ends[-1] + match.start() - raw_ends[-1] + 1)
        raw_ends.append(match.end())

    def place(at: int) -> int:
        index = bisect_right(said_ends, at) - 1
        return offset + raw_ends[index] + at - said_ends[index]

    return [Span(place(s.start), place(s.end), _escaped(s.text)) for s in spans]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"') if '"' in text or "\\" in text else text


def _span(match: re.Match[str]) -> tuple[int, int]:
    group = "secret" if "secret" in match.re.groupindex and match["secret"] is not None else 0
    return match.span(group)


def united(found: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Stretches in order, those that overlap made one, named by the first of the longest."""
    if len(found) < 2:
        return [one for one in found if one[1] > one[0]]
    found.sort(key=lambda one: (one[0], -one[1]))
    made: list[tuple[int, int, str]] = []
    for start, end, kind in found:
        if end <= start:
            continue
        if made and start < made[-1][1]:
            if end > made[-1][1]:
                made[-1] = (made[-1][0], end, made[-1][2])
        else:
            made.append((start, end, kind))
    return made


def merged(spans: list[Span]) -> list[Span]:
    """Spans in order; of two that overlap the first one that was found stays, and grows over the other."""
    if len(spans) < 2:
        return spans
    made: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if made and span.start < made[-1].end:
            if span.end > made[-1].end:
                made[-1] = Span(made[-1].start, span.end, made[-1].text)
        else:
            made.append(span)
    return made


def replaced(text: str, spans: Iterable[Span]) -> str:
    """A text with its spans put in."""
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += (text[at : span.start], span.text)
        at = span.end
    parts.append(text[at:])
    return "".join(parts)
