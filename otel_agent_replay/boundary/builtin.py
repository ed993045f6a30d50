"""Entries of built-in classes, which no attribute access can write to."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def put(cls: type, entries: Mapping[str, object]) -> None:
    """Exchange entries. Raises ValueError where this interpreter keeps them in another way."""
    (names,) = gc.get_referents(vars(cls))
    names.update(entries)
    modified = ctypes.pythonapi.PyType_Modified
    modified.argtypes, modified.restype = [ctypes.py_object], None
    modified(cls)  # else call sites that ran before keep the entry that was there
