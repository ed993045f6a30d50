"""Patching what has no library: functions of the standard library that hand out the world.

The replacements are plain functions, for they are called often. A built-in function that is made an attribute
of a class does not become a method; so that ours does not either, it is put in bound (`unbindable`).
"""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import builtin, lanes
from otel_agent_replay.boundary.callers import (
    DISPATCH,
    KINDS,
    LIBRARY,
    OUTSIDE,
    clock_reader,
    entropy_reader,
    kind_of_module,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

_getframe = sys._getframe  # noqa: SLF001 (there is no other way to a caller)


def clock_reading(further: int = 0) -> tuple[Lane, FrameType] | None:
    """Whose reading of the clock it is that the caller of a replacement makes; None for nobody's.

    Args:
        further: calls of ours between the replacement and whoever asks.
    """
    return _reading(clock_reader, further)


def entropy_reading() -> tuple[Lane, FrameType] | None:
    """The same for a reading of entropy."""
    return _reading(entropy_reader)


def _reading(reader: Callable[[FrameType], FrameType | None], further: int = 0) -> tuple[Lane, FrameType] | None:
    lane = lanes.here()
    if lane is None:
        lane = lanes.process_root
    if lane is None or lane.beneath is not None or lane is lanes.OUTSIDE:
        return None
    try:
        frame: FrameType | None = _getframe(3 + further)
    except ValueError:  # called from no frame at all, as the interpreter ends
        return None
    if KINDS.get(id(frame.f_code), OUTSIDE) > DISPATCH:  # type: ignore[union-attr]
        frame = reader(frame)  # type: ignore[arg-type]
    return None if frame is None else (lane, frame)


class _Place:
    """What a replacement is bound to: stands for the module that it was put into, also when pickled."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return importlib.import_module, (self._module,)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules[self._module], name)  # as copying a bound method asks for it by name

    def __copy__(self) -> _Place:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> _Place:
        return self

    def __repr__(self) -> str:
        return f"<module {self._module!r}>"


def unbindable(function: Callable[..., Any], original: Callable[..., Any], module: str) -> MethodType:
    """Make `function`, whose first parameter is not used, look and behave like the built-in `original`."""
    like(function, original, module)
    return MethodType(function, _Place(module))


def like(function: Callable[..., Any], original: Callable[..., Any], module: str) -> None:
    """Give `function` the name and the documentation of `original`."""
    function.__module__ = module
    function.__name__ = getattr(original, "__name__", function.__name__)
    function.__qualname__ = getattr(original, "__qualname__", function.__name__)
    function.__doc__ = original.__doc__


_INHERITED = object()


@dataclass(slots=True)
class Patches:
    """What was put in place of what."""

    _put: list[tuple[Any, str, Any, Any]] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Set an attribute of a module or class."""
        self._put.append((owner, name, vars(owner).get(name, _INHERITED), replacement))
        setattr(owner, name, replacement)

    def put_entries(self, cls: type, replaced: Mapping[str, object]) -> None:
        """Exchange entries of a built-in class."""
        originals = {name: vars(cls)[name] for name in replaced}
        builtin.put(cls, replaced)
        self.on_undo(
            lambda: builtin.put(
                cls, {name: original for name, original in originals.items() if vars(cls)[name] is replaced[name]}
            )
        )

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Something else that is to be undone."""
        self._undo.append(undo)

    def rebind(self) -> None:
        """Let modules of the program that took a name before (``from time import time``) have ours instead."""
        _rebind([self])

    def undo(self) -> None:
        """Put everything back, in every module; what somebody else has put in since stays."""
        for owner, name, original, replacement in reversed(self._put):
            if vars(owner).get(name) is not replacement:
                continue
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        _exchange({id(new): (new, old) for owner, _, old, new in self._put if isinstance(owner, ModuleType)})
        for undo in reversed(self._undo):
            undo()
        self._put.clear()
        self._undo.clear()

    def of_modules(self) -> Iterator[tuple[Any, Any]]:
        """What was put in place of what, of modules only: of those the program may have taken names."""
        return ((old, new) for owner, _, old, new in self._put if isinstance(owner, ModuleType))


_together: list[list[Patches]] = []


@contextmanager
def together() -> Iterator[None]:
    """Whatever is installed within is looked for in the modules of the program once, at the end."""
    waiting: list[Patches] = []
    _together.append(waiting)
    try:
        yield
    finally:
        _together.pop()
    _rebind(waiting)


def _rebind(all_patches: Iterable[Patches]) -> None:
    pairs: dict[int, tuple[Any, Any]] = {}
    for patches in reversed(list(all_patches)):
        for old, new in reversed(list(patches.of_modules())):
            pairs[id(old)] = (old, pairs[id(new)][1] if id(new) in pairs else new)  # what was put in again since
    _exchange(pairs, LIBRARY)


def _exchange(pairs: dict[int, tuple[Any, Any]], most: int | None = None) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict or pairs.keys().isdisjoint(map(id, names.copy().values())):
            continue
        if most is None or kind_of_module(module) <= most:
            for name, value in names.copy().items():
                old, new = pairs.get(id(value), (None, None))
                if old is not None and names[name] is old:
                    names[name] = new


class Installation:
    """Patches that go in with the first who wants them, and out with the last.

    Args:
        put: puts them in.
    """

    def __init__(self, put: Callable[[Patches], None]) -> None:
        self._put = put
        self._patches = Patches()
        self._users = 0
        self._lock = threading.Lock()

    @property
    def patches(self) -> Patches | None:
        """What to add a later patch to; None where nobody wants any."""
        return self._patches if self._users else None

    def install(self) -> Callable[[], None]:
        """Put the patches in, unless they are. Gives what undoes this call."""
        with self._lock:
            if self._users == 0:
                self._put(self._patches)
                if _together:
                    _together[-1].append(self._patches)
                else:
                    self._patches.rebind()
            self._users += 1
        left = [self._leave]

        def uninstall() -> None:
            if left:
                left.pop()()

        return uninstall

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._patches.undo()
