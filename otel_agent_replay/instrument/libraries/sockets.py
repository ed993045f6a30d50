"""Sockets and processes that no boundary covers: noted while recording, refused in a replay.

They are seen by patches of the standard library. An audit hook, which sees more (a socket of the C module
itself), is put in only where the whole process is a replay: it cannot be taken out, and makes every audited
event half a microsecond slower, among them each look at the code of a calling frame, which naming the place of
a reading takes several of.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import guard, lanes
from otel_agent_replay.boundary.callers import caller, frames
from otel_agent_replay.boundary.guard import Decision
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.guard import Opener
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Session

LOOKUPS: Final = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo")
"""Functions of `socket` that ask for the address of a host, or for its name."""

STARTS: Final = ("system", "posix_spawn", "posix_spawnp", "execv", "execve")
"""Functions of `os` that start a program; the others of its kind call one of these."""

_DATAGRAMS: Final = frozenset({"socket.sendto", "socket.sendmsg"})
_AUDITED_LOOKUPS: Final = frozenset(f"socket.{name}" for name in LOOKUPS)

_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_LOCAL: Final = getattr(socket, "AF_UNIX", None)
_ASKING_THE_SYSTEM: Final = frozenset({"platform", "ctypes.util", "uuid", "webbrowser", "distro", "distro.distro"})
"""They run a program of the system to learn what machine this is …"""
_STARTING: Final = frozenset({"os", "subprocess"})
"""… by these."""

_noted: WeakKeyDictionary[Session, set[tuple[str, str]]] = WeakKeyDictionary()
_hooked: list[bool] = []


def install() -> Callable[[], None]:
    """Look out. Gives what undoes it; several installations patch once. `guard.close` adds the audit hook."""
    guard.on_close(_seal)
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in ("connect", "connect_ex", "sendto", "sendmsg"):
        patches.put(socket.socket, name, _method(getattr(socket.socket, name)))
    for name in ("send", "sendall"):
        patches.put(socket.socket, name, _sending(getattr(socket.socket, name)))
    for name in LOOKUPS:
        original = getattr(socket, name)
        if name == "getaddrinfo":
            patches.put(socket, name, _getaddrinfo(original))
        else:
            patches.put(socket, name, unbindable(_lookup(original), original, "socket"))
    patches.put(subprocess.Popen, "__init__", _popen(subprocess.Popen.__init__))
    for name in STARTS:
        if hasattr(os, name):
            original = getattr(os, name)
            patches.put(os, name, unbindable(_start(original, replaces=name.startswith("exec")), original, "os"))


_installation = Installation(_put)


def _seal() -> None:
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    # Called for every audited event of the process: the common case is two looks at a name.
    if event == "socket.connect" or event in _DATAGRAMS:
        _leaving(args[0], args[1], caller(), datagram=event in _DATAGRAMS)
    elif event in _AUDITED_LOOKUPS:
        _looking_up(args[0], caller())


# -- what is patched ---------------------------------------------------------------------------------------


def _method(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__
    datagram = name in ("sendto", "sendmsg")
    position = 3 if name == "sendmsg" else -1

    def leave(self: socket.socket, *args: Any) -> Any:
        if lanes.current() is not None or guard.is_closed():
            address = args[position] if len(args) > max(position, 0) else None
            try:
                _leaving(self, address, caller(), datagram=datagram)
            except ConnectionRefusedError:
                if name == "connect_ex":
                    return errno.ECONNREFUSED
                raise
            except DivergenceError:
                if not datagram:
                    self.close()  # who opens a connection closes it after an OSError only
                raise
        return original(self, *args)

    like(leave, original, "socket")
    return leave


def _sending(original: Callable[..., Any]) -> Callable[..., Any]:
    """A connection that was there before a replay began, or that its code was handed."""

    def send(self: socket.socket, *args: Any) -> Any:
        lane = lanes.current()
        if (guard.is_closed() or (lane is not None and lane.session.replaying)) and self.family in _INTERNET:
            try:
                address = self.getpeername()
            except OSError:  # it is no connection (any more), and says so itself
                return original(self, *args)
            _leaving(self, address, caller(), datagram=False)
        return original(self, *args)

    like(send, original, "socket")
    return send


def _getaddrinfo(original: Callable[..., Any]) -> Callable[..., Any]:
    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if lanes.current() is not None or guard.is_closed():
            _looking_up(host, caller())
        return original(host, port, *args, **kwargs)

    like(getaddrinfo, original, "socket")
    return getaddrinfo


def _lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    def look_up(_: object, *args: Any) -> Any:
        if args and (lanes.current() is not None or guard.is_closed()):
            _looking_up(args[0], caller())
        return original(*args)

    return look_up


def _popen(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, args: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 (it stands for one)
        _starting(args, caller())
        original(self, args, *rest, **named)

    like(__init__, original, "subprocess")
    return __init__


def _start(original: Callable[..., Any], *, replaces: bool) -> Callable[..., Any]:
    def start(_: object, *args: Any, **kwargs: Any) -> Any:
        if args:
            named = args[1] if replaces and len(args) > 1 else args[0]  # of a search, its first place says nothing
            _starting(named, caller())
            if replaces:
                _write()
        return original(*args, **kwargs)

    return start


def _write() -> None:
    """The program is about to be replaced, in a forked child or here: what waits would never be written."""
    lane = lanes.current()
    flush = None if lane is None or lane.session.replaying else getattr(lane.session, "flush", None)
    if flush is not None:
        flush()


# -- what becomes of it ------------------------------------------------------------------------------------


def _leaving(sock: Any, address: object, frame: FrameType | None, *, datagram: bool) -> None:
    """A connection is being made, or a datagram sent. Raises ConnectionRefusedError, DivergenceError."""
    lane = lanes.current()
    if (lane is None and not guard.is_closed()) or guard.OPEN.get():
        return
    local = sock.family == _LOCAL
    if address is None or not (local or sock.family in _INTERNET):
        return
    found = guard.opener(frame)
    decision = guard.decide(lane, found.who, local=local, closed=guard.is_closed())
    if decision is not Decision.PASS:
        what = "datagram" if datagram else "socket"
        shown = guard.address_text(address)
        _act(decision, lane, found, kind="local" if local else what, what=f"{what} to {shown} opened by {found.module}")


def _looking_up(host: Any, frame: FrameType | None) -> None:
    """The address of a host is being asked for. Raises ConnectionRefusedError, DivergenceError."""
    lane = lanes.current()
    if (lane is None and not guard.is_closed()) or guard.OPEN.get():
        return
    name = host[0] if isinstance(host, tuple) and host else host
    if guard.needs_no_lookup(name):
        return
    found = guard.opener(frame)
    decision = guard.decide(lane, found.who, local=False, closed=guard.is_closed())
    if decision is Decision.NOTE and not found.direct:
        return  # the connection that follows is noted
    shown = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    _act(decision, lane, found, kind="lookup", what=f"address of {shown} asked for by {found.module}")


def _starting(command: Any, frame: FrameType | None) -> None:
    """A process is being started: noted while recording. What a replay does about it is not decided here."""
    lane = lanes.current()
    if lane is None or lane.session.replaying:
        return
    found = guard.opener(frame)
    if _asks_the_system(frame) or guard.decide(lane, found.who, local=False, closed=False) is not Decision.NOTE:
        return
    first = command[0] if isinstance(command, list | tuple) and command else command
    words = os.fsdecode(first).split() if isinstance(first, str | bytes | os.PathLike) else []
    program = words[0] if words else "?"  # not its arguments, which may be secret
    _act(Decision.NOTE, lane, found, kind="process", what=f"process {program} started by {found.module}")


def _asks_the_system(frame: FrameType | None) -> bool:
    """Whether a process is started to learn what machine this is, whoever wants to know that."""
    for outer in frames(frame):
        name = str(outer.f_globals.get("__name__"))
        if name not in _STARTING and not name.startswith("otel_agent_replay."):
            return name in _ASKING_THE_SYSTEM
    return False


def _act(decision: Decision, lane: Lane | None, found: Opener, *, kind: str, what: str) -> None:
    if decision is Decision.REFUSE:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "telemetry does not leave a replay")
    if decision is Decision.DIVERGE:
        raise _diverged(lane, found, what)
    if decision is Decision.NOTE and lane is not None:
        seen = _noted.setdefault(lane.session, set())
        if (found.module, kind) not in seen:
            seen.add((found.module, kind))
            lane.session.note(Note(NoteKind.UNCAPTURED, what, found.where))


def _diverged(lane: Lane | None, found: Opener, what: str) -> BaseException:
    divergence = Divergence(
        DivergenceClass.INCOMPLETE,
        None,
        None,
        f"uncaptured boundary: {what}, in {found.where or 'code that cannot be told'}",
        remedy="Nothing was sent. Put the call behind `boundary(...)` and record again, or take it out.",
    )
    pin = None if lane is None else getattr(lane.session, "pin", None)
    if pin is not None and pin(divergence, found.where):
        return ConnectionRefusedError(errno.ECONNREFUSED, "nothing leaves a replay")
    keep: Callable[[Divergence], BaseException] | None
    keep = None if lane is None else getattr(lane.session, "diverge", None)
    return DivergenceError(divergence) if keep is None else keep(divergence)
