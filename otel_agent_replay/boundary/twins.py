"""Built-in functions: a second object of one, and one whose every holder calls something else.

A program may hold a built-in function where no patch of an attribute reaches it: as a default factory of a class,
in a `functools.partial`, a closure, inside a library in C or Rust. All of them hold one object, so that object is
changed: its record of what it calls names another C function, one of Python's own that calls a Python function. The
object stays what it was in every other regard: its identity, name, documentation, and how it is pickled. Its hash
changes, so one that is the key of some dictionary is left alone.

Whoever changes a function keeps a twin of it from before, which is the function as it was.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import sys
from types import BuiltinFunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

F = TypeVar("F", bound="Callable[..., Any]")

_NO_ARGUMENTS: Final = 0x04
_BINDING: Final = 0x10 | 0x20
"""Flags that say how a function is bound, not how it is called."""
_CALLS: Final = {
    0x01: "PyObject_CallObject",
    0x01 | 0x02: "PyObject_Call",
    _NO_ARGUMENTS: "PyObject_CallNoArgs",
    0x08: "PyObject_CallOneArg",
    0x80 | 0x02: "PyObject_Vectorcall",
}
"""By how a built-in function is called: the function of Python's own that is called alike, and calls an object."""


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_void_p),
    )


class _Function(ctypes.Structure):
    """`PyCFunctionObject` after its head, as far as it matters; both are written at once."""

    _fields_ = (("called", ctypes.c_void_p * 2),)


def twin(function: F) -> F:
    """Another object for a built-in function or bound method; the same one where there can be no other."""
    if _method_of(function) is None:
        return function
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object], ctypes.py_object
    made: F = make(_of(function).called[0], function.__self__, function.__module__)  # type: ignore[attr-defined]
    _twins.append(made)
    return made


_twins: list[Any] = []
"""All of them: they are ours, and nobody's to redirect."""


def bound_methods(classes: Iterable[type], names: Iterable[str]) -> list[Any]:
    """Built-in class methods of these names that somebody holds bound to one of these classes, or a subclass."""
    wanted, known, ours = frozenset(names), list(classes), {id(one) for one in _twins}
    for cls in known:
        subclasses: list[type] = type.__subclasses__(cls)
        known += [below for below in subclasses if below not in known]
    return [
        found
        for found in gc.get_referrers(*known)
        if type(found) is BuiltinFunctionType
        and found.__name__ in wanted
        and found.__self__ in known
        and id(found) not in ours
    ]


def redirect(pairs: Iterable[tuple[Any, Callable[..., Any]]]) -> Callable[[], None]:
    """Have built-in functions call others. Gives what undoes it.

    Args:
        pairs: each a built-in function of a module, and a function that is called with something to ignore and the
            arguments; or a built-in class method that is bound, and a function that is called with the class
            and the arguments. What cannot be redirected is passed over.
    """
    changed: list[tuple[Any, Any, Any]] = []
    found = [(function, replacement) for function, replacement in pairs if _method_of(function) is not None]
    keys = _keys([function for function, _ in found])
    for function, replacement in found:
        if id(function) not in keys:
            changed.append((function, *_change(function, replacement)))

    def undo() -> None:
        keys = _keys([function for function, _, _ in changed])
        for function, before, stand in changed:
            if id(function) not in keys:
                _of(function).called = before
                _count(ctypes.pythonapi.Py_DecRef, stand)
        changed.clear()

    return undo


def _change(function: Any, replacement: Callable[..., Any]) -> tuple[Any, Any]:
    method = _method_of(function)
    assert method is not None
    call = getattr(ctypes.pythonapi, _CALLS[method.flags & ~_BINDING])
    address = ctypes.cast(call, ctypes.c_void_p).value
    changed = _Method(method.name, address, method.flags, method.documentation)
    _kept.append(changed)
    stand = _stand_for(function.__self__, replacement)
    record = _of(function)
    before = (ctypes.c_void_p * 2)(*record.called)
    _count(ctypes.pythonapi.Py_IncRef, stand)  # the function owns it now; what it owned is kept for the way back
    record.called = (ctypes.c_void_p * 2)(ctypes.addressof(changed), id(stand))
    return before, stand


_kept: list[_Method] = []
"""Records that functions name. They are never given up: another thread may be about to call one."""


def _stand_for(owner: Any, replacement: Callable[..., Any]) -> Any:
    """What a function is bound to in place of its owner: looks like it, but can be called."""
    if isinstance(owner, ModuleType):
        made = type("module", (ModuleType,), {"__call__": replacement})(owner.__name__, owner.__doc__)
        made.__dict__.update(owner.__dict__)
        return made
    names = {"__call__": MethodType(replacement, owner), "__reduce__": lambda _: (copy.copy, (owner,))}
    return type("type", (), names)()


def _keys(functions: list[Any]) -> set[int]:
    """The ids of those that are keys of a dictionary or members of a set, which go by their hash."""
    found: set[int] = set()
    wanted = {id(function) for function in functions}
    for holder in gc.get_referrers(*functions) if functions else ():
        if isinstance(holder, dict | set | frozenset):
            found.update(id(key) for key in list(holder) if id(key) in wanted)
    return found


def _of(function: Any) -> _Function:
    return _Function.from_address(id(function) + object.__basicsize__)


def _method_of(function: Any) -> _Method | None:
    """The record of what a built-in function calls; None where it is none, or is not as it is known to be."""
    if sys.implementation.name != "cpython" or type(function) is not BuiltinFunctionType:
        return None
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    method, owner = _of(function).called
    if owner != id(function.__self__):
        return None
    found = _Method.from_address(method)
    known = found.name == function.__name__.encode() and found.flags & ~_BINDING in _CALLS
    return found if known else None


def _count(change: Any, value: object) -> None:
    change.argtypes, change.restype = [ctypes.py_object], None
    change(value)
