"""`subprocess`, `os.system`, `os.popen`: commands that the program runs, which a replay does not.

`run` and `call`, and with them `check_output` and the like, are one crossing each. `Popen` is one for its start and
one for each step that the program takes with it; its pipes are files whose reads and writes are such steps.
"""

from __future__ import annotations

import inspect
import io
import json
import locale
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary.lanes import LANE, OUTSIDE
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _commands, _filesystem
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross
from otel_agent_replay.instrument._commands import Child
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_agent_replay.boundary.lanes import Lane

_THROUGH: Final = frozenset({"subprocess", "os", "contextlib", "functools"})
_PIPES: Final = (("stdin", "wb"), ("stdout", "rb"), ("stderr", "rb"))
_ASKING_THE_SYSTEM: Final = frozenset({"distro", "distro.distro"})
"""Libraries that run a program of the system to learn what machine this is."""

_popen_signature: Final = inspect.signature(subprocess.Popen.__init__)
_children: WeakKeyDictionary[Any, Child] = WeakKeyDictionary()


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    popen = subprocess.Popen
    patches.put(subprocess, "run", _run(subprocess.run))
    patches.put(subprocess, "call", _call(subprocess.call))
    patches.put(os, "system", unbindable(_system(os.system), os.system, "os"))
    for name, make in (
        ("__init__", _init),
        ("communicate", _communicate),
        ("wait", _wait),
        ("poll", _poll),
        ("send_signal", _send_signal),
    ):
        original = getattr(popen, name)
        replacement = make(original)
        like(replacement, original, "subprocess")
        patches.put(popen, name, replacement)


_installation = Installation(_put)


def _asker(depth: int = 3) -> Lane | None:
    found = asking(COMMANDS, _THROUGH, depth)
    if found is None or found[1].f_globals.get("__name__") in _ASKING_THE_SYSTEM:
        return None
    return found[0]


