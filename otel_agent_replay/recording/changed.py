"""What a call has changed of what it was handed, told by what the codec writes of it before and after.

A call may put things into a dictionary that it is handed, append to a list, set attributes. What it was handed is
looked at before the call and once more after it. Which objects are the same ones as before is kept too, where it does
not follow from their places: a list that was put in the place of another one is not that one with other items.
"""

from __future__ import annotations

import array
import io
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import orjson

from otel_agent_replay.recording import codec, opaque
from otel_agent_replay.recording.allowed import ref
from otel_agent_replay.recording.building import builtin_base, get_state
from otel_agent_replay.recording.encoder import DEEPEST, HOLDS_ITSELF, Encoder, holds_tuple
from otel_agent_replay.recording.exact import dumps
from otel_agent_replay.recording.opaque import Opaque
from otel_agent_replay.recording.trees import HELD, Walk, is_value, of_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_agent_replay.recording.trees import LooksInto, Place
    from otel_agent_replay.recording.values import Json

OWN = "self"
"""What the object whose method is called stands under, beside what it is called with."""

MOST_LOOKED_INTO = 200_000
"""Values that objects which are no plain data may hold together; beyond, nobody looks whether they change."""

_OF_OUTCOME = frozenset(("known", "taken", "given"))

_FINGERPRINTS: dict[type, Callable[[Any], bytes]] = {
    array.array: lambda value: value.tobytes(),
    io.BytesIO: lambda value: b"%d " % value.tell() + value.getvalue(),
    io.StringIO: lambda value: f"{value.tell()} {value.getvalue()}".encode("utf-8", "surrogatepass"),
}
"""Of what cannot be written: by what it is seen whether it has changed."""


class Opener(Encoder):
    """Writes what `Encoder` writes, but for objects that are no plain data: those by what they hold.

    No repr is asked for, as that may be long or do something.
    """

    __slots__ = ("_looks_into", "fingerprints", "opened", "unwritten")

    def __init__(self, looks_into: LooksInto) -> None:
        super().__init__(strict=False)
        self._left = MOST_LOOKED_INTO
        self._looks_into = looks_into
        self.opened: dict[int, dict[str, Json]] = {}
        """What was written of each object that is no plain data, by its id."""
        self.unwritten: dict[int, str] = {}
        """Classes of what could not be written, by its id."""
        self.fingerprints: dict[int, bytes] = {}
        """The same of what can be seen to change, though it cannot be written."""

    @property
    def looked_at(self) -> int:
        """How many values were looked at one by one."""
        return MOST_LOOKED_INTO - self._left

    def refuse(self, value: object, why: str, *, look: bool = True) -> Json:
        self.refused += 1
        if why != HOLDS_ITSELF:
            self.unwritten[id(value)] = ref(type(value))
        fingerprint = _FINGERPRINTS.get(type(value))
        if fingerprint is not None and not (isinstance(value, io.IOBase) and value.closed):
            self.fingerprints[id(value)] = blake2b(fingerprint(value), digest_size=16).digest()
        return opaque.name_only(ref(type(value)), why)

    def _state(self, value: object) -> dict[str, object]:
        """What an object holds, without what passes itself off as another: to look at that may run code."""
        state = get_state(value)
        for name, held in state.items():
            if any("__class__" in vars(base) for base in type(held).__mro__[:-1]):
                self.unwritten[id(held)] = ref(type(held))
                state[name] = Opaque(ref(type(held)), f"<{ref(type(held))}>")
        return state

    def _structure(self, value: object, kind: type, depth: int) -> Json:
        written = super()._structure(value, kind, depth)
        if type(written) is not dict or written.get("$") != "opaque" or kind is Opaque:
            return written
        if depth >= DEEPEST or id(value) in self._around or id(value) in self.opened:
            return written
        node = of_value(value, self._looks_into)
        if node is None or not (node.kind == "defaultdict" or builtin_base(kind) is object):
            return written
        found: dict[str, Json] = {"$": HELD, "c": ref(kind)}
        if node.kind == "defaultdict":
            found = {"$": node.kind, "f": written}
        else:
            self.opened[id(value)] = found
            self.unwritten.pop(id(value), None)
        self._around.add(id(value))
        found["v"] = self.mapping(node.by_name() if node.kind == "defaultdict" else self._state(value), depth + 1)
        self._around.discard(id(value))
        return found


