"""`sqlite3.connect`: a database file is read and written by C code, which nobody sees.

So the capture manifest says that it was used. In a replay one that was there when this was recorded is opened where it
is. One that was not, or that the program has made or removed, stands in the shadow as all that the program makes.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import wrapt

from otel_agent_replay.instrument import _paths
from otel_agent_replay.instrument._ambient import Installation, Patches

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from otel_agent_replay.instrument._paths import Asked

_URI: Final = 6
"""Where `uri` stands among the arguments after the database."""


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
        uri = kwargs.get("uri", args[_URI] if len(args) > _URI else False)
        path, rest = _path_of(database, uri=bool(uri))
        found = _paths.asked(path) if path else None
        if found is None:
            return original(database, *args, **kwargs)
        was_there = _paths.settle(found.tell("database", lambda: os.path.lexists(path), lambda: _is_there(found)))
        if not found.replaying:
            _paths.note(found.lane, found.frame, f"database {found.name}: SQLite reads and writes it by itself")
            return original(database, *args, **kwargs)
        where, is_kept = _place(found, made=not was_there)
        connection = original(where if rest is None else f"file:{quote(where)}{rest}", *args, **kwargs)
        if is_kept and os.path.lexists(where):
            found.files.shadow.wrote(found.absolute)
        return connection

    connect.agent_replay = True  # type: ignore[attr-defined]
    patches.put(module, "connect", connect)
    inner = getattr(module, "dbapi2", None)
    if inner is not None:
        patches.put(inner, "connect", connect)


def _path_of(database: Any, *, uri: bool) -> tuple[Any, str | None]:
    """The path of a database, empty for one in memory; of a URI also what follows its path."""
    if database in ("", ":memory:", b"", b":memory:"):
        return "", None
    if not uri or not isinstance(database, str) or not database.startswith("file:"):
        return database, None
    path, mark, rest = database.removeprefix("file:").partition("?")
    path = path.partition("#")[0]
    if path.startswith("//"):  # an authority, which is empty or localhost
        path = "/" + path[2:].partition("/")[2]
    in_memory = path == ":memory:" or "mode=memory" in rest or "vfs=" in rest
    return "" if in_memory else unquote(path), mark + rest


def _is_there(found: Asked) -> bool:
    shadow = found.files.shadow
    return shadow.has(found.absolute) or (found.absolute not in shadow.gone and os.path.lexists(found.absolute))


def _place(found: Asked, *, made: bool) -> tuple[str, bool]:
    """Where the database is opened in a replay, and whether that is in the shadow.

    Args:
        found: whose it is.
        made: there was none.
    """
    shadow = found.files.shadow
    kept = made or shadow.keeps(found.absolute) or found.absolute in shadow.gone or shadow.has(found.absolute)
    return (shadow.parents(found.absolute), True) if kept else (found.absolute, False)
