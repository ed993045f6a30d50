"""Puts back what a call has changed of what it was handed: into the very same objects.

`changed` has told what they hold afterwards, and which objects are which. What is equal already stays untouched, so a
secret that is masked in the recording stays what the program has. What is new is made as the codec makes it; what
cannot be made is an `Opaque`, which fails where it is used.
"""

from __future__ import annotations

from collections import ChainMap
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_agent_replay.errors import UnreadableRecording
from otel_agent_replay.recording import canonical, codec
from otel_agent_replay.recording.allowed import ref
from otel_agent_replay.recording.decoder import Decoder
from otel_agent_replay.recording.filling import ATTRIBUTES, fill, fill_leaf, remove_attribute, replaced
from otel_agent_replay.recording.opaque import Opaque
from otel_agent_replay.recording.trees import HELD, Node, Walk, can_change, is_value, of_json, of_value
from otel_agent_replay.recording.variables import has_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_agent_replay.recording.trees import LooksInto, Place
    from otel_agent_replay.recording.values import Json
    from otel_agent_replay.recording.variables import Bindings

_ABSENT = object()

_MALFORMED = (RecursionError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class Lent:
    """What a call of a replay is handed, as it is before the call: all objects by their places."""

    def __init__(self, value: object, looks_into: LooksInto) -> None:
        self._value = value
        self._looks_into = looks_into
        self._walk = Walk(value, looks_into)

    def put_back(self, after: Json, same: Mapping[str, Json], allowed: Mapping[str, type], bound: Bindings) -> Restored:
        """Have it hold what it held when the call had ended, as recorded; `after` is None where that is nothing new.

        Raises:
            UnreadableRecording: it is not what `changed` gives.
        """
        known = {ref(type(held)): type(held) for held in self._walk.objects.values()}
        if after is None:
            return Restored(self._walk.objects, self._walk.objects, [], self._looks_into)
        decoder = Decoder(ChainMap(known, allowed))  # type: ignore[arg-type]  # it is only read
        try:
            restoring = _Restoring(self._walk, same, decoder, bound, self._looks_into)
            restoring.place(after, (), self._value, kept=True)
        except _MALFORMED as error:
            raise malformed(error) from error
        return Restored(self._walk.objects, restoring.placed, restoring.failed, self._looks_into)


def malformed(error: Exception) -> UnreadableRecording:
    """What is raised where a recording says what cannot be."""
    why = f"{type(error).__name__}: {error}"[:200]
    return UnreadableRecording("What a call has changed", why, "it was changed on its way, so record the run again")


class Restored:
    """What a call was handed, with what it has changed."""

    def __init__(
        self,
        before: Mapping[Place, object],
        placed: Mapping[Place, object],
        failed: list[str],
        looks_into: LooksInto,
    ) -> None:
        self._before = before
        self._placed = placed
        self._looks_into = looks_into
        self.failed = failed
        """Classes of objects that could not be made to hold what was recorded."""

    def given(self, outcome: object, same: Mapping[str, Json]) -> object:
        """An outcome, its parts that are, or were, parts of what the call was handed being those very objects."""
        try:
            for place, known in _pairs(same.get("given")):
                if known in self._placed:  # else it was masked
                    outcome = self._graft(outcome, place, partial(_that, self._placed[known]))
            for place, known in _pairs(same.get("known")):
                if known in self._before:
                    outcome = self._graft(outcome, place, partial(_that, self._before[known]))
            for place, known in reversed(_pairs(same.get("taken"))):
                if known in self._before:
                    outcome = self._graft(outcome, place, partial(self._like, self._before[known]))
        except _MALFORMED as error:
            raise malformed(error) from error
        return outcome

    def _like(self, there: Any, part: object) -> object:
        """What was handed and stands nowhere any more, with what it holds now."""
        now, node = of_value(there, self._looks_into), of_value(part, self._looks_into)
        if now is not None and node is not None and _alike(node, now):
            fill(there, now, node.names, node.parts)
        elif can_change(there, now) and type(part) is type(there):
            fill_leaf(there, part)
        return there

    def _graft(self, whole: Any, place: Place, put: Callable[[Any], object]) -> object:
        if not place:
            return put(whole)
        node = of_value(whole, self._looks_into)
        if node is None or place[0] >= len(node.parts):
            return whole
        return replaced(whole, node, place[0], self._graft(node.parts[place[0]], place[1:], put))


def _that(known: object, _: object) -> object:
    return known


class _Restoring:
    """One restoration."""

    def __init__(
        self, walk: Walk, same: Mapping[str, Json], decoder: Decoder, bound: Bindings, looks_into: LooksInto
    ) -> None:
        self._before = walk.objects
        self._decoder = decoder
        self._bound = bound
        self._looks_into = looks_into
        self._moved = dict(_pairs(same.get("moved")))
        self._same = dict(_pairs(same.get("same")))
        fresh = same.get("fresh")
        self._fresh = {_place(one[0]) for one in fresh if isinstance(one, list)} if isinstance(fresh, list) else set()
        self.placed: dict[Place, object] = {}
        self.failed: list[str] = []

    def place(self, found: Json, place: Place, there: Any, *, kept: bool = False) -> object:
        """What is to stand at a place where `found` was recorded and `there` stands now.

        `kept` if it must be that very object.
        """
        if place in self._same and self._same[place] in self.placed:
            return self.placed[self._same[place]]
        if place in self._moved:
            moved = self._before.get(self._moved[place], _ABSENT)
            there, kept = (there, kept) if moved is _ABSENT else (moved, True)
        elif place in self._fresh:
            there = _ABSENT
        node = of_json(found, self._decoder)
        if node is None:
            held = self._leaf(found, there, kept=kept)
            self.placed[place] = held
            return held
        now = None if there is _ABSENT else of_value(there, self._looks_into)
        if now is None or not _alike(node, now):
            if kept:
                self.failed.append(ref(type(there)))
                return there
            there, now = self._made(found, node)
            if now is None:
                return there
        self.placed[place] = there
        held = self._fill(found, node, place, there, now)
        self.placed[place] = held
        return held

    def _leaf(self, found: Json, there: Any, *, kept: bool) -> object:
        """What stands for a value that has no parts."""
        if isinstance(found, dict) and found.get("$") == "opaque":
            return self._decoder.decode(found) if there is _ABSENT or is_value(there) else there
        if there is not _ABSENT and self._equal(found, there):
            return there
        wanted = self._decoder.decode(found)
        if there is _ABSENT or not can_change(there, None):
            return wanted
        try:
            done = fill_leaf(there, wanted)
        except _MALFORMED:
            done = False
        if done:
            return there
        if kept:
            self.failed.append(ref(type(there)))
            return there
        return wanted

    def _equal(self, found: Json, there: object) -> bool:
        """Whether a living value is what was recorded, as far as its masked parts let know."""
        if type(there) in _SCALARS:
            if type(found) is type(there) and found == there and (found != 0 or str(found) == str(there)):
                return True  # and no other zero
            if not (isinstance(found, str) and has_token(found)) and not isinstance(found, dict):
                return False
        return canonical.same_value(found, codec.encode(there, strict=False), self._bound.copy())

    def _made(self, found: Json, node: Node) -> tuple[Any, Node | None]:
        """A new object, with its parts; without them where its class is not known here."""
        made = self._decoder.decode(found)
        now = of_value(made, self._looks_into)
        if now is not None and _alike(node, now):
            return made, now
        if node.cls and not isinstance(made, Opaque):
            made = Opaque(node.cls, f"<{node.cls}, a class that cannot be found here>")
        return made, None

    def _fill(self, found: Any, node: Node, place: Place, there: Any, now: Node) -> object:
        known = now.by_name()
        numbers = found["at"] if node.kind == HELD and "at" in found else range(len(node.parts))
        parts = [
            self.place(part, (*place, number), known.get(name, _ABSENT))
            for number, name, part in zip(numbers, node.names, node.parts, strict=True)
        ]
        names = node.names
        if node.kind == HELD:  # only what has changed was recorded
            changed = dict(zip(names, parts, strict=True))
            gone = [name for name in now.names if name not in changed] if "whole" in found else found.get("gone", ())
            for name in gone:
                remove_attribute(there, str(name))
            still = [name for name in now.names if name not in gone]
            now = Node(now.kind, now.cls, still, [known[name] for name in still])
            names = [*still, *(name for name in changed if name not in known)]
            parts = [changed[name] if name in changed else known[name] for name in names]
        filled = fill(there, now, names, parts)
        if node.kind == "pydantic":
            wanted = {str(name) for name in found.get("set", found["v"])}
            fill_leaf(there.__pydantic_fields_set__, wanted)
        return filled


_SCALARS = (str, int, float, bool, type(None))


def _alike(node: Node, now: Node) -> bool:
    """Whether an object can be filled with what was recorded."""
    if node.kind in ATTRIBUTES:
        return now.kind in ATTRIBUTES and node.cls == now.cls
    return node.kind == now.kind and node.cls == now.cls


def _place(found: Json) -> Place:
    return tuple(number for number in found if isinstance(number, int)) if isinstance(found, list) else ()


def _pairs(found: Json) -> list[tuple[Place, Place]]:
    rows = found if isinstance(found, list) else []
    return [(_place(row[0]), _place(row[1])) for row in rows if isinstance(row, list) and len(row) == 2]
