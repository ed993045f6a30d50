"""Every value of a JSON document with where it stands, whether or not the document is whole."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.recording.mask_rules import HEADER_NAMES, KEY_NAMES, fits, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.mask_rules import Rules

_PART = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_BYTES = frozenset(("bytes", "bytearray", "str"))
_ONE_VALUE = frozenset(
    (*_BYTES, "complex", "decimal", "uuid", "date", "time", "datetime", "timedelta", "path", "range", "float", "int")
)
"""Tags of the codec that stand for one value, which is masked as a whole."""

_FLAT = frozenset(("map", "odict"))
"""Tags of the codec whose list holds keys and values in turn."""

_PAIRED = 2


@dataclass(slots=True)
class Leaf:
    """A value that is no container, or a key."""

    start: int
    end: int
    """Of a string: what stands between its quotes."""
    string: bool
    named: str = ""
    """The name that makes a credential of it, whatever it is; empty where none does."""
    base64: bool = False
    """It holds bytes."""
    whole: bool = False
    """A container that stands for one value."""
    place: tuple[str | int, ...] = ()
    """Where a document has it: names, and 0 for any place in a list. Only where it was asked for."""
    marks: tuple[dict[str, int], ...] = ()
    """What numbers the containers around it hold that say which stream of several they belong to."""


@dataclass(slots=True)
class _Container:
    start: int
    opener: str
    key: str = ""
    index: int = 0
    named: str = ""
    """All in it is masked."""
    texts: str = ""
    """The texts that stand in it directly are."""
    tag: str = ""
    awaits_key: bool = False
    latest: str = ""
    """The text that stands last in a list …"""
    before: str = ""
    """… and right before that; empty where it is no text."""
    marks: dict[str, int] = field(default_factory=dict)


class _Walk:
    """Goes through a document part by part."""

    def __init__(self, text: str, rules: Rules, *, placed: bool) -> None:
        self._text = text
        self._rules = rules
        self._placed = placed
        self._around: list[_Container] = []

    def leaves(self) -> Iterator[Leaf]:
        around = self._around
        for match in _PART.finditer(self._text):
            said = match[1]
            if said is not None:
                top = around[-1] if around else None
                if top is not None and top.awaits_key:
                    top.key = said
                    yield Leaf(match.start(1), match.end(1), string=True, place=("\0key",))
                    continue
                yield from self._value(match.start(1), match.end(1), said)
                continue
            part = match[0]
            if part in "{[":
                self._open(match.start(), part)
            elif part in "}]":
                yield from self._close(match.end())
            elif part == "," and around:
                around[-1].awaits_key = around[-1].opener == "{"
                around[-1].index += 1
                around[-1].before, around[-1].latest = around[-1].latest, ""
            elif part == ":" and around:
                around[-1].awaits_key = False
            elif part not in (",", ":"):
                yield from self._number(match.start(), match.end(), part)

    def _open(self, start: int, opener: str) -> None:
        new = _Container(start, opener, awaits_key=opener == "{")
        if self._around:
            top = self._around[-1]
            new.named = top.named or self._wanted(top)
            if top.opener == "{" and top.tag in _FLAT and top.key == "v":
                new.tag = top.tag
            if opener == "[" or plain_name(top.key) == "query-string":
                new.texts = self._default(top)
        self._around.append(new)

    def _close(self, end: int) -> Iterator[Leaf]:
        if not self._around:
            return
        done = self._around.pop()
        if done.named and done.opener == "{" and done.tag in _ONE_VALUE:
            yield Leaf(done.start, end, string=False, named=done.named, whole=True)

    def _value(self, start: int, end: int, raw: str) -> Iterator[Leaf]:
        if not self._around:
            yield Leaf(start, end, string=True, named=self._by_path(()))
            return
        top = self._around[-1]
        if top.opener == "{" and top.key == "$":
            top.tag = raw
            return
        if top.tag and top.opener == "{" and top.key == "c":
            return  # a class: it is never data
        named = top.named or self._wanted(top)
        if top.named and top.tag in _ONE_VALUE:
            return  # masked with all of its object
        named = named or top.texts or self._default(top)
        encoded = top.tag in _BYTES and top.opener == "{" and top.key == "v"
        if top.opener == "[":
            top.latest = raw
        place, marks = self._where()
        yield Leaf(start, end, string=True, named=named, base64=encoded, place=place, marks=marks)

    def _number(self, start: int, end: int, part: str) -> Iterator[Leaf]:
        if not self._around:
            return
        top = self._around[-1]
        if self._placed and top.opener == "{" and part.isdigit() and (top.key == "index" or top.key.endswith("_index")):
            top.marks[top.key] = int(part)
        if part in ("true", "false", "null") or (top.tag and top.opener == "{"):
            return
        named = top.named or self._wanted(top)
        if named:
            yield Leaf(start, end, string=False, named=named)

    def _wanted(self, top: _Container) -> str:
        """The name that the user has given for what stands here, whatever it is."""
        rules = self._rules
        if rules.keys:
            name = plain_name(self._name(top))
            if name in rules.keys:
                return name
        return self._by_path(self._path()) if rules.paths else ""

    def _default(self, top: _Container) -> str:
        """The name that makes a credential of a text here."""
        if not self._rules.defaults:
            return ""
        if top.opener == "{":
            name = plain_name(top.key)
            return name if name in KEY_NAMES or name == "query-string" else ""
        name = plain_name(top.before)
        if top.tag in _FLAT:
            return name if top.index % 2 and name in KEY_NAMES else ""
        return name if top.index == 1 and name in HEADER_NAMES else ""

    def _name(self, top: _Container) -> str:
        if top.opener == "{":
            return top.key
        return top.before if top.tag in _FLAT and top.index % 2 else ""

    def _path(self) -> tuple[str | int, ...]:
        return tuple(top.key if top.opener == "{" else top.index for top in self._around)

    def _by_path(self, place: tuple[str | int, ...]) -> str:
        return "path" if any(fits(path, place) for path in self._rules.paths) else ""

    def _where(self) -> tuple[tuple[str | int, ...], tuple[dict[str, int], ...]]:
        if not self._placed:
            return (), ()
        place = tuple(top.key if top.opener == "{" else 0 for top in self._around)
        return place, tuple(top.marks for top in self._around)


def walk(text: str, rules: Rules, *, placed: bool = False) -> Iterator[Leaf]:
    """The values and keys of a document, in order; `placed` where their places are of interest."""
    return _Walk(text, rules, placed=placed).leaves()
