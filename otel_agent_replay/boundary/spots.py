"""How a place in a program is named: by what the code says, not by where it stands.

A line is named by its tokens, which such line of its function it is, and the lines around it; a spot is one call
on a line; a site is a line that reads and the line that called its function. Whatever moves keeps its name.

    agent:main:AbCdEfGh:Xy0:0:--QwErTy                 a line of the agent
    agent:now:…^agent:main:…                           called by another
    pydantic.main:BaseModel.__init__:…|agent:main:…    a library's line, reached from the agent
"""

from __future__ import annotations

import dis
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType

WITHIN: Final = "|"
"""Stands between a library's line and the agent's line that reached it."""
CALLED_BY: Final = "^"
"""Stands before the agent's line that called the one before."""

INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Code objects that Python 3.12 made part of the function around them."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a function, as it is told from the others.

    Two characters stand for each token, for the callee and for each neighbour: enough to compare lines, and
    no text of the program is kept.
    """

    tokens: str
    """``@`` and the number of an instruction, where there is no source."""
    nth: int
    """How-manyth line with these tokens in its function."""
    around: str
    """The two lines before and the two after."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One call in a line."""

    module: str
    qualname: str
    line: Line
    call: str
    """What is called, and the how-manyth such call on the line."""

    def __str__(self) -> str:
        line = self.line
        return f"{self.module}:{self.qualname}:{line.tokens}:{self.call}:{line.nth}:{line.around}"

    @classmethod
    def parse(cls, text: str) -> Spot:
        """Read what `str` wrote. Raises ValueError where it is something else."""
        name, tokens, call, nth, around = text.rsplit(":", 4)
        module, _, qualname = name.partition(":")
        return cls(module, qualname, Line(tokens, int(nth), around), call)

    @property
    def function(self) -> tuple[str, str]:
        return self.module, self.qualname


@dataclass(frozen=True, slots=True)
class Site:
    """A place that reads."""

    id: str
    inner: tuple[Spot, ...]
    """The line that reads; behind a library's line, the agent's line that reached it."""
    context: Spot | None
    """The agent's line that called the innermost of its functions; None where none did."""

    @property
    def spots(self) -> tuple[Spot, ...]:
        return self.inner if self.context is None else (*self.inner, self.context)

    @classmethod
    def make(cls, inner: Sequence[Spot], context: Spot | None) -> Site:
        name = WITHIN.join(map(str, inner))
        return cls(name if context is None else f"{name}{CALLED_BY}{context}", tuple(inner), context)

    @classmethod
    def parse(cls, text: str) -> Site:
        """The site of this id. Raises ValueError where it is none."""
        name, _, context = text.partition(CALLED_BY)
        return cls(
            text, tuple(Spot.parse(part) for part in name.split(WITHIN)), Spot.parse(context) if context else None
        )


def module_name(names: Mapping[str, Any]) -> str:
    """The module whose globals these are; a program has one name, whether it is run or imported."""
    name = str(names.get("__name__", ""))
    if name not in ("__main__", "__mp_main__"):
        return name
    spec = getattr(names.get("__spec__"), "name", None)
    if isinstance(spec, str) and spec not in ("__main__", "__mp_main__"):
        return spec.removesuffix(".__main__")
    file = names.get("__file__")
    return Path(file).stem if isinstance(file, str) else "__main__"


def script_name(argv: Sequence[str]) -> str:
    """What `module_name` calls the program that this command line of Python runs; empty where it has no name."""
    rest = iter(argv[1:])
    for part in rest:
        if part.startswith("-m"):
            return (part[2:] or next(rest, "")).removesuffix(".__main__")
        if part.startswith("-c") or part == "-":
            return ""
        if part in ("-X", "-W", "--check-hash-based-pycs"):
            next(rest, None)
        elif not part.startswith("-"):
            return Path(part).stem
    return ""


def lines_of(code: CodeType, source: Sequence[str]) -> dict[int, Line]:
    """The lines of a code object that do something, by line number; `source` are the lines of its file."""
    numbers = sorted({number for number in _numbers(code) if number <= len(source)})
    tokens = [tokens_of(source[number - 1]) for number in numbers]
    marks = ["--", "--", *(two(text) for text in tokens), "--", "--"]
    seen: dict[str, int] = {}
    lines = {}
    for index, (number, text) in enumerate(zip(numbers, tokens, strict=True)):
        nth = seen[text] = seen.get(text, -1) + 1
        lines[number] = Line(text, nth, "".join((*marks[index : index + 2], *marks[index + 3 : index + 5])))
    return lines


def tokens_of(line: str) -> str:
    """Two characters for each token of a line; spacing and comments make no difference."""
    code, comment, _ = line.partition("#")
    if comment and (code.count('"') % 2 or code.count("'") % 2):
        code = line  # the mark stands inside a string
    tokens = _TOKEN.findall(code)
    if len(tokens) > _MOST_TOKENS:
        tokens[_MOST_TOKENS - 1 :] = [" ".join(tokens[_MOST_TOKENS - 1 :])]
    return "".join(map(two, tokens))


_TOKEN = re.compile(r"\w+|[^\w\s]")
_MOST_TOKENS = 24
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@lru_cache(maxsize=8192)
def two(text: str) -> str:
    """Two characters that stand for any text."""
    number = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=2).digest())
    return _ALPHABET[number & 63] + _ALPHABET[number >> 6 & 63]


_PROLOGUE_NAMES = """
CACHE CALL_INTRINSIC_1 COPY_FREE_VARS MAKE_CELL NOP POP_TOP PRECALL PUSH_NULL RERAISE RESUME RETURN_GENERATOR
"""
_PROLOGUE = frozenset(dis.opmap[name] for name in _PROLOGUE_NAMES.split() if name in dis.opmap)
"""Instructions that stand for no line of the program: those of a function's head."""


def _numbers(code: CodeType) -> Iterator[int]:
    """The lines on which a code object, and the comprehensions in it, do something."""
    instructions = code.co_code
    for start, end, number in code.co_lines():
        if number and any(instructions[at] not in _PROLOGUE for at in range(start, end, 2)):
            yield number
    for inner in code.co_consts:
        if hasattr(inner, "co_lines") and inner.co_name in INLINED:
            yield from _numbers(inner)
