"""The parts of a value, seen in two ways that agree: in what the codec wrote of it, and in the living object.

Both give the same parts, under the same names and in the same order, so that a place in one is a place in the other. A
place is told by numbers, the how-manyth part at each level: names may hold data, which must not stand anywhere but
where it is masked.
"""

from __future__ import annotations

import array
import datetime as dt
import io
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from otel_agent_replay.recording import foreign
from otel_agent_replay.recording.allowed import ref
from otel_agent_replay.recording.building import PLAIN, builtin_base, get_state, holds_no_more, is_record, is_small
from otel_agent_replay.recording.opaque import Opaque

if TYPE_CHECKING:
    from otel_agent_replay.recording.decoder import Decoder
    from otel_agent_replay.recording.values import Json

Place: TypeAlias = tuple[int, ...]
"""Where a part stands: the how-manyth part at each level; empty for the whole."""

LooksInto: TypeAlias = Callable[[type], bool]
"""Whether objects of a class that is no plain data are looked into all the same."""

HELD = "held"
"""The tag of an object that is no plain data, by what it holds: it cannot be made anew, only filled."""

_IMMUTABLE = frozenset(
    (
        str, int, float, bool, type(None), bytes, complex, range, slice, type(...), type(NotImplemented),
        Decimal, Fraction, UUID, dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone,
    )
)  # fmt: skip
"""Values of which nobody can tell one from an equal one."""

_LEAVES = (Opaque, Enum, type, BaseException, dt.tzinfo, PurePath)
"""Objects that are taken whole."""


@dataclass(slots=True)
class Node:
    """What a value consists of."""

    kind: str
    """A tag of the codec; ``list``, ``dict`` and ``held`` beside them."""
    cls: str
    """Reference to the class, where it is no builtin one."""
    names: list[Any]
    """What each part is called in the whole: a number, a key, the name of an attribute."""
    parts: list[Any]

    def by_name(self) -> dict[Any, Any]:
        """The parts by their names."""
        return dict(zip(self.names, self.parts, strict=True))


def is_value(part: object) -> bool:
    """Whether a part is a mere value, which has no identity."""
    return type(part) in _IMMUTABLE or issubclass(type(part), (Enum, type, PurePath))


# -- what was written --------------------------------------------------------------------------------------


def of_json(found: Json, decoder: Decoder) -> Node | None:
    """The parts of what was written; None where it is a leaf. Raises ValueError, TypeError or LookupError."""
    if isinstance(found, list):
        return Node("list", "", list(range(len(found))), found)
    if not isinstance(found, dict):
        return None
    tag = found.get("$")
    if tag is None or tag == "map":
        return Node("dict", "", *_pairs(found, decoder))
    read: Any = _WRITTEN.get(tag) if isinstance(tag, str) else None
    return None if read is None else read(found, decoder)


def _pairs(found: Any, decoder: Decoder) -> tuple[list[Any], list[Any]]:
    if "$" not in found:
        return list(found), list(found.values())
    return [decoder.decode(key) for key in found["v"][::2]], found["v"][1::2]


def _row(found: dict[str, Any], _: Decoder) -> Node:
    return Node(found["$"], "", list(range(len(found["v"]))), found["v"])


def _ordered(found: dict[str, Any], decoder: Decoder) -> Node:
    return Node("odict", "", [decoder.decode(key) for key in found["v"][::2]], found["v"][1::2])


def _mapping(found: dict[str, Any], decoder: Decoder) -> Node:
    return Node(found["$"], found.get("c", ""), *_pairs(found["v"], decoder))


def _model(found: dict[str, Any], decoder: Decoder) -> Node:
    node = Node("pydantic", found["c"], [], [])
    for where in ("v", "x", "p"):
        if where in found:
            names, parts = _pairs(found[where], decoder)
            node.names += [(where, name) for name in names]
            node.parts += parts
    return node


def _derived(found: dict[str, Any], decoder: Decoder) -> Node:
    inner = of_json(found["v"], decoder) or Node("", "", [""], [found["v"]])
    node = Node("derived", found["c"], [("i", name) for name in inner.names], list(inner.parts))
    if "d" in found:
        names, parts = _pairs(found["d"], decoder)
        node.names += [("d", name) for name in names]
        node.parts += parts
    return node


_WRITTEN: dict[str, Callable[[dict[str, Any], Decoder], Node]] = {
    "tuple": _row,
    "deque": _row,
    "odict": _ordered,
    "defaultdict": _mapping,
    "namespace": _mapping,
    "data": _mapping,
    "object": _mapping,
    HELD: _mapping,
    "pydantic": _model,
    "derived": _derived,
}


# -- what lives --------------------------------------------------------------------------------------------


