"""`loop.subprocess_exec` and `loop.subprocess_shell`: commands that a protocol of the program's own listens to.

What the loop would tell the protocol is awaited by a task, each of it as a step, and told by that: so it has its place
among everything else that the program does, and a replay tells it the same without a process.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import json
import subprocess
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.instrument import _children, _commands, _filesystem, _outputs, _pipes
from otel_agent_replay.instrument._ambient import Installation, Patches, like
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross_async
from otel_agent_replay.instrument._children import Child
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import ModuleType

_THROUGH: Final = frozenset({"asyncio.base_events", "asyncio.tasks", "asyncio.timeouts", "contextlib", "functools"})
_PIPES: Final = ("stdin", "stdout", "stderr")
"""By the descriptor that each is of the command; all are pipes, unless something else is asked for."""
_NAMES: Final = ("subprocess_exec", "subprocess_shell")


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in _NAMES:
        original = getattr(asyncio.base_events.BaseEventLoop, name)
        patches.put(asyncio.base_events.BaseEventLoop, name, _start(original, shell=name.endswith("shell")))
    if not _hooked:
        _hooked.append(True)
        wrapt.register_post_import_hook(_uvloop_imported, "uvloop")


_installation = Installation(_put)
_hooked: list[bool] = []


def _uvloop_imported(module: ModuleType) -> None:
    loop: Any = getattr(module, "Loop", None)
    if _installation.patches is None or not isinstance(loop, type):
        return
    for name in _NAMES:
        _installation.patches.put(loop, name, _start(getattr(loop, name), shell=name.endswith("shell")))


def _start(original: Callable[..., Awaitable[Any]], *, shell: bool) -> Callable[..., Awaitable[Any]]:
    async def start(self: Any, protocol_factory: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        found = asking(COMMANDS, _THROUGH)
        program = args or ((kwargs["cmd"],) if "cmd" in kwargs else (kwargs["program"],) if "program" in kwargs else ())
        if found is None or not program:
            return await original(self, protocol_factory, *args, **kwargs)
        lane = found[0]
        options = {**dict.fromkeys(_PIPES, subprocess.PIPE), **kwargs}
        told = _commands.describe(lane, program[0] if shell else program, {**options, "shell": shell})
        key = _commands.key_of(told)
        child = Child(lane, key, lane.session.replaying, outputs=_outputs.given(lane, key, options, _pipes.KNOWN))
        protocol, events = protocol_factory(), _Events()
        made: list[Any] = []

        async def perform() -> dict[str, object]:
            _filesystem.command_starts(lane.session)
            transport, _ = await original(self, lambda: events, *args, **kwargs)
            made.append(transport)
            return {"pid": transport.get_pid()}

        pid: int = (await cross_async(lane, Call(Kind.PROCESS, key, told), perform))["pid"]
        _children.started(child, pid)
        piped = [number for number, name in enumerate(_PIPES) if options[name] == subprocess.PIPE]
        transport = _Transport(self, child, pid, piped, protocol, made[0] if made else None)
        transport.tell("connection_made", transport)
        transport.listening = self.create_task(_listen(transport, events))
        # Where a loop is left without an end, the program's own would have gone in silence.
        transport.listening._log_destroy_pending = False  # noqa: SLF001 (there is no other way to it)
        return transport, protocol

    like(start, original, "asyncio.base_events")
    return start


class _Events(asyncio.SubprocessProtocol):
    """What the loop tells, kept until it is asked for."""

    def __init__(self) -> None:
        self._waiting: deque[list[Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._keep("pipe_data_received", fd, bytes(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._keep("pipe_connection_lost", fd, _told(exc))

    def process_exited(self) -> None:
        self._keep("process_exited", self._transport.get_returncode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep("connection_lost", _told(exc))

    def pause_writing(self) -> None:
        self._keep("pause_writing")

    def resume_writing(self) -> None:
        self._keep("resume_writing")

    def _keep(self, *event: Any) -> None:
        self._waiting.append(list(event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[Any]:
        """The next of what was told."""
        while not self._waiting:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._waiting.popleft()


def _told(error: BaseException | None) -> Any:
    """What a pipe or a process was lost by: the arguments of an OSError, or what else is there to say."""
    if isinstance(error, OSError):
        return list(error.args)
    return None if error is None else [0, repr(error)]


def _lost(told: Any) -> OSError | None:
    return None if told is None else OSError(*told)


async def _listen(transport: _Transport, events: _Events) -> None:
    """Tell the program's protocol what the command does, until there is no more."""
    try:
        await _tell_all(transport, events)
    except DivergenceError:  # nobody awaits this task, and what the program waits for will never come
        loop = asyncio.get_running_loop()
        for task in asyncio.all_tasks(loop) - {asyncio.current_task()}:
            task.cancel("the replay has departed from its recording")


