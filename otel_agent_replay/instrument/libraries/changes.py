"""What the program changes in the file system without opening a file: on the disk while recording, never in a replay.

Each change is a reading too: whether it went well. In a replay it is repeated in the shadow.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_agent_replay.instrument import _paths
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._paths import Asked, asked, missing, settle

if TYPE_CHECKING:
    from collections.abc import Callable


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    one = {
        "mkdir": _mkdir,
        "rmdir": _gone,
        "unlink": _gone,
        "remove": _gone,
        "chmod": _touched,
        "chown": _touched,
        "utime": _touched,
        "truncate": _touched,
    }
    for name, change in one.items():
        original = getattr(os, name)
        patches.put(os, name, unbindable(_of_one(original, change), original, "os"))
        _paths.supported(patches, original, getattr(os, name))
    for name in ("rename", "replace", "link", "symlink"):
        original = getattr(os, name)
        patches.put(os, name, unbindable(_of_two(original), original, "os"))
        _paths.supported(patches, original, getattr(os, name))
    for name in ("listxattr", "getxattr", "setxattr"):
        if hasattr(os, name):
            original = getattr(os, name)
            patches.put(os, name, unbindable(_attributes(original), original, "os"))
    _closing_of_named(patches)
    tree = _rmtree(shutil.rmtree)
    like(tree, shutil.rmtree, "shutil")
    for name in ("avoids_symlink_attacks",):
        setattr(tree, name, getattr(shutil.rmtree, name, False))
    patches.put(shutil, "rmtree", tree)


_installation = Installation(_put)


def _closing_of_named(patches: Patches) -> None:
    """`NamedTemporaryFile` has taken `os.unlink` when it was defined, as a default value."""
    closer: Any = getattr(tempfile, "_TemporaryFileCloser", None)
    for name in ("close", "cleanup"):
        function = getattr(closer, name, None)
        defaults = getattr(function, "__defaults__", None)
        plain = _plain_unlink
        if function is not None and defaults and plain in defaults:
            function.__defaults__ = tuple(os.unlink if value is plain else value for value in defaults)
            patches.on_undo(partial(setattr, function, "__defaults__", defaults))


_plain_unlink = os.unlink


def _of_one(original: Callable[..., None], change: Callable[[Asked, Callable[..., None]], None]) -> Callable[..., None]:
    """A change of one path. `change` repeats it in the shadow, or keeps in mind what was done on the disk."""

    def act(_: object, path: Any, *args: Any, **named: Any) -> None:
        found = asked(path) if named.get("dir_fd") is None else None
        if found is None:
            original(path, *args, **named)
            return

        def known() -> None:
            if original.__name__ != "mkdir":
                _there(found)
            elif found.files.shadow.has(found.absolute):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

        own = change is _touched and not found.replaying and found.is_own()
        settle(found.tell(original.__name__, lambda: original(path, *args, **named), known), path)
        if own and not found.within:
            found.files.own.wrote(found.absolute)
        change(found, lambda where: original(where, *args, **named))

    return act


def _there(found: Asked) -> None:
    """Raises FileNotFoundError where a replay knows of nothing at this path."""
    shadow = found.files.shadow
    if not shadow.has(found.absolute) and (found.absolute in shadow.gone or not os.path.lexists(found.absolute)):
        raise missing(found.given)


def _mkdir(found: Asked, _: Callable[..., None]) -> None:
    if found.replaying:
        found.files.shadow.folder(found.absolute)
        found.files.shadow.wrote(found.absolute)
    elif not found.within:
        found.files.own.made(found.absolute)


def _gone(found: Asked, _: Callable[..., None]) -> None:
    shadow = found.files.shadow
    if not found.replaying:
        own = found.files.own
        if found.within and own.knows(found.absolute):
            own.lost(found.absolute)
        else:
            own.removed(found.absolute)
        return
    if shadow.has(found.absolute):
        where = shadow.path(found.absolute)
        if os.path.isdir(where) and not os.path.islink(where):
            shutil.rmtree(where)
        else:
            os.unlink(where)
    shadow.removed(found.absolute)


def _touched(found: Asked, again: Callable[..., None]) -> None:
    if found.replaying and found.files.shadow.has(found.absolute):
        _paths.faithful(lambda: again(found.files.shadow.path(found.absolute)), found.given)


def _of_two(original: Callable[..., None]) -> Callable[..., None]:
    """A change of two paths: the second is what there is afterwards."""
    name = original.__name__

    def act(_: object, src: Any, dst: Any, *args: Any, **named: Any) -> None:
        plain = all(value is None for key, value in named.items() if key.endswith("dir_fd"))
        found = (asked(dst) or _beside(src, dst, name)) if plain else None
        if found is None:
            original(src, dst, *args, **named)
            return
        places = found.files.places
        target = os.fsdecode(src)
        if name == "symlink":
            target = os.path.join(os.path.dirname(found.absolute), target)
        source = places.absolute(target)

        def known() -> None:
            if name != "symlink":
                _there(Asked(found.lane, found.frame, found.files, source, places.name(source), src))

        told = found.tell(f"{name}:{places.name(source)}", lambda: original(src, dst, *args, **named), known)
        settle(told, src, dst)
        if found.replaying:
            try:
                _again(name, found, source)
            except OSError as error:
                raise found.diverge(
                    f"{name} cannot be repeated: {error.strerror}", "Nothing was changed on the disk."
                ) from None
        else:
            _done(name, found, source)

    return act


def _beside(src: Any, dst: Any, name: str) -> Asked | None:
    """The second path, where the call is nobody's of the program and the first is only in the shadow."""
    found = None if name == "symlink" else asked(src, 3)
    if found is None or found.frame is not None:
        return None
    places = found.files.places
    absolute = places.absolute(os.fsdecode(dst))
    return Asked(found.lane, None, found.files, absolute, places.name(absolute), dst)


