"""`sqlite3.connect`: a database file is read and written by C code, which nobody sees.

So the capture manifest says that it was used. In a replay it is opened where it is; a database in a directory that the
program has made, and that a replay keeps from the disk, cannot be.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

import wrapt

from otel_agent_replay.instrument import _paths
from otel_agent_replay.instrument._ambient import Installation, Patches

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def install() -> Callable[[], None]:
    """Patch it, now or when it is imported. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    if "sqlite3" in sys.modules:
        _patch(patches, sys.modules["sqlite3"])
    if not _hooked:
        _hooked.append(True)
        wrapt.register_post_import_hook(_imported, "sqlite3")


_installation = Installation(_put)
_hooked: list[bool] = []


def _imported(module: ModuleType) -> None:
    patches = _installation.patches
    if patches is not None:
        _patch(patches, module)


def _patch(patches: Patches, module: ModuleType) -> None:
    original = module.connect
    if hasattr(original, "agent_replay"):
        return

    @wraps(original)
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        found = None if database in ("", ":memory:", b":memory:") else _paths.asked(database)
        if found is not None and not found.name.startswith("file:"):
            if not found.replaying:
                _paths.note(found.lane, found.frame, f"database {found.name}: SQLite reads and writes it by itself")
            elif found.files.shadow.has(os.path.dirname(found.absolute)) and not os.path.isdir(  # noqa: PTH112, PTH120
                os.path.dirname(found.absolute)  # noqa: PTH120
            ):
                raise found.diverge(
                    "SQLite opens this database by itself, in a directory that the replay keeps from the disk",
                    "Make the directory before the program runs.",
                )
        return original(database, *args, **kwargs)

    connect.agent_replay = True  # type: ignore[attr-defined]
    patches.put(module, "connect", connect)
    inner = getattr(module, "dbapi2", None)
    if inner is not None:
        patches.put(inner, "connect", connect)
