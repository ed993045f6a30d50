"""The machine and the user, as the program's own code asks for them: host, processors, user, home, thread ids.

Libraries keep the real ones, which they compare with what they have seen elsewhere.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import posixpath
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary.callers import AGENT, kind_of
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import MACHINE, asking

if TYPE_CHECKING:
    from collections.abc import Callable

_THROUGH: Final = frozenset({"platform", "getpass", "os", "posixpath", "pathlib", "pathlib._local", "socket"})

_OF_OS: Final = ("getppid", "getuid", "geteuid", "getgid", "getegid", "getlogin", "cpu_count", "getloadavg", "uname")


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in _OF_OS:
        if hasattr(os, name):
            original = getattr(os, name)
            patches.put(os, name, unbindable(_reading(original, name, _MADE.get(name)), original, "os"))
    if hasattr(os, "sched_getaffinity"):
        original = os.sched_getaffinity
        patches.put(os, "sched_getaffinity", unbindable(_affinity(original), original, "os"))
    patches.put(
        socket, "gethostname", unbindable(_reading(socket.gethostname, "gethostname"), socket.gethostname, "socket")
    )
    patches.put(
        threading,
        "get_native_id",
        unbindable(_reading(threading.get_native_id, "get_native_id"), threading.get_native_id, "threading"),
    )
    for owner, name in ((platform, "node"), (platform, "platform"), (getpass, "getuser")):
        original = getattr(owner, name)
        replacement = _function(original, name)
        like(replacement, original, owner.__name__)
        patches.put(owner, name, replacement)
    home = _home(posixpath.expanduser)
    like(home, posixpath.expanduser, "posixpath")
    patches.put(posixpath, "expanduser", home)


_installation = Installation(_put)


def _asked(name: str, original: Callable[[], Any], depth: int) -> Any:
    """A reading of the program; what was read, as JSON has it."""
    found = asking(MACHINE, _THROUGH, depth)
    if found is None or kind_of(found[1]) != AGENT:
        return _NOBODY
    lane, frame = found

    def look() -> str:
        try:
            return json.dumps({"v": original()})
        except OSError as error:
            return json.dumps({"e": [error.errno, error.strerror]})

    told = json.loads(lane.session.read(lane, f"process:{name}", frame, look))
    if "e" in told:
        raise OSError(*told["e"])
    return told["v"]


_NOBODY: Final = object()
_MADE: Final[dict[str, Callable[[Any], Any]]] = {
    "uname": lambda fields: os.uname_result(fields),
    "getloadavg": lambda loads: tuple(loads),
}


def _reading(original: Callable[[], Any], name: str, made: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    def read(_: object) -> Any:
        told = _asked(name, original if made is None else lambda: list(original()), 3)
        if told is _NOBODY:
            return original()
        return told if made is None else made(told)

    return read


def _function(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def read(*args: Any, **named: Any) -> Any:
        told = _asked(name, lambda: original(*args, **named), 3)
        return original(*args, **named) if told is _NOBODY else told

    return read


def _affinity(original: Callable[[int], set[int]]) -> Callable[..., Any]:
    def sched_getaffinity(_: object, pid: int, /) -> set[int]:
        told: Any = _asked("sched_getaffinity", lambda: sorted(original(pid)), 3) if pid == 0 else _NOBODY
        return original(pid) if told is _NOBODY else set(told)

    return sched_getaffinity


def _home(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def expanduser(path: Any) -> Any:
        text = os.fspath(path)
        if not isinstance(text, str) or not text.startswith("~"):
            return original(path)
        user, _, rest = text.partition("/")
        told = _asked(f"home:{user}", lambda: original(user), 3)
        if told is _NOBODY:
            return original(path)
        return f"{told.rstrip('/')}/{rest}" if rest else told

    return expanduser