def _done(name: str, found: Asked, source: str) -> None:
    """Keep in mind a change of two paths that was done on the disk."""
    own = found.files.own
    if found.within:
        for path in (source, found.absolute):
            own.lost(path)
    elif name in ("rename", "replace"):
        own.moved(source, found.absolute)
    elif name == "symlink":
        own.linked(found.absolute, source)
    elif own.is_own(source):
        own.wrote(found.absolute)


def _again(name: str, found: Asked, source: str) -> None:
    """Repeat a change of two paths in the shadow. What it knows nothing of has its content in the recording."""
    shadow = found.files.shadow
    where = shadow.parents(found.absolute)
    if name in ("symlink", "link") and os.path.lexists(where):
        os.unlink(where)  # it was not there when this was recorded
    if name == "symlink":
        os.symlink(shadow.path(source), where)
        shadow.wrote(found.absolute)
    elif name == "link":
        if shadow.has(source):
            os.link(shadow.path(source), where)
            if shadow.makes(source):
                shadow.wrote(found.absolute)
    else:
        own = shadow.makes(source)
        if shadow.has(source):
            os.rename(shadow.path(source), where)
        shadow.moved(source, found.absolute)
        if not own:
            shadow.disown(found.absolute)


def _attributes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Extended attributes, which `shutil` copies: the shadow has none."""

    def act(_: object, path: Any = None, *args: Any, **named: Any) -> Any:
        found = asked(path) if path is not None else None
        if found is None or not found.replaying:
            return original(path, *args, **named)
        if original.__name__ == "listxattr":
            return []
        raise _paths.error(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)

    return act


def _rmtree(original: Callable[..., None]) -> Callable[..., None]:
    def rmtree(path: Any, *args: Any, **named: Any) -> None:
        found = asked(path) if named.get("dir_fd") is None else None
        if found is None:
            original(path, *args, **named)
            return
        failed: list[BaseException] = []

        def look() -> None:
            try:
                original(path, *args, **named)
            except OSError as error:
                failed.append(error)
                raise

        told = found.tell("rmtree", look, lambda: None if args or named else _there(found))
        if failed:
            raise failed[0]
        settle(told, path)
        _gone(found, original)

    return rmtree
