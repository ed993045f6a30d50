"""Something by path, found by the folder that it is in too, so that a folder is moved or listed without a search."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Tree(Generic[T]):
    """Values by absolute path. Whoever changes it from several threads has a lock."""

    def __init__(self) -> None:
        self._held: dict[str, T] = {}
        self._inside: dict[str, set[str]] = {}
        """By folder: the paths in it that are held, or that are folders of such ones."""

    def __contains__(self, path: str) -> bool:
        return path in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: str) -> T | None:
        """What is held there."""
        return self._held.get(path)

    def put(self, path: str, value: T) -> None:
        """Hold something there."""
        self._held[path] = value
        while path:
            above = path.rpartition(os.sep)[0]
            inside = self._inside.get(above)
            if inside is None:
                inside = self._inside[above] = set()
            elif path in inside:
                return
            inside.add(path)
            path = above

    def discard(self, path: str) -> None:
        """Hold nothing there; what is below stays."""
        if self._held.pop(path, self) is not self:
            self._unlink(path)

    def take(self, path: str) -> list[tuple[str, T]]:
        """Hold nothing there and below any more. Gives what was."""
        taken = [(each, self._held.pop(each)) for each in list(self._below(path)) if each in self._held]
        for each, _ in taken:
            self._unlink(each)
        return taken

    def names(self, folder: str) -> list[str]:
        """What is held in a folder, by name."""
        return [path[len(folder) + 1 :] for path in self._inside.get(folder, ()) if path in self._held]

    def _below(self, path: str) -> Iterator[str]:
        waiting = [path]
        while waiting:
            each = waiting.pop()
            yield each
            waiting.extend(self._inside.get(each, ()))

    def _unlink(self, path: str) -> None:
        while path and path not in self._held and path not in self._inside:
            above = path.rpartition(os.sep)[0]
            inside = self._inside.get(above)
            if inside is None:
                return
            inside.discard(path)
            if inside:
                return
            del self._inside[above]
            path = above