def _listed(args: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `subprocess.Popen`, with the command as a list where it is an iterator."""
    if args:
        return (_commands.listed(args[0]), *args[1:]), options
    return args, {**options, "args": _commands.listed(options["args"])}


def _told(lane: Lane, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, object]:
    bound = _popen_signature.bind_partial(None, *args, **options).arguments
    return _commands.describe(lane, bound.pop("args"), bound)


# -- commands that are run to their end --------------------------------------------------------------------


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        *popenargs: Any,
        input: Any = None,
        capture_output: bool = False,
        timeout: float | None = None,
        check: bool = False,
        **kwargs: Any,
    ) -> Any:
        given = {"input": input, "capture_output": capture_output, "timeout": timeout, **kwargs}
        lane = _asker() if popenargs or "args" in kwargs else None
        if lane is None or (input is not None and kwargs.get("stdin") is not None):
            return original(*popenargs, **given, check=check)
        command = popenargs[0] if popenargs else kwargs["args"]
        popenargs, kwargs = _listed(popenargs, kwargs)
        told = _told(lane, popenargs, kwargs)
        if capture_output:
            told["stdout"] = told["stderr"] = "pipe"
        if input is not None:
            told["input"] = input
        given = {**given, **kwargs}
        ended = _whole(lane, told, lambda: original(*popenargs, **given))
        if "timeout" in ended:
            raise subprocess.TimeoutExpired(command, timeout or 0.0, ended.get("stdout"), ended.get("stderr"))
        done = subprocess.CompletedProcess(command, ended["returncode"], ended.get("stdout"), ended.get("stderr"))
        if check:
            done.check_returncode()
        return done

    like(run, original, "subprocess")
    return run


def _call(original: Callable[..., int]) -> Callable[..., int]:
    def call(*popenargs: Any, timeout: float | None = None, **kwargs: Any) -> int:
        lane = _asker() if popenargs or "args" in kwargs else None
        if lane is None:
            return original(*popenargs, timeout=timeout, **kwargs)
        command = popenargs[0] if popenargs else kwargs["args"]
        popenargs, kwargs = _listed(popenargs, kwargs)
        told = _told(lane, popenargs, kwargs)
        ended = _whole(lane, told, lambda: original(*popenargs, timeout=timeout, **kwargs))
        if "timeout" in ended:
            raise subprocess.TimeoutExpired(command, timeout or 0.0)
        status: int = ended["returncode"]
        return status

    like(call, original, "subprocess")
    return call


def _whole(lane: Lane, told: dict[str, object], perform: Callable[[], Any]) -> dict[str, Any]:
    """One crossing of a command that is run to its end. A timeout is an outcome like any other."""

    def performed() -> dict[str, object]:
        _filesystem.command_starts(lane.session)
        try:
            done = perform()
        except subprocess.TimeoutExpired as expired:
            return {"timeout": True, "stdout": expired.stdout, "stderr": expired.stderr}
        if isinstance(done, int):
            return {"returncode": done}
        return {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

    ended: dict[str, Any] = cross(lane, Call(Kind.PROCESS, _commands.key_of(told), told), performed)
    return ended


def _system(original: Callable[..., int]) -> Callable[..., int]:
    def system(_: object, command: Any) -> int:
        lane = _asker()
        if lane is None:
            return original(command)
        told = _told(lane, (command,), {"shell": True})
        return int(_whole(lane, told, lambda: original(command))["returncode"])

    return system


# -- commands that the program speaks with -----------------------------------------------------------------


def _init(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, args: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 (it stands for one)
        lane = _asker()
        if lane is None:
            original(self, args, *rest, **named)
            return
        command, args = args, _commands.listed(args)
        told = _told(lane, (args, *rest), named)
        key = _commands.key_of(told)
        child = Child(lane, key, lane.session.replaying)

        def start() -> dict[str, object]:
            _filesystem.command_starts(lane.session)
            original(self, args, *rest, **named)
            return {"pid": self.pid}

        started = cross(lane, Call(Kind.PROCESS, key, told), start)
        _children[self] = child
        options = _popen_signature.bind_partial(self, args, *rest, **named).arguments
        if child.replaying:
            _stand_in(self, options, started["pid"])
        self.args = command
        _connect(self, child, options)

    return __init__


def _stand_in(self: Any, options: Mapping[str, Any], pid: int) -> None:
    """What `Popen.__init__` sets, for a process that is not there."""
    self.pid, self.returncode = pid, None
    self.encoding, self.errors = options.get("encoding"), options.get("errors")
    self.pipesize, self.process_group = options.get("pipesize", -1), options.get("process_group", -1)
    self.text_mode = self.encoding or self.errors or options.get("text") or options.get("universal_newlines") or None
    if self.text_mode and not self.encoding:
        self.encoding = locale.getpreferredencoding(do_setlocale=False)
    self._input, self._communication_started = None, False
    self._waitpid_lock, self._sigint_wait_secs = threading.Lock(), 0
    self._closed_child_pipe_fds, self._child_created = True, False
    self.stdin = self.stdout = self.stderr = None


def _connect(self: Any, child: Child, options: Mapping[str, Any]) -> None:
    """Put files whose reads and writes are steps in place of the ends of the pipes."""
    size = options.get("bufsize", -1)
    by_line = bool(self.text_mode) and size == 1
    if by_line:
        size = -1
    for name, mode in _PIPES:
        if options.get(name) != subprocess.PIPE:
            continue
        if child.replaying:
            number = os.open(os.devnull, os.O_RDWR)
        else:
            plain = getattr(self, name)
            number = os.dup(plain.fileno())
            plain.close()
        raw: Any = _Pipe(number, mode, child, name)
        if size:
            buffer = io.BufferedWriter if mode == "wb" else io.BufferedReader
            raw = buffer(raw, size if size > 0 else io.DEFAULT_BUFFER_SIZE)
        if self.text_mode:
            text: dict[str, Any] = {"encoding": self.encoding, "errors": self.errors}
            writing: dict[str, Any] = {"write_through": True, "line_buffering": by_line} if mode == "wb" else {}
            raw = io.TextIOWrapper(raw, **text, **writing)
        setattr(self, name, raw)


class _Pipe(io.FileIO):
    """An end of a pipe to a command. In a replay it leads nowhere, and gives what was recorded."""

    def __init__(self, number: int, mode: str, child: Child, what: str) -> None:
        super().__init__(number, mode)
        self._child = child
        self._what = what

    def readinto(self, buffer: Any) -> Any:
        view = memoryview(buffer).cast("B")

        def read() -> bytes | None:
            count = super(_Pipe, self).readinto(view)
            return None if count is None else bytes(view[:count])

        data = self._child.step(self._what, None, read)
        if data is None:
            return None
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> Any:
        return self._child.step(self._what, None, lambda: super(_Pipe, self).read(-1 if size is None else size))

    def readall(self) -> Any:
        return self._child.step(self._what, None, lambda: super(_Pipe, self).readall())

    def write(self, data: Any, /) -> Any:
        held = bytes(data)
        return self._child.step(self._what, held, lambda: super(_Pipe, self).write(held))


def _communicate(original: Callable[..., Any]) -> Callable[..., Any]:
    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        child = _children.get(self)
        if child is None:
            return original(self, input, timeout)

        def perform() -> dict[str, object]:
            try:
                out, err = original(self, input, timeout)
            except subprocess.TimeoutExpired as expired:
                return {"timeout": True, "stdout": expired.stdout, "stderr": expired.stderr}
            return {"returncode": self.returncode, "stdout": out, "stderr": err}

        ended = child.step("communicate", {} if input is None else {"input": input}, perform)
        if "timeout" in ended:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, ended["stdout"], ended["stderr"])
        if child.replaying:
            self.returncode = ended["returncode"]
            child.quiet = True  # what is still in the buffer of its input was written within the recorded step
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    stream.close()
        return ended["stdout"], ended["stderr"]

    return communicate


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, timeout: float | None = None) -> Any:
        child = _children.get(self)
        if child is None or self.returncode is not None:
            return original(self, timeout)

        def perform() -> dict[str, object]:
            try:
                return {"returncode": original(self, timeout)}
            except subprocess.TimeoutExpired:
                return {"timeout": True}

        ended = child.step("wait", None, perform)
        if "timeout" in ended:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        if child.replaying:
            self.returncode = ended["returncode"]
        return ended["returncode"]

    return wait


def _poll(original: Callable[..., Any]) -> Callable[..., Any]:
    def poll(self: Any) -> Any:
        child = _children.get(self)
        if child is None or self.returncode is not None:
            return original(self)
        found = asking(COMMANDS, _THROUGH)
        if found is None:
            return None if child.replaying else original(self)
        lane, frame = found
        text = lane.session.read(
            lane, f"process:poll:{child.key}", frame, lambda: "null" if child.replaying else json.dumps(original(self))
        )
        status = json.loads(text)
        if child.replaying and isinstance(status, int):
            self.returncode = status
        return status

    return poll


def _send_signal(original: Callable[..., None]) -> Callable[..., None]:
    def send_signal(self: Any, sig: int) -> None:
        child = _children.get(self)
        if child is None:
            original(self, sig)
            return
        if child.replaying:
            return
        token = LANE.set(OUTSIDE)  # it looks whether the process has ended: that is not the program's look
        try:
            original(self, sig)
        finally:
            LANE.reset(token)

    return send_signal