@dataclass(slots=True)
class Changes:
    """What a call has changed."""

    after: Json = None
    """All of what it was handed, as it was afterwards; of objects that are no plain data only what changed."""
    same: dict[str, Json] = field(default_factory=dict)
    """Which objects are which; see `identities` and `in_outcome`."""
    lost: list[tuple[str, bool]] = field(default_factory=list)
    """Classes of what cannot be put back, and whether the object whose method was called holds it."""


class Handed:
    """What a call is handed, as it is before the call. None of it is changed or kept beyond the call.

    Args:
        value: all of it.
        written: what `Encoder` wrote of it, where that is all that can be written.
        looks_into: which classes are looked into though they are no plain data.
        frozen: levels of `value` that nobody but us knows.
    """

    __slots__ = ("_before", "_frozen", "_looks_into", "_text", "_value", "_walk", "unseen")

    def __init__(self, value: object, written: Json, looks_into: LooksInto, frozen: int = -1) -> None:
        self._value = value
        self._looks_into = looks_into
        self._frozen = frozen
        self._walk = Walk(value, looks_into, frozen)
        self._before: Opener | None = None
        self._text = b""
        self.unseen = ""
        """Why nobody can see whether it changes; empty where it is seen."""
        if not self._walk.changeable:
            return
        before = Opener(looks_into)
        found = codec.encode(value, strict=False, by=before) if written is None else written
        self.unseen = _refused(found)
        if not self.unseen:
            self._before, self._text = before, _text(found)

    @property
    def size(self) -> int:
        """How many values were looked at one by one."""
        return 0 if self._before is None else self._before.looked_at

    @property
    def can_change(self) -> bool:
        """Whether there is anything in it that can change."""
        return self._before is not None

    def changes(self, outcome: object = None) -> Changes | None:
        """What the call has changed that gave `outcome`; None for nothing."""
        before = self._before
        if before is None:
            return None
        walk = Walk(self._value, self._looks_into)
        if walk.is_like(self._walk) and self._reads_the_same():
            same = in_outcome(self._walk, walk, self._looks_into, outcome)
            return Changes(None, same) if same else None
        opener = Opener(self._looks_into)
        after = codec.encode(self._value, strict=False, by=opener)
        if why := _refused(after):
            return Changes(lost=[(why, False)])
        same = {**identities(self._walk, walk), **in_outcome(self._walk, walk, self._looks_into, outcome)}
        found = Changes(None, same, [(kind, self._is_own(walk, key)) for key, kind in self._lost(before, opener)])
        if _text(after) != self._text or not same.keys() <= _OF_OUTCOME:
            found.after = after
            self._shorten(before, opener, walk, _around(same))
        return found if found.after is not None or found.same or found.lost else None

    def _shorten(self, before: Opener, after: Opener, walk: Walk, told: set[Place]) -> None:
        """Leave out of each object that is no plain data what has not changed, and what is not `told` of."""
        for key, written in after.opened.items():
            old, new = before.opened.get(key, {}).get("v"), written["v"]
            if isinstance(old, dict) and isinstance(new, dict) and "$" not in old and "$" not in new:
                place = walk.places[key]
                kept = {
                    name: held
                    for number, (name, held) in enumerate(new.items())
                    if name not in old or (*place, number) in told or _differ(old[name], held)
                }
                if len(kept) < len(new):
                    written["at"] = [number for number, name in enumerate(new) if name in kept]
                written["v"] = kept
                gone: list[Json] = [name for name in old if name not in new]
                if gone:
                    written["gone"] = gone
            elif key in self._walk.places:
                written["whole"] = 1

    def _reads_the_same(self) -> bool:
        """Whether all of it is sure to be written as before; cheap, where all of it is plain data.

        `marshal`, asked by `holds_tuple`, refuses what orjson writes as text, and a null may be a NaN.
        """
        try:
            if holds_tuple(self._value):
                return False
            return orjson.dumps(self._value) == self._text and b"null" not in self._text
        except (ValueError, TypeError):
            return False

    def _is_own(self, walk: Walk, key: int) -> bool:
        return self._frozen > 0 and walk.names().get(walk.places.get(key, ())[:1]) == OWN

    def _lost(self, before: Opener, after: Opener) -> Iterator[tuple[int, str]]:
        known = self._walk.places
        for key, kind in after.unwritten.items():
            if key in after.opened:
                continue
            if key not in known or after.fingerprints.get(key) != before.fingerprints.get(key, b"") != b"":
                yield key, kind
        for key, written in after.opened.items():
            if key not in known:
                yield key, str(written["c"])