def of_value(value: Any, looks_into: LooksInto) -> Node | None:
    """The parts of a living object; None where it is a leaf."""
    kind = type(value)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        found = {dict: "dict", OrderedDict: "odict", defaultdict: "defaultdict"}[kind]
        return Node(found, "", list(value), list(value.values()))
    if kind is list or kind is tuple or kind is deque:
        parts = list(value)
        return Node(kind.__name__, "", list(range(len(parts))), parts)
    if kind in _IMMUTABLE or issubclass(kind, _LEAVES):  # an object's own `__class__` may run code
        return None
    if kind is SimpleNamespace:
        return Node("namespace", "", list(vars(value)), list(vars(value).values()))
    if foreign.is_model(value):
        return _of_model(value)
    base = builtin_base(kind)
    if base is object:
        return _of_object(value, kind, looks_into)
    return _of_derived(value, kind, base) if base in PLAIN and base is not kind else None


def _of_object(value: object, kind: type, looks_into: LooksInto) -> Node | None:
    state = get_state(value)
    if is_record(kind):
        tag = "data"
    elif is_small(state) and holds_no_more(value):
        tag = "object"
    elif looks_into(kind):
        tag = HELD
    else:
        return None
    return Node(tag, ref(kind), list(state), list(state.values()))


def _of_model(model: Any) -> Node:
    node = Node("pydantic", ref(type(model)), [], [])
    private = getattr(model, "__pydantic_private__", None)
    for where, held in (("v", vars(model)), ("x", model.__pydantic_extra__), ("p", private)):
        for name, part in (held or {}).items():
            node.names.append((where, name))
            node.parts.append(part)
    return node


def _of_derived(value: Any, kind: type, base: type) -> Node:
    plain: Any = PLAIN[base](value)
    inner = of_value(plain, _nothing) or Node("", "", [""], [plain])
    state = get_state(value)
    names = [("i", name) for name in inner.names] + [("d", name) for name in state]
    return Node("derived", ref(kind), names, [*inner.parts, *state.values()])


def _nothing(_: type) -> bool:
    return False


UNWRITABLE = (array.array, io.BytesIO, io.StringIO)
"""Builtin classes that the codec cannot write, but of which it can be seen that they have changed."""

MUTABLE_LEAVES = (set, bytearray)
"""Builtin classes of leaves that can be changed in place."""


def can_change(value: object, node: Node | None) -> bool:
    """Whether a part can become another by itself, in a way that is seen."""
    if node is not None:
        return node.kind != "tuple"
    return isinstance(value, MUTABLE_LEAVES) or foreign.is_array(value)


class Walk:
    """The objects that a value consists of, each by its place; one that stands in several by the first.

    All of them are kept alive, so that no id means another one meanwhile.
    """

    __slots__ = ("_parts", "again", "changeable", "objects", "places")

    def __init__(self, value: object, looks_into: LooksInto, frozen: int = -1) -> None:
        """Walk through `value`; what stands `frozen` levels below the top, or higher, does not count as changeable."""
        self.objects: dict[Place, object] = {}
        self.places: dict[int, Place] = {}
        self.again: list[tuple[Place, int]] = []
        """Further places of what stands in several, and its id."""
        self.changeable = False
        self._parts: dict[int, list[tuple[int, Any, Any]]] = {}
        """By the id of an object: number, name and part, of the parts that are no mere values."""
        objects, places = self.objects, self.places
        todo: list[tuple[Place, Any]] = [((), value)]
        while todo:  # in the order in which they are written: what is around a part first, then the parts before it
            place, whole = todo.pop()
            key = id(whole)
            if key in places:
                self.again.append((place, key))
                continue
            objects[place] = whole
            places[key] = place
            kind = type(whole)
            if kind is dict or kind is list:  # nearly all are, and hold mere values
                self.changeable = self.changeable or len(place) > frozen
                if _IMMUTABLE.issuperset(map(type, whole.values() if kind is dict else whole)):
                    continue
            elif not self.changeable and len(place) > frozen:
                self.changeable = can_change(whole, of_value(whole, looks_into)) or isinstance(whole, UNWRITABLE)
            node = of_value(whole, looks_into)
            if node is not None:
                named = enumerate(zip(node.names, node.parts, strict=True))
                parts = [(number, name, part) for number, (name, part) in named if not is_value(part)]
                self._parts[key] = parts
                todo += [((*place, number), part) for number, _, part in reversed(parts)]

    def names(self) -> dict[Place, Any]:
        """What stands at each place is called so in the object around it."""
        return {
            (*place, number): name for key, place in self.places.items() for number, name, _ in self._parts.get(key, ())
        }

    def children(self) -> dict[tuple[int, Any], int]:
        """By the id of an object and the name of a part of it: the id of the part."""
        return {(key, name): id(part) for key, parts in self._parts.items() for _, name, part in parts}

    def is_like(self, other: Walk) -> bool:
        """Whether the same objects stand in the same places."""
        return self.places == other.places and self.again == other.again

    def all(self) -> Iterator[tuple[Place, int]]:
        """Every place of an object, and the object's id."""
        yield from ((place, id(held)) for place, held in self.objects.items())
        yield from self.again
