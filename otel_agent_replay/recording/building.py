"""How an object is taken apart and made again without running any code of its class."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_IS_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: made at run time, as every class written in Python is."""


def can_be_built(cls: type) -> bool:
    """Whether an object of this class may be made from a recording: nothing of it runs when it goes away."""
    return not any("__del__" in vars(base) for base in cls.__mro__)


PLAIN: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes(memoryview(value)),
    bytearray: lambda value: bytearray(memoryview(value)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    list: lambda value: list.__getitem__(value, slice(None)),
    dict: lambda value: dict(dict.items(value)),
    OrderedDict: lambda value: OrderedDict(OrderedDict.items(value)),
    set: lambda value: {*set.__iter__(value)},
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""Builtin classes that others are built on, each with what gives the builtin part of such an object, without
the methods that the other class may have put in the way."""


FACTORIES = frozenset({*PLAIN, bool, complex, defaultdict})
"""What a recorded defaultdict may make."""


_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
_OWN_STATE = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def is_record(cls: type) -> bool:
    """Whether the class says itself what its objects hold: a dataclass, or one of attrs."""
    return is_dataclass(cls) or hasattr(cls, "__attrs_attrs__")


def is_small(state: Mapping[str, object]) -> bool:
    """Whether an object with this state holds something, and strings, numbers and the like only: surely plain data."""
    return bool(state) and all(type(held) in _SCALARS for held in state.values())


def holds_no_more(value: object) -> bool:
    """Whether `get_state` gives all that an object of an ordinary class holds: nothing of it is kept in C."""
    if any(name in vars(base) for base in type(value).__mro__[:-1] for name in _OWN_STATE):
        return False
    try:
        object.__reduce_ex__(value, 2)
    except TypeError:
        return False
    return True


def builtin_base(cls: type) -> type:
    """The builtin class that objects of `cls` are at heart: `object`, one of PLAIN, or another one written in C."""
    for base in cls.__mro__:
        if base in PLAIN or not base.__flags__ & _IS_HEAP_TYPE:
            return base
    return object


def _fill_mapping(made: Any, values: Mapping[object, object]) -> None:
    put = (OrderedDict if builtin_base(type(made)) is OrderedDict else dict).__setitem__
    for key, value in values.items():
        put(made, key, value)


_FILL: dict[type, Callable[[Any, Any], object]] = {
    list: list.extend,
    set: set.update,
    bytearray: bytearray.extend,
    dict: _fill_mapping,
    OrderedDict: _fill_mapping,
}


def build_derived(cls: type, plain: Any) -> object:
    """An object of a class built on a builtin one, from its builtin part."""
    base: Any = builtin_base(cls)
    if base not in _FILL:
        return base.__new__(cls, plain)
    made = base.__new__(cls)
    _FILL[base](made, plain)
    return made


def get_state(value: object) -> dict[str, object]:
    """What an object holds in its ``__dict__`` and its slots, read without its own code."""
    state: dict[str, object] = {}
    for name, slot in slots_of(type(value)).items():
        try:
            state[name] = slot.__get__(value)
        except AttributeError:
            continue  # an empty slot
    state.update(getattr(value, "__dict__", {}))
    return state


def set_state(value: object, state: Mapping[str, object]) -> None:
    """The inverse. What has neither a slot nor a ``__dict__`` to go to is left out."""
    slots = slots_of(type(value))
    attributes = getattr(value, "__dict__", None)
    for name, held in state.items():
        if name in slots:
            slots[name].__set__(value, held)
        elif attributes is not None:
            attributes[name] = held


def slots_of(cls: type) -> dict[str, types.MemberDescriptorType]:
    """The slots that Python classes in the ancestry of `cls` declare."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }
