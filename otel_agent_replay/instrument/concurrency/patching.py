"""Replaces attributes of the standard library, and puts them back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Patches:
    """Attributes that were replaced, in order."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by what `make` returns for it; a function keeps its name and signature.

        Raises AttributeError where the owner has no such attribute.
        """
        original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
        replacement = make(original)
        if callable(original) and not isinstance(replacement, type):
            functools.update_wrapper(replacement, original)
        self.same(owner, name, replacement)

    def same(self, owner: Any, name: str, replacement: Any) -> None:
        """Let `owner.name`, which may be another name of what was replaced, be its replacement too."""
        self._kept.append((owner, name, vars(owner).get(name, _INHERITED), replacement))
        setattr(owner, name, replacement)

    def undo(self) -> None:
        """Put everything back, the last replacement first; what others have replaced since stays theirs."""
        while self._kept:
            owner, name, original, replacement = self._kept.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


_INHERITED = object()