def _refused(written: Json) -> str:
    """Why nothing at all was written; empty where something was."""
    return str(written["repr"]) if isinstance(written, dict) and written.get("$") == "opaque" else ""


def _around(same: dict[str, Json]) -> set[Place]:
    """Every place afterwards that is told of, and those around it."""
    found: set[Place] = set()
    for name in ("moved", "fresh", "same"):
        for row in cast("list[list[list[int]]]", same.get(name, [])):
            found.update(tuple(row[0][:length]) for length in range(len(row[0]) + 1))
    return found


def _text(written: Json) -> bytes:
    try:
        return orjson.dumps(written)
    except TypeError:
        return dumps(written).encode()


def _differ(one: Json, other: Json) -> bool:
    return one != other or _text(one) != _text(other)


def identities(before: Walk, after: Walk) -> dict[str, Json]:
    """Which objects are the same ones, where that does not follow from their places.

    ``moved`` has pairs of a place afterwards and one before, ``fresh`` places where a new object has taken the place of
    another, ``same`` pairs of two places afterwards.
    """
    found: dict[str, list[Json]] = {"moved": [], "fresh": [], "same": []}
    names, children = after.names(), before.children()
    for place, key in after.all():
        held = after.objects[after.places[key]]
        # what stood before in the same place of the same object
        expected = children.get((id(after.objects[place[:-1]]), names[place])) if place else key
        if key == expected or isinstance(held, frozenset):
            continue
        if key in before.places:
            found["moved"].append([list(place), list(before.places[key])])
        elif isinstance(held, tuple):
            continue  # what it holds has places of its own
        elif after.places[key] != place:
            found["same"].append([list(place), list(after.places[key])])
        elif expected is not None:
            found["fresh"].append([list(place)])
    return {name: places for name, places in found.items() if places}


def in_outcome(before: Walk, after: Walk, looks_into: LooksInto, outcome: object) -> dict[str, Json]:
    """Which parts of an outcome are parts of what the call was handed, as pairs of a place in it and another.

    ``known`` has a place before, ``taken`` one before of what is nowhere else any more, ``given`` one afterwards.
    """
    found: dict[str, list[Json]] = {}
    for name, place, known in _in_outcome(before, after, looks_into, outcome):
        found.setdefault(name, []).append([list(place), list(known)])
    return dict(found)


def _in_outcome(
    before: Walk, after: Walk, looks_into: LooksInto, outcome: object
) -> Iterator[tuple[str, Place, Place]]:
    todo: list[tuple[Place, Any]] = [((), outcome)]
    seen: set[int] = set()
    for place, part in todo:
        if is_value(part):
            continue
        node = of_value(part, looks_into)
        if not isinstance(part, tuple | frozenset):
            if id(part) in after.places:
                was = before.places.get(id(part))
                yield ("given", place, after.places[id(part)]) if was is None else ("known", place, was)
                continue
            if id(part) in before.places:
                yield "taken", place, before.places[id(part)]
        if node is not None and (isinstance(part, tuple) or id(part) not in seen):
            seen.add(id(part))
            todo += [((*place, number), held) for number, held in enumerate(node.parts)]
