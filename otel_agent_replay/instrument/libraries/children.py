"""What the program does to its commands by their ids: signals, groups, and waiting for their end.

In a replay none of it reaches the system, where the recorded id may be anybody's.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _children
from otel_agent_replay.instrument._ambient import Installation, Patches, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross
from otel_agent_replay.recording.values import Kind, Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument._children import Child

_DOING: Final = ("killpg", "setpgid")
"""Functions of `os` whose first argument is a process or its group; `process` sees to the others."""
_RANKED: Final = ("getpriority", "setpriority")
"""Those whose second argument is, where the first says so."""
_ANY: Final = -1
"""Any child of the process, for those that wait."""


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    makers = {name: _does(name) for name in _DOING} | {name: _ranks(name) for name in _RANKED}
    makers |= {"waitpid": _waitpid("waitpid"), "wait4": _waitpid("wait4"), "waitid": _waitid}
    makers |= {"wait": _wait("wait"), "wait3": _wait("wait3"), "pidfd_open": _pidfd_open}
    for name, make in makers.items():
        if hasattr(os, name):
            original = getattr(os, name)
            patches.put(os, name, unbindable(make(original), original, "os"))
    if hasattr(signal, "pidfd_send_signal"):
        send = signal.pidfd_send_signal
        patches.put(signal, "pidfd_send_signal", unbindable(_pidfd_send_signal(send), send, "signal"))
    if not _hooked:
        _hooked.append(True)
        wrapt.register_post_import_hook(_patch_psutil, "psutil")


_installation = Installation(_put)
_hooked: list[bool] = []


def _does(name: str) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def act(_: object, pid: int, *rest: Any, **named: Any) -> Any:
            child = _children.of(pid, group=name == "killpg")
            if child is None:
                return original(pid, *rest, **named)
            return _children.do(child, name, lambda: original(pid, *rest, **named))

        return act

    return make


def _ranks(name: str) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def act(_: object, which: int, who: int, *rest: Any, **named: Any) -> Any:
            child = None if which == os.PRIO_USER else _children.of(who, group=which == os.PRIO_PGRP)
            if child is None:
                return original(which, who, *rest, **named)
            return _children.do(child, name, lambda: original(which, who, *rest, **named))

        return act

    return make


# -- waiting -----------------------------------------------------------------------------------------------


def _waitpid(name: str) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(_: object, pid: int, options: int, /) -> Any:
            child = _children.of(pid)
            if child is not None:
                return _ended(child, name, lambda: original(pid, options), blocks=not options & os.WNOHANG)
            if pid == _ANY:
                return _any(name, lambda: original(pid, options))
            return original(pid, options)

        return wait

    return make


def _wait(name: str) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(_: object, *args: Any, **named: Any) -> Any:
            return _any(name, lambda: original(*args, **named))

        return wait

    return make


def _waitid(original: Callable[..., Any]) -> Callable[..., Any]:
    def waitid(_: object, idtype: int, id: int, options: int, /) -> Any:
        of_fd = getattr(os, "P_PIDFD", -1)
        child = _children.of(id) if idtype == os.P_PID else _of_fd(id) if idtype == of_fd else None
        if child is not None:
            return _ended(child, "waitid", lambda: original(idtype, id, options), blocks=not options & os.WNOHANG)
        if idtype == os.P_ALL:
            return _any("waitid", lambda: original(idtype, id, options))
        return original(idtype, id, options)

    return waitid


def _ended(child: Child, name: str, wait: Callable[[], Any], *, blocks: bool) -> Any:
    """Wait for a command. Where that blocks, it is a step; else one looks, which is a reading."""
    if not blocks:
        found = _children.do(child, name, lambda: _plain(wait()), 3)
    elif asking(COMMANDS, _children.THROUGH, 3) is None:
        return _children.do(child, name, wait, 3)
    else:
        found = child.step(name, None, lambda: _plain(wait()))
    if found and found[0]:
        child.ended()
    return _whole(name, found)


def _any(name: str, wait: Callable[[], Any]) -> Any:
    """Wait for whichever child ends, a command or another, which a replay really has."""
    asks = asking(COMMANDS, _children.THROUGH, 3) if _children.has_any() else None
    if asks is None:
        return wait()
    lane = asks[0]
    made: list[Any] = []

    def perform() -> Any:
        made.append(wait())
        found = _plain(made[0])
        return found if found is None or not found[0] or _children.of(found[0]) is not None else "another"

    found = cross(lane, Call(Kind.PROCESS, f"process:{name}"), perform)
    if found == "another":
        return made[0] if made else wait()
    child = _children.of(found[0]) if found else None
    if child is not None:
        child.ended()
    return _whole(name, found)


def _plain(found: Any) -> Any:
    """What came back, as JSON has it."""
    if found is None:
        return None
    return [list(part) if isinstance(part, tuple) else part for part in found]


def _whole(name: str, found: Any) -> Any:
    """The same, as the function gives it."""
    if found is None:
        return None
    if name == "waitid":
        return os.waitid_result(found)
    if name in ("wait3", "wait4"):
        import resource  # noqa: PLC0415 (only where somebody asks)

        return (*found[:2], resource.struct_rusage(found[2]))
    return tuple(found)


# -- descriptors of processes ------------------------------------------------------------------------------


def _of_fd(number: int) -> Child | None:
    lane = lanes.current()
    ids = None if lane is None else _children.ids_of(lane.session)
    return None if ids is None else ids.fds.get(number)


def _pidfd_open(original: Callable[..., int]) -> Callable[..., int]:
    def pidfd_open(_: object, pid: int, flags: int = 0) -> int:
        child = _children.of(pid)
        if child is None:
            return original(pid, flags)
        made: list[int] = []

        def act() -> None:
            made.append(original(pid, flags))

        _children.do(child, "pidfd_open", act)
        number = made[0] if made else _stand_in()
        ids = _children.ids_of(child.lane.session)
        assert ids is not None  # it is where the child was found
        ids.fds[number] = child
        return number

    return pidfd_open


def _stand_in() -> int:
    """A descriptor that is ready, as that of a process that has ended."""
    reads, writes = os.pipe()
    os.close(writes)
    return reads


def _pidfd_send_signal(original: Callable[..., None]) -> Callable[..., None]:
    def pidfd_send_signal(_: object, pidfd: int, *rest: Any) -> None:
        child = _of_fd(pidfd)
        if child is None:
            original(pidfd, *rest)
            return
        _children.do(child, "pidfd_send_signal", lambda: original(pidfd, *rest))

    return pidfd_send_signal


# -- psutil ------------------------------------------------------------------------------------------------


def _patch_psutil(module: Any) -> None:
    """What it tells of a command is not recorded. In a replay there is no such process. It stays."""
    original = module.Process.__init__

    def __init__(self: Any, pid: int | None = None) -> None:  # noqa: N807 (it stands for one)
        child = _children.of(pid)
        if child is not None and child.replaying:
            raise module.NoSuchProcess(pid)
        if child is not None:
            _note(child.lane)
        original(self, pid)

    module.Process.__init__ = __init__
    below = getattr(module.Process, "children", None)
    if below is not None:

        def children(self: Any, recursive: bool = False) -> Any:  # noqa: FBT001, FBT002 (as the original has it)
            child = _children.of(self.pid)
            return [] if child is not None and child.replaying else below(self, recursive)

        module.Process.children = children


def _note(lane: Lane) -> None:
    frame = sys._getframe(2)  # noqa: SLF001 (there is no other way to a caller)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    lane.session.note(Note(NoteKind.UNCAPTURED, "what psutil tells of a command and its children", where))
