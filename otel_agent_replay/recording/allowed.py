"""Which classes a recorded value may come back as.

A recording only names classes. It is never asked which module to import: a name means a class that the recorded
function could see in this process, or an exception of the standard library.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_STANDARD = (
    "builtins",
    "asyncio.exceptions",
    "asyncio.queues",
    "concurrent.futures._base",
    "concurrent.futures.process",
    "concurrent.futures.thread",
    "configparser",
    "csv",
    "decimal",
    "email.errors",
    "http.client",
    "json.decoder",
    "queue",
    "shutil",
    "socket",
    "sqlite3",
    "ssl",
    "struct",
    "subprocess",
    "urllib.error",
    "xml.etree.ElementTree",
    "zlib",
    "zoneinfo._common",
)
"""Modules of the standard library whose exceptions may always come back."""

_CLIENTS = (
    "aiohttp.client_exceptions",
    "botocore.exceptions",
    "h11._util",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "requests.exceptions",
    "urllib3.exceptions",
)
"""Modules of clients whose exceptions may come back where the program has imported them: tools raise them, and they
are the causes of each other."""

_ALIASES = {"_queue": "queue", "_ssl": "ssl", "_csv": "csv"}
"""What some of them call themselves."""

MOST_CLASSES = 20_000
"""A function that sees more classes sees only so many of them."""


def ref(cls: type) -> str:
    """How a class is named in a recording: ``module:qualname``."""
    return f"{cls.__module__}:{cls.__qualname__}"


@functools.cache
def standard_error(name: str) -> type[BaseException] | None:
    """An exception of the standard library by its reference, or None."""
    module_name, _, qualname = name.partition(":")
    module_name = _ALIASES.get(module_name, module_name)
    if module_name not in _STANDARD or "." in qualname:
        return None
    try:
        found = getattr(importlib.import_module(module_name), qualname, None)
    except ImportError:  # a build of Python without sqlite3, say
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def client_error(name: str) -> type[BaseException] | None:
    """An exception of a well-known client that the program has imported, by its reference, or None."""
    module_name, _, qualname = name.partition(":")
    found = getattr(sys.modules.get(module_name), qualname, None) if module_name in _CLIENTS else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


class Allowed(Mapping[str, type]):
    """Classes by reference, looked for when the first one is asked for."""

    def __init__(self, find: Callable[[], Iterable[type]]) -> None:
        self._find: Callable[[], Iterable[type]] | None = find
        self._classes: dict[str, type] = {}

    def _all(self) -> dict[str, type]:
        find = self._find
        if find is not None:
            self._classes = {ref(cls): cls for cls in find()}
            self._find = None
        return self._classes

    def __getitem__(self, name: str) -> type:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def allowed_from(function: Callable[..., object], types: Iterable[type] = ()) -> Mapping[str, type]:
    """The classes that `function` can see, and `types`, each with those that its fields are annotated with.

    That is: classes in its module and in the modules that it or what it imports from lives in, in its closure,
    in its annotations, and the class that it is a method of. Nothing is looked up before a class is asked for.
    """
    given = tuple(types)

    def find() -> list[type]:
        found: dict[type, None] = dict.fromkeys(given)
        for cls in _visible(function):
            if len(found) >= MOST_CLASSES:
                break
            found[cls] = None
        for cls in list(found):
            _add_fields(cls, found)
        return list(found)

    return Allowed(find)


def _visible(function: Callable[..., object]) -> Iterator[type]:
    for part in _unwrapped(function):
        if isinstance(part, type):
            yield part
            continue
        if isinstance(part, types.MethodType):
            owner = part.__self__ if isinstance(part.__self__, type) else type(part.__self__)
            yield from owner.__mro__
            part = part.__func__
        code_holder = inspect.unwrap(part) if callable(part) else part
        if not isinstance(code_holder, types.FunctionType):
            yield from type(part).__mro__
            code_holder = inspect.getattr_static(type(part), "__call__", None)
        if isinstance(code_holder, types.FunctionType):
            yield from _from_function(code_holder)


def _unwrapped(function: object) -> Iterator[object]:
    """A partial and what it calls."""
    for _ in range(32):
        yield function
        if not isinstance(function, functools.partial):
            return
        yield from (argument for argument in function.args if isinstance(argument, type))
        function = function.func


def _from_function(function: types.FunctionType) -> Iterator[type]:
    yield from _annotated(function)
    for cell in function.__closure__ or ():
        try:
            yield from _classes_in(cell.cell_contents)
        except ValueError:
            continue  # an empty cell
    space = function.__globals__
    outer: object = space.get(function.__qualname__.partition(".")[0])
    if isinstance(outer, type):
        yield outer
        yield from (inner for inner in vars(outer).values() if isinstance(inner, type))
    for value in list(space.values()):
        yield from _classes_in(value)
    for value in list(space.values()):
        # what is imported with `from library import call` may raise the errors of the module that it comes from
        if isinstance(value, type | types.FunctionType):
            module = sys.modules.get(value.__module__)
            if module is not None and vars(module) is not space:
                yield from _classes_in(module)


def _classes_in(value: object) -> Iterator[type]:
    if isinstance(value, type):
        yield value
    elif isinstance(value, types.ModuleType):
        yield from (found for found in list(vars(value).values()) if isinstance(found, type))


def _annotated(holder: object) -> Iterator[type]:
    """Classes in the annotations of a function or a class, at any depth."""
    hints = _hints(holder)
    for _ in range(MOST_CLASSES):
        if not hints:
            return
        hint = hints.pop()
        if isinstance(hint, type):
            yield hint
        hints += typing.get_args(hint)
        origin = typing.get_origin(hint)
        if isinstance(origin, type):
            yield origin


def _hints(holder: object) -> list[object]:
    """The annotations, evaluated; one that does not evaluate is left out."""
    with suppress(Exception):  # annotations are the program's own code, and may do anything
        return list(typing.get_type_hints(holder, include_extras=True).values())
    space = getattr(holder, "__globals__", None) or vars(sys.modules.get(getattr(holder, "__module__", ""), sys))
    closure = inspect.getclosurevars(holder).nonlocals if isinstance(holder, types.FunctionType) else {}
    found: list[object] = []
    for name, hint in getattr(holder, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: hint})
        with suppress(Exception):
            found += typing.get_type_hints(one, dict(space), dict(closure), include_extras=True).values()
    return found


def _add_fields(cls: type, found: dict[type, None]) -> None:
    """Add what the fields of a dataclass or model are annotated with, and so on."""
    todo = [cls]
    while todo and len(found) < MOST_CLASSES:
        holder = todo.pop()
        if is_dataclass(holder) or hasattr(holder, "model_fields") or hasattr(holder, "_fields"):
            for inner in _annotated(holder):
                if inner not in found:
                    found[inner] = None
                    todo.append(inner)
