"""Patching a library that may not be there, and taking the patch out again.

A library is a table of targets. Nothing is imported for it: the patch is put in when the program imports
the library, or at once where it already has. A library that does not look as its table says is left alone
and reported, as a whole: half a patch would record half a call.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeAlias

import wrapt

from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from types import ModuleType

Function: TypeAlias = Callable[..., Any]
Report: TypeAlias = Callable[[Note], None]

MARK = "_otel_agent_replay_patch"
"""Set on every function that we put in. `functools.wraps` copies it, so that a function which another
instrumentation has wrapped around ours is known too, and ours is not put in twice."""


@dataclass(frozen=True, slots=True)
class Target:
    """One function to replace."""

    module: str
    name: str
    """Qualified name in the module, such as ``Client.send``."""
    wrap: Callable[[Function], Function]
    """Makes the replacement, given the original."""
    takes: tuple[str, ...] = ()
    """Parameters, in order after `self`, that the replacement relies on."""


@dataclass(frozen=True, slots=True)
class Library:
    """What is patched in one library."""

    name: str
    """Its top-level package."""
    targets: tuple[Target, ...]
    needs: tuple[tuple[str, str], ...] = ()
    """Further (module, qualified name) that the replacements use."""

    @property
    def modules(self) -> dict[str, None]:
        """The modules that hold targets, in order."""
        return dict.fromkeys(target.module for target in self.targets)


@dataclass(slots=True)
class _Patched:
    """A function that was replaced, and how to undo that."""

    parent: Any
    attribute: str
    original: Function
    replacement: Function
    inherited: bool

    def undo(self) -> None:
        # Where somebody has wrapped ours since, it stays: taking it out would take theirs out too. Outside
        # a run it only passes calls on.
        if vars(self.parent).get(self.attribute) is not self.replacement:
            return
        if self.inherited:
            delattr(self.parent, self.attribute)
        else:
            setattr(self.parent, self.attribute, self.original)


@dataclass(slots=True)
class _Installation:
    """One library in this process; kept for ever, because an import hook cannot be taken back."""

    library: Library
    users: int = 0
    unknown: Note | None = None
    """Why it is left alone, where its shape is unknown."""
    hooked: bool = False
    patched: list[_Patched] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


_installations: dict[str, _Installation] = {}
_lock = threading.RLock()


def install(libraries: Iterable[Library], report: Report) -> Callable[[], None]:
    """Patch each library, now or when it is imported; absent ones are passed over in silence.

    Installing twice patches once. Returns what undoes this call; the patches go with the last of them.

    Args:
        libraries: what to patch.
        report: told of each library that has an unknown shape, and so stays unpatched.
    """
    installed = [_use(library, report) for library in libraries]

    def uninstall() -> None:
        with _lock:
            for installation in installed:
                _release(installation, report)
            installed.clear()

    return uninstall


def _use(library: Library, report: Report) -> _Installation:
    with _lock:
        installation = _installations.setdefault(library.name, _Installation(library))
        installation.users += 1
        installation.reports.append(report)
        hook, installation.hooked = not installation.hooked, True
    if installation.unknown is not None:
        report(installation.unknown)
    package = library.name
    for module in library.modules:
        if hook:
            wrapt.register_post_import_hook(partial(_imported, installation), module)
        elif module in sys.modules:
            _imported(installation, sys.modules[module])
    if package not in library.modules and hook:
        # A later version may have moved the module away, and its hook would wait for ever.
        wrapt.register_post_import_hook(partial(_package_imported, installation), package)
    return installation


def _release(installation: _Installation, report: Report) -> None:
    installation.users -= 1
    installation.reports.remove(report)
    if installation.users == 0:
        _undo(installation)
        installation.unknown = None


def _undo(installation: _Installation) -> None:
    for patched in reversed(installation.patched):
        patched.undo()
    installation.patched.clear()


def _package_imported(installation: _Installation, package: ModuleType) -> None:
    if installation.users and installation.unknown is None:
        for module in installation.library.modules:
            if module not in sys.modules and importlib.util.find_spec(module) is None:
                _unknown(installation, f"it has no module {module}")
                return


def _imported(installation: _Installation, module: ModuleType) -> None:
    """Patch the targets of one module. Never raises: that would break the program's import."""
    with _lock:
        if not installation.users or installation.unknown is not None:
            return
        try:
            _patch(installation, module)
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            _undo(installation)
            _unknown(installation, str(error))


def _patch(installation: _Installation, module: ModuleType) -> None:
    library = installation.library
    found = [(target, *_resolve(module, target.name)) for target in library.targets if target.module == module.__name__]
    for needed, name in library.needs:
        if needed == module.__name__:
            _resolve(module, name)
    for target, _, _, original in found:
        _check(target, original)
    for target, parent, attribute, original in found:
        if getattr(original, MARK, False):
            continue
        replacement = target.wrap(original)
        setattr(replacement, MARK, True)
        inherited = attribute not in vars(parent)
        setattr(parent, attribute, replacement)
        installation.patched.append(_Patched(parent, attribute, original, replacement, inherited))


def _resolve(module: ModuleType, name: str) -> tuple[Any, str, Function]:
    try:
        return wrapt.resolve_path(module, name)
    except AttributeError:
        raise AttributeError(f"{module.__name__} has no {name}") from None


def _check(target: Target, original: Function) -> None:
    """Raises TypeError where the function does not take what its replacement relies on."""
    if not inspect.isfunction(inspect.unwrap(original)):
        raise TypeError(f"{target.module}.{target.name} is no function")
    names = list(inspect.signature(original).parameters)[1:]
    if tuple(names[: len(target.takes)]) != target.takes:
        raise TypeError(f"{target.module}.{target.name} takes ({', '.join(names)})")


def _unknown(installation: _Installation, why: str) -> None:
    name = installation.library.name
    try:
        name = f"{name} {version(name)}"
    except PackageNotFoundError:
        pass
    installation.unknown = Note(NoteKind.UNKNOWN_SHAPE, f"{name} is not recorded: {why}", installation.library.name)
    for report in installation.reports:
        report(installation.unknown)
