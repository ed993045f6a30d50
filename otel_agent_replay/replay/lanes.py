"""Which recorded lane a running lane is, also where the program has changed since."""

from __future__ import annotations

import sys
import sysconfig
from difflib import SequenceMatcher
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from otel_agent_replay.boundary.lanes import ROOT, child_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_agent_replay.boundary.lanes import Lane


class LaneMap:
    """Finds the recorded lane of a running one: by name, else as a function that was renamed since.

    A lane of a name that the recording does not know is taken for a renamed one only if the program no
    longer defines the recorded name; so a task that is new to the program takes nobody's place.
    """

    def __init__(self, recorded: Iterable[str]) -> None:
        self.recorded = frozenset(_with_ancestors(recorded)) | {ROOT}
        self._children: dict[tuple[str, str], dict[str, set[int]]] = {}
        for path in self.recorded:
            parent, how, name, number = split(path)
            if how:
                self._children.setdefault((parent, how), {}).setdefault(name, set()).add(number)
        self._renamed: dict[tuple[str, str, str], str] = {}
        self._known: dict[str, str] = {ROOT: ROOT}

    def resolve(self, lane: Lane) -> str | None:
        """Path of the recorded lane that `lane` is; None where it is new, for now."""
        chain: list[Lane] = []
        step: Lane | None = lane
        while step is not None and step.path not in self._known:
            chain.append(step)
            step = step.parent
        found: str | None = ROOT if step is None else self._known[step.path]
        for step in reversed(chain):
            found = None if found is None else self._child(found, step)
            if found is None:
                return None
            self._known[step.path] = found
        return found

    def settle(self, lane: Lane, path: str) -> None:
        """`lane` is the recorded lane `path`, as was found by what it asked."""
        self._known[lane.path] = path

    def _child(self, parent: str, lane: Lane) -> str | None:
        name = lane.name.replace("/", "%2f")
        exact = child_path(parent, lane.how, lane.name, lane.number)
        if exact in self.recorded:
            return exact
        siblings = self._children.get((parent, lane.how), {})
        if not siblings and (parent, lane.how) not in self._children:
            return exact  # nothing that was spawned so here left a trace: it may well have been there
        if name in siblings:
            return None
        old = self._renamed.get((parent, lane.how, name))
        if old is None:
            taken = {mapped for key, mapped in self._renamed.items() if key[:2] == (parent, lane.how)}
            gone = [sibling for sibling in siblings if sibling not in taken and not defines(sibling)]
            if not gone:
                return None
            old = max(
                gone,
                key=lambda sibling: (lane.number in siblings[sibling], SequenceMatcher(None, sibling, name).ratio()),
            )
            self._renamed[parent, lane.how, name] = old
        path = child_path(parent, lane.how, old, lane.number)
        return path if path in self.recorded else None


def _with_ancestors(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        while path:
            yield path
            path = split(path)[0]


def split(path: str) -> tuple[str, str, str, int]:
    """Parent path, how, name and number of a lane's path; the root has no how."""
    parent, _, last = path.rpartition("/")
    how, _, rest = last.partition(":")
    name, _, number = rest.rpartition("#")
    return (parent, how, name, int(number)) if parent and number.isdigit() else ("", "", path, 0)


def family(path: str) -> str:
    """What lanes of the same name share: how they were spawned, and the name of what was."""
    _, how, name, _ = split(path)
    return f"{how}:{name}"


_DEFINED: dict[str, frozenset[str]] = {}
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def defines(qualname: str) -> bool:
    """Whether the program's own source, as it is now, still defines this qualified name."""
    return any(qualname in names for names in map(_names_in, _own_files()))


def _own_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_LIBRARIES):
            yield file


def _names_in(file: str) -> frozenset[str]:
    names = _DEFINED.get(file)
    if names is None:
        try:
            code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            names = frozenset()
        else:
            names = frozenset(_qualnames(code))
        _DEFINED[file] = names
    return names


def _qualnames(code: CodeType) -> Iterator[str]:
    waiting = [code]
    while waiting:
        code = waiting.pop()
        yield code.co_qualname
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
