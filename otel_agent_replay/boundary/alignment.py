"""Which line of a changed program stands for which line of the recorded one.

Only lines that stand in a recorded site are known of the recorded program, by their tokens and neighbours; the
present one is read whole, from its source. Lines are matched within a function: those with the same tokens
first, by their neighbours where there are several; then what is left by likeness. A function that is gone is
looked for under another name.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
import warnings
from collections import defaultdict
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_agent_replay.boundary.spots import INLINED, Line, lines_of, module_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType, ModuleType

ALIKE: Final = 0.5
"""Two lines, or two functions, are one and the same, edited, where they are more alike than this (0 to 1)."""

Function: TypeAlias = tuple[str, str]
"""Module and qualified name."""

Calls: TypeAlias = "Mapping[Line, list[str]]"
"""The lines of a recorded function that stand in a recorded site, and what is called on each."""

Lines: TypeAlias = "Mapping[str, list[Line]]"
"""The lines of each function of a module, by qualified name."""


def align(recorded: Calls, current: Iterable[Line], *, guess: bool = True) -> dict[Line, Line]:
    """Which recorded line each current line stands for; each recorded line stands once.

    Args:
        recorded: the recorded lines, and what is called on each.
        current: the lines of the present function.
        guess: whether a line may also stand for one like it that called something else.
    """
    pairs: dict[Line, Line] = {}
    free = list(dict.fromkeys(current))
    same: defaultdict[str, list[Line]] = defaultdict(list)
    for line in recorded:
        same[line.tokens].append(line)
    _pair(
        pairs,
        ((nearness(old, new) + (old.nth == new.nth) / 2, old, new) for new in free for old in same.get(new.tokens, ())),
    )
    for certain in (True, False) if guess else (True,):
        taken = set(pairs.values())
        orphans = [line for line in recorded if line not in taken]
        strangers = [line for line in free if line not in pairs]
        alike = (
            (likeness(old.tokens, new.tokens), old, new)
            for old in orphans
            for new in strangers
            if not certain or any(call[:2] in _split(new.tokens) for call in recorded[old])
        )
        _pair(pairs, ((ratio + nearness(old, new) / 10, old, new) for ratio, old, new in alike if ratio > ALIKE))
    return pairs


def _pair(pairs: dict[Line, Line], scored: Iterable[tuple[float, Line, Line]]) -> None:
    """Take the best pairs first; among equals, those that stand first."""
    taken = set(pairs.values())
    for _, old, new in sorted(scored, key=lambda pair: -pair[0]):
        if new not in pairs and old not in taken:
            pairs[new] = old
            taken.add(old)


def nearness(old: Line, new: Line) -> int:
    """0 to 6: how many of the four neighbours are the same; the nearest count double."""
    marks = [old.around[at : at + 2] == new.around[at : at + 2] for at in range(0, 8, 2)]
    return marks[0] + 2 * marks[1] + 2 * marks[2] + marks[3]


@lru_cache(maxsize=4096)
def likeness(old: str, new: str) -> float:
    """How alike two lines are, token by token; 0 to 1. Lines without source are never alike."""
    if old.startswith("@") or new.startswith("@"):
        return 0.0
    return SequenceMatcher(None, _split(old), _split(new), autojunk=False).ratio()


def _split(tokens: str) -> list[str]:
    return [tokens[at : at + 2] for at in range(0, len(tokens), 2)]


class Program:
    """The present program, read from its source as far as it is asked about.

    Args:
        recorded: the recorded functions.
        script: what the recorded program was called, as `script_name` has it. The program that runs now stands
            for it, under whatever name it was saved.
    """

    def __init__(self, recorded: Mapping[Function, Calls], script: str = "") -> None:
        self._recorded = recorded
        self._script = script
        self._modules: dict[str, Lines | None] = {}
        self._renamed: dict[str, dict[str, Function]] = {}
        self._pairs: dict[tuple[Function, bool], dict[Line, Line]] = {}
        self._moved: dict[tuple[Function, Line], tuple[Function, Line] | None] = {}

    def recorded_function(self, function: Function) -> Function | None:
        """The recorded function that a current one stands for; None where the recording does not know it."""
        if function in self._recorded:
            return function
        module = function[0]
        renamed = self._renamed.get(module)
        if renamed is None:
            renamed = self._renamed[module] = self._rename(module)
        return renamed.get(function[1])

    def recorded_line(self, function: Function, line: Line, *, guess: bool = True) -> Line | None:
        """The line of the recorded function that a line of a current one stands for."""
        pairs = self._pairs.get((function, guess))
        if pairs is None:
            pairs = self._pairs[function, guess] = self._align(function, guess=guess)
        return pairs.get(line)

    def moved_line(self, function: Function, line: Line) -> tuple[Function, Line] | None:
        """The same line in another recorded function of this module, out of which it was taken."""
        key = (function, line)
        if key not in self._moved:
            taken = self._moved.values()
            found = [
                (nearness(old, line), (other, old))
                for other, lines in self._recorded.items()
                if other[0] == function[0] and other != function
                for old in lines
                if old.tokens == line.tokens and (other, old) not in taken and self.gone(other, old)
            ]
            self._moved[key] = max(found, key=lambda pair: pair[0])[1] if found else None
        return self._moved[key]

    def gone(self, function: Function, line: Line) -> bool:
        """Whether no line of the present program stands for this recorded one, as far as can be known."""
        module, qualname = function
        for current in self._now(module):
            lines = self._lines(current)
            if lines is None:
                return _missing(module)
            if qualname == "<module>" and current != _main():
                return True  # what a program runs when it is the program, an import of it does not
            for name in lines:
                if self.recorded_function((current, name)) == function and any(
                    self.recorded_line((current, name), candidate, guess=False) == line for candidate in lines[name]
                ):
                    return False
        return True

    def _align(self, function: Function, *, guess: bool) -> dict[Line, Line]:
        recorded = self.recorded_function(function)
        if recorded is None:
            return {}
        lines = self._lines(function[0])
        if lines is None or function[1] not in lines:
            return {line: line for line in self._recorded[recorded]}
        return align(self._recorded[recorded], lines[function[1]], guess=guess)

    def _now(self, module: str) -> list[str]:
        """What a recorded module is called now: a script may be imported from a package, or run by its path."""
        if module in sys.modules or module == _main():
            return [module]
        if module == self._script:
            return [_main()]
        return [name for name in (_main(), *sys.modules) if _tail(name) == _tail(module)] or [module]

    def _rename(self, module: str) -> dict[str, Function]:
        """The recorded function that each new function of a module was before."""
        lines = self._lines(module)
        if lines is None:
            return {}
        known = [function for function in self._recorded if self._is_gone(function, module, lines)]
        scores = []
        for name, body in lines.items():
            for function in known:
                if (module, name) in self._recorded:
                    continue
                alike = _body_likeness(self._recorded[function], body)
                elsewhere = function[1] != name and module not in (function[0], *self._now(function[0]))
                if alike > ALIKE and not elsewhere:
                    scores.append((alike + SequenceMatcher(None, function[1], name).ratio() / 5, name, function))
        renamed: dict[str, Function] = {}
        for _, name, function in sorted(scores, key=lambda score: -score[0]):
            if name not in renamed and function not in renamed.values():
                renamed[name] = function
        return renamed

    def _is_gone(self, function: Function, module: str, lines: Lines) -> bool:
        if function[0] == module:
            return function[1] not in lines
        elsewhere = self._lines(function[0])
        if elsewhere is not None:
            return function[1] not in elsewhere
        if function[0] == self._script and module == _main():
            return True
        return _missing(function[0]) or (function[0] not in sys.modules and _tail(function[0]) == _tail(module))

    def _lines(self, module: str) -> Lines | None:
        if module not in self._modules:
            self._modules[module] = _read(module)
        return self._modules[module]


def _body_likeness(recorded: Calls, current: Iterable[Line]) -> float:
    """How much of the recorded lines a function has, each by its likeness."""
    pairs = align(recorded, current)
    return sum(likeness(old.tokens, new.tokens) for new, old in pairs.items()) / max(1, len(recorded))


def _tail(module: str) -> str:
    return module.rpartition(".")[2]


def _main() -> str:
    main = sys.modules.get("__main__")
    return "" if main is None else module_name(vars(main))


def _missing(module: str) -> bool:
    """Whether a module that is not loaded cannot be loaded either."""
    if module in sys.modules or module == _main():
        return False
    parent = module.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return False
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError, AttributeError):
        return True


def _read(name: str) -> Lines | None:
    """The lines of every function of a loaded module; None where it has no source that can be read."""
    module: ModuleType | None = sys.modules.get("__main__") if name == _main() else sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or not isinstance(file, str):
        return None
    source = linecache.getlines(file, vars(module))
    if not source:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile("".join(source), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    functions: defaultdict[str, list[Line]] = defaultdict(list)
    _collect(code, source, functions)
    return functions


def _collect(code: CodeType, source: list[str], functions: defaultdict[str, list[Line]]) -> None:
    # Functions of one name (a property's getter and setter, lambdas) share their lines.
    functions[code.co_qualname].extend(lines_of(code, source).values())
    for inner in code.co_consts:
        if hasattr(inner, "co_lines") and inner.co_name not in INLINED:
            _collect(inner, source, functions)
