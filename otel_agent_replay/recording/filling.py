"""How an object is made to hold other parts, in place and without any code of its class."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from otel_agent_replay.recording.building import build_derived, builtin_base, set_state, slots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_agent_replay.recording.trees import Node

_ABSENT = object()

ATTRIBUTES = frozenset(("data", "object", "held"))
"""Kinds whose parts are attributes."""


def fill(value: Any, now: Node, names: list[Any], parts: list[Any]) -> object:
    """Have `value`, which consists of `now`, consist of these parts. Gives it, or another where it cannot change.

    Raises TypeError or AttributeError where it cannot be filled.
    """
    same = len(parts) == len(now.parts) and all(new is old for new, old in zip(parts, now.parts, strict=True))
    if same and names == now.names:
        return value
    if now.kind == "derived":
        return _fill_derived(value, now, names, parts)
    if now.kind == "pydantic":
        _fill_model(value, names, parts)
    elif now.kind in ATTRIBUTES or now.kind == "namespace":
        _fill_attributes(value, dict(zip(names, parts, strict=True)), set(now.names) - set(names))
    elif now.kind == "tuple":
        return tuple(parts)
    else:
        _FILLERS[now.kind](value, names, parts)
    return value


def _fill_mapping(base: type) -> Callable[[Any, list[Any], list[Any]], None]:
    made: Any = base

    def put(value: Any, names: list[Any], parts: list[Any]) -> None:
        known = {key: key for key in made.keys(value)}  # the keys that are there stay the same objects
        keys = [known.get(name, name) for name in names]
        wanted = set(keys)
        for key in known:
            if key not in wanted:
                made.__delitem__(value, key)
        left = [key for key in known if key in wanted]
        if keys[: len(left)] != left:
            made.clear(value)
        for key, part in zip(keys, parts, strict=True):
            if made.get(value, key, _ABSENT) is not part:
                made.__setitem__(value, key, part)

    return put


def _fill_list(value: Any, _: object, parts: list[Any]) -> None:
    first = 0
    for old, new in zip(list.__iter__(value), parts, strict=False):
        if old is not new:
            break
        first += 1
    list.__setitem__(value, slice(first, None), parts[first:])


def _fill_deque(value: Any, _: object, parts: list[Any]) -> None:
    deque.clear(value)
    deque.extend(value, parts)


def _fill_attributes(value: Any, state: dict[str, Any], gone: Iterable[str]) -> None:
    set_state(value, state)
    for name in gone:
        remove_attribute(value, name)


def remove_attribute(value: Any, name: str) -> None:
    """Take an attribute away, if it is there."""
    slot = slots_of(type(value)).get(name)
    if slot is None:
        getattr(value, "__dict__", {}).pop(name, None)
    elif getattr(value, name, _ABSENT) is not _ABSENT:
        slot.__delete__(value)


def _fill_model(model: Any, names: list[Any], parts: list[Any]) -> None:
    held: dict[str, dict[str, Any]] = {"v": {}, "x": {}, "p": {}}
    for (where, name), part in zip(names, parts, strict=True):
        held[where][name] = part
    for where, attribute in (("v", "__dict__"), ("x", "__pydantic_extra__"), ("p", "__pydantic_private__")):
        there = getattr(model, attribute, None)
        if there is not None:
            _fill_dict(there, list(held[where]), list(held[where].values()))
        elif held[where]:
            object.__setattr__(model, attribute, held[where])


def _fill_derived(value: Any, now: Node, names: list[Any], parts: list[Any]) -> object:
    inner = [(name, part) for (where, name), part in zip(names, parts, strict=True) if where == "i"]
    state = {name: part for (where, name), part in zip(names, parts, strict=True) if where == "d"}
    base: Any = builtin_base(type(value))
    keys, held = [name for name, _ in inner], [part for _, part in inner]
    if base in (list, dict, OrderedDict):
        _FILLERS[base.__name__.lower().replace("ordered", "o")](value, keys, held)
    elif base in (set, bytearray):
        fill_leaf(value, held[0])
    else:
        before = [part for (where, _), part in zip(now.names, now.parts, strict=True) if where == "i"]
        if len(before) != len(held) or any(new is not old for new, old in zip(held, before, strict=True)):
            value = build_derived(type(value), tuple(held) if base is tuple else held[0])
    gone = {name for where, name in now.names if where == "d"} - state.keys()
    _fill_attributes(value, state, gone)
    return value


def fill_leaf(value: Any, wanted: Any) -> bool:
    """Have a set, bytearray or array hold what another holds. Whether it could be done."""
    if isinstance(value, set) and isinstance(wanted, set):
        set.intersection_update(value, wanted)
        set.update(value, wanted)
    elif isinstance(value, bytearray) and isinstance(wanted, bytearray):
        bytearray.__setitem__(value, slice(None), wanted)
    elif getattr(value, "shape", None) == getattr(wanted, "shape", ()) and value.dtype == wanted.dtype:
        if not value.flags.writeable:
            return False
        value[...] = wanted
    else:
        return False
    return True


_fill_dict = _fill_mapping(dict)

_FILLERS: dict[str, Callable[[Any, list[Any], list[Any]], None]] = {
    "dict": _fill_dict,
    "defaultdict": _fill_dict,
    "odict": _fill_mapping(OrderedDict),
    "list": _fill_list,
    "deque": _fill_deque,
}


def replaced(value: Any, now: Node, number: int, part: object) -> object:
    """`value` with another part in one place."""
    parts: Sequence[Any] = now.parts
    return fill(value, now, now.names, [part if index == number else held for index, held in enumerate(parts)])