async def _tell_all(transport: _Transport, events: _Events) -> None:
    child = transport.child
    while True:
        name, *told = await child.step_async("event", None, events.next)
        if name == "process_exited":
            child.returncode = told.pop()
            child.ended()
        elif name.endswith("_lost"):
            told[-1] = _lost(told[-1])
        if name == "pipe_connection_lost":
            transport.pipes.pop(told[0], None)
        transport.tell(name, *told)
        if name == "connection_lost":
            return


class _Transport(asyncio.SubprocessTransport):
    """What the program has of a command; in a replay there is none."""

    def __init__(self, loop: Any, child: Child, pid: int, piped: Iterable[int], protocol: Any, real: Any) -> None:
        super().__init__()
        self.child = child
        self.pipes: dict[int, _End] = {}
        for number in piped:
            end = None if real is None else real.get_pipe_transport(number)
            self.pipes[number] = (_Input if number == 0 else _Output)(child, _PIPES[number], end)
        self.listening: Any = None
        """The task that tells the protocol: kept as long as the transport is."""
        self._loop, self._pid, self._protocol, self._real, self._closed = loop, pid, protocol, real, False

    def tell(self, name: str, *told: Any) -> None:
        """Call the program's protocol. What it raises goes where the loop says what callbacks raise."""
        try:
            getattr(self._protocol, name)(*told)
        except (SystemExit, KeyboardInterrupt):
            raise
        except Exception as error:  # noqa: BLE001 (as the loop takes what a callback raises)
            told_of = {"message": f"Exception in callback {name} of {self._protocol!r}", "exception": error}
            self._loop.call_exception_handler({**told_of, "transport": self, "protocol": self._protocol})

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> Any:
        child = self.child
        found = None if child.returncode is not None else asking(COMMANDS, _THROUGH)
        if found is None:
            return child.returncode
        lane, frame = found

        def look() -> str:
            return json.dumps(None if self._real is None else self._real.get_returncode())

        return json.loads(lane.session.read(lane, f"process:poll:{child.key}", frame, look))

    def get_pipe_transport(self, fd: int) -> Any:
        return self.pipes.get(fd)

    def send_signal(self, signal: int) -> None:
        self._signal(lambda: self._real.send_signal(signal))

    def terminate(self) -> None:
        self._signal(lambda: self._real.terminate())

    def kill(self) -> None:
        self._signal(lambda: self._real.kill())

    def _signal(self, send: Callable[[], None]) -> None:
        """One that has ended gets no signal, and the program an error."""
        found = asking(COMMANDS, _THROUGH, 3)
        if found is None:
            if self._real is not None:
                send()
            return
        lane, frame = found

        def look() -> str:
            return json.dumps({"v": None} if self._real is None else _children.told(send))

        _children.settled(json.loads(lane.session.read(lane, f"process:signal:{self.child.key}", frame, look)))

    def close(self) -> None:
        self._closed = True
        for end in self.pipes.values():
            end.closed = True
        if self._real is not None:
            self._real.close()

    def is_closing(self) -> bool:
        return self._closed

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._real is None else self._real.get_extra_info(name, default)


class _End(asyncio.BaseTransport):
    """The program's end of a pipe to a command; in a replay it leads nowhere."""

    def __init__(self, child: Child, name: str, real: Any) -> None:
        super().__init__()
        self.child, self.name, self.real, self.closed = child, name, real, False

    def close(self) -> None:
        self.closed = True
        self._real("close")

    def is_closing(self) -> bool:
        found = None if self.closed else asking(COMMANDS, _THROUGH)
        if found is None:
            return self.closed
        lane, frame = found
        source = f"process:is_closing:{self.child.key}.{self.name}"
        return bool(lane.session.read(lane, source, frame, lambda: int(bool(self._real("is_closing")))))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self.real is None else self.real.get_extra_info(name, default)

    def _real(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Do it to the pipe that is there; nothing in a replay."""
        return None if self.real is None else getattr(self.real, name)(*args, **kwargs)


class _Output(_End, asyncio.ReadTransport):
    def pause_reading(self) -> None:
        self._real("pause_reading")

    def resume_reading(self) -> None:
        self._real("resume_reading")

    def is_reading(self) -> bool:
        return self.real is None or bool(self.real.is_reading())


class _Input(_End, asyncio.WriteTransport):
    def write(self, data: Any) -> None:
        held = bytes(data)
        self.child.step(self.name, held, lambda: self._real("write", held))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.closed = True
        self._real("write_eof")

    def can_write_eof(self) -> bool:
        return True

    def abort(self) -> None:
        self.closed = True
        self._real("abort")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._real("set_write_buffer_limits", high=high, low=low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        limits: tuple[int, int] = self._real("get_write_buffer_limits") or (16 * 1024, 64 * 1024)
        return limits

    def get_write_buffer_size(self) -> int:
        found = asking(COMMANDS, _THROUGH)
        if found is None:
            return self._real("get_write_buffer_size") or 0
        lane, frame = found
        source = f"process:get_write_buffer_size:{self.child.key}"
        return lane.session.read(lane, source, frame, lambda: self._real("get_write_buffer_size") or 0)
