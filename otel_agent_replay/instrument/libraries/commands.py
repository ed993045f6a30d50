"""`subprocess`, `os.system`, `os.popen`: commands that the program runs, which a replay does not.

`run` and `call`, and with them `check_output` and the like, are one crossing each. `Popen` is one for its start and
one for each step that the program takes with it; its pipes are files whose reads and writes are such steps.
"""

from __future__ import annotations

import inspect
import json
import locale
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary.lanes import LANE, OUTSIDE
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _children, _commands, _filesystem, _outputs, _pipes
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross
from otel_agent_replay.instrument._children import Child
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_agent_replay.boundary.lanes import Lane

_THROUGH: Final = frozenset({"subprocess", "os", "contextlib", "functools"})
_ASKING_THE_SYSTEM: Final = frozenset({"distro", "distro.distro"})
"""Libraries that run a program of the system to learn what machine this is."""

_popen_signature: Final = inspect.signature(subprocess.Popen.__init__)
_of: WeakKeyDictionary[Any, Child] = WeakKeyDictionary()


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
    bound = _options(args, options)
    return _commands.describe(lane, bound["args"], bound)


def _options(args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `subprocess.Popen` by name."""
    return _popen_signature.bind_partial(None, *args, **options).arguments


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
        ended = _whole(lane, told, lambda: original(*popenargs, **given), _options(popenargs, kwargs))
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
        options = _options(popenargs, kwargs)
        ended = _whole(lane, told, lambda: original(*popenargs, timeout=timeout, **kwargs), options)
        if "timeout" in ended:
            raise subprocess.TimeoutExpired(command, timeout or 0.0)
        status: int = ended["returncode"]
        return status

    like(call, original, "subprocess")
    return call


def _whole(
    lane: Lane, told: dict[str, object], perform: Callable[[], Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """One crossing of a command that is run to its end. A timeout is an outcome like any other."""
    key = _commands.key_of(told)
    outputs = _outputs.given(lane, key, options, _pipes.KNOWN)

    def performed() -> dict[str, object]:
        _filesystem.command_starts(lane.session)
        ended = _ended(perform)
        written = _outputs.taken(lane, key, outputs)
        return {**ended, "files": written} if written else ended

    ended: dict[str, Any] = cross(lane, Call(Kind.PROCESS, key, told), performed)
    if lane.session.replaying:
        _outputs.put(outputs, ended.get("files"))
    _outputs.close(outputs)
    return ended


def _ended(perform: Callable[[], Any]) -> dict[str, object]:
    try:
        done = perform()
    except subprocess.TimeoutExpired as expired:
        return {"timeout": True, "stdout": expired.stdout, "stderr": expired.stderr}
    if isinstance(done, int):
        return {"returncode": done}
    return {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def _system(original: Callable[..., int]) -> Callable[..., int]:
    def system(_: object, command: Any) -> int:
        lane = _asker()
        if lane is None:
            return original(command)
        told = _told(lane, (command,), {"shell": True})
        return int(_whole(lane, told, lambda: original(command), {})["returncode"])

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
        options = _options((args, *rest), named)
        child = Child(lane, key, lane.session.replaying, outputs=_outputs.given(lane, key, options, _pipes.KNOWN))

        def start() -> dict[str, object]:
            _filesystem.command_starts(lane.session)
            original(self, args, *rest, **named)
            return {"pid": self.pid}

        started = cross(lane, Call(Kind.PROCESS, key, told), start)
        _of[self] = child
        _children.started(child, started["pid"])
        if child.replaying:
            _stand_in(self, options, started["pid"])
        self.args = command
        _pipes.connect(self, child, options)

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
    self._internal_poll = _is_gone


def _is_gone(**_: Any) -> int:
    """Nobody looks for the process of this id."""
    return 0


def _communicate(original: Callable[..., Any]) -> Callable[..., Any]:
    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        child = _of.get(self)
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
        child.ended()
        if child.replaying:
            child.quiet = True  # what is still in the buffer of its input was written within the recorded step
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    stream.close()
        return ended["stdout"], ended["stderr"]

    return communicate


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, timeout: float | None = None) -> Any:
        child = _of.get(self)
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
        child.ended()
        return ended["returncode"]

    return wait


def _poll(original: Callable[..., Any]) -> Callable[..., Any]:
    def poll(self: Any) -> Any:
        child = _of.get(self)
        if child is None:
            return original(self)
        if self.returncode is not None:
            return self.returncode
        found = asking(COMMANDS, _THROUGH)
        if found is None:
            return None if child.replaying else original(self)
        lane, frame = found
        text = lane.session.read(
            lane, f"process:poll:{child.key}", frame, lambda: "null" if child.replaying else json.dumps(original(self))
        )
        status = json.loads(text)
        if isinstance(status, int):
            if child.replaying:
                self.returncode = status
            child.ended()
        return status

    return poll


def _send_signal(original: Callable[..., None]) -> Callable[..., None]:
    def send_signal(self: Any, sig: int) -> None:
        child = _of.get(self)
        if child is None:
            original(self, sig)
            return

        def look() -> str:
            """It looks whether the process has ended: that is not the program's look, but the program sees it."""
            if not child.replaying:
                token = LANE.set(OUTSIDE)
                try:
                    original(self, sig)
                finally:
                    LANE.reset(token)
            return json.dumps(self.returncode)

        found = asking(COMMANDS, _THROUGH)
        if found is None or self.returncode is not None:
            look()
            return
        lane, frame = found
        status = json.loads(lane.session.read(lane, f"process:signal:{child.key}", frame, look))
        if isinstance(status, int):
            if child.replaying:
                self.returncode = status
            child.ended()

    return send_signal
