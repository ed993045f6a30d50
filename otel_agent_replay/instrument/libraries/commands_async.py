"""`asyncio.create_subprocess_exec` and `_shell`: commands that the program runs, which a replay does not.

The start is one crossing, and so is each thing that the program awaits of the process. What it gets is an
`asyncio.subprocess.Process` with a `StreamReader` and a `StreamWriter`, as ever.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import json
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _children, _commands, _filesystem, _outputs, _pipes
from otel_agent_replay.instrument._ambient import Installation, Patches, like
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross_async
from otel_agent_replay.instrument._children import Child, nothing
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

_THROUGH: Final = frozenset(
    {"asyncio.subprocess", "asyncio.tasks", "asyncio.streams", "asyncio.timeouts", "contextlib", "functools"}
)
_PIPE: Final = asyncio.subprocess.PIPE
_LIMIT: Final = 2**16
"""What `asyncio` lets a stream hold, where nothing else is asked for."""


def install() -> Callable[[], None]:
    """Patch them. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    for name in ("create_subprocess_exec", "create_subprocess_shell"):
        replacement = _create(getattr(asyncio, name), shell=name.endswith("shell"))
        patches.put(asyncio.subprocess, name, replacement)
        patches.put(asyncio, name, replacement)


_installation = Installation(_put)


def _create(original: Callable[..., Awaitable[Any]], *, shell: bool) -> Callable[..., Awaitable[Any]]:
    async def create(*args: Any, **kwargs: Any) -> Any:
        found = asking(COMMANDS, _THROUGH)
        program = args or ((kwargs["cmd"],) if "cmd" in kwargs else (kwargs["program"],) if "program" in kwargs else ())
        if found is None or not program:
            return await original(*args, **kwargs)
        lane = found[0]
        told = _commands.describe(lane, program[0] if shell else program, {**kwargs, "shell": shell})
        key = _commands.key_of(told)
        child = Child(lane, key, lane.session.replaying, outputs=_outputs.given(lane, key, kwargs, _pipes.KNOWN))
        made: list[Any] = []

        async def start() -> dict[str, object]:
            _filesystem.command_starts(lane.session)
            made.append(await original(*args, **kwargs))
            return {"pid": made[0].pid}

        started = await cross_async(lane, Call(Kind.PROCESS, key, told), start)
        process = made[0] if made else _stand_in(kwargs, started["pid"])
        _children.started(child, started["pid"])
        _connect(process, child)
        return process

    like(create, original, "asyncio.subprocess")
    return create


def _stand_in(options: dict[str, Any], pid: int) -> Any:
    """A process that is not there."""
    loop = asyncio.get_running_loop()
    process = asyncio.subprocess.Process.__new__(asyncio.subprocess.Process)
    stand_in: Any = process
    stand_in._transport, stand_in._protocol, stand_in._loop = _NoTransport(), None, loop  # noqa: SLF001 (as it makes them)
    stand_in.pid = pid
    limit = options.get("limit", _LIMIT)
    for name in ("stdout", "stderr"):
        piped = options.get(name) == _PIPE
        setattr(stand_in, name, asyncio.StreamReader(limit=limit, loop=loop) if piped else None)
    stand_in.stdin = asyncio.StreamWriter.__new__(asyncio.StreamWriter) if options.get("stdin") == _PIPE else None
    if stand_in.stdin is not None:
        stand_in.stdin._transport, stand_in.stdin._loop = _NoTransport(), loop  # noqa: SLF001
    return process


def _connect(process: Any, child: Child) -> None:
    process.__class__ = _Process
    process.agent_replay_child = child
    for name, kind in (("stdin", _Writer), ("stdout", _Reader), ("stderr", _Reader)):
        stream = getattr(process, name)
        if stream is not None:
            stream.__class__ = kind
            stream.agent_replay_child, stream.agent_replay_name = child, name


class _NoTransport:
    """Stands for the transport of a process, or of its input, that is not there."""

    def __init__(self) -> None:
        self.closed = False

    def get_returncode(self) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def send_signal(self, signal: int) -> None:
        """There is nobody to get it."""

    def terminate(self) -> None:
        """There is nobody to end."""

    kill = terminate


class _Process(asyncio.subprocess.Process):
    agent_replay_child: Child

    async def communicate(self, input: Any = None) -> tuple[Any, Any]:
        child = self.agent_replay_child

        async def perform() -> dict[str, object]:
            out, err = await super(_Process, self).communicate(input)
            return {"returncode": super(_Process, self).returncode, "stdout": out, "stderr": err}

        ended = await child.step_async("communicate", {} if input is None else {"input": input}, perform)
        child.returncode = ended["returncode"]
        child.ended()
        return ended["stdout"], ended["stderr"]

    async def wait(self) -> int:
        child = self.agent_replay_child
        child.returncode = await child.step_async("wait", None, super().wait)
        child.ended()
        return int(child.returncode)

    def send_signal(self, signal: int) -> None:
        self._signal(lambda: super(_Process, self).send_signal(signal))

    def terminate(self) -> None:
        self._signal(super().terminate)

    def kill(self) -> None:
        self._signal(super().kill)

    def _signal(self, send: Callable[[], None]) -> None:
        """One that has ended gets no signal, and the program an error."""
        child = self.agent_replay_child
        found = asking(COMMANDS, _THROUGH, 3)
        if found is None:
            send()
            return
        lane, frame = found

        def look() -> str:
            return json.dumps(_children.told(send))

        _children.settled(json.loads(lane.session.read(lane, f"process:signal:{child.key}", frame, look)))

    @property
    def returncode(self) -> Any:
        child = self.agent_replay_child
        if child.returncode is not None:
            return child.returncode
        found = asking(COMMANDS, _THROUGH)
        if found is None:
            return super().returncode
        lane, frame = found

        def look() -> str:
            return json.dumps(super(_Process, self).returncode)

        child.returncode = json.loads(lane.session.read(lane, f"process:poll:{child.key}", frame, look))
        if child.returncode is not None:
            child.ended()
        return child.returncode


class _Reader(asyncio.StreamReader):
    agent_replay_child: Child
    agent_replay_name: str

    async def read(self, n: int = -1) -> bytes:
        return await self._step({"read": n}, lambda: super(_Reader, self).read(n))

    async def readline(self) -> bytes:
        return await self._step({"readline": True}, super().readline)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        return await self._step({"readuntil": separator}, lambda: super(_Reader, self).readuntil(separator))

    async def readexactly(self, n: int) -> bytes:
        return await self._step({"readexactly": n}, lambda: super(_Reader, self).readexactly(n))

    def at_eof(self) -> bool:
        child = self.agent_replay_child
        found = None if child.quiet else asking(COMMANDS, _THROUGH)
        if found is None:
            return super().at_eof()
        lane, frame = found
        source = f"process:at_eof:{child.key}.{self.agent_replay_name}"
        return bool(lane.session.read(lane, source, frame, lambda: int(super(_Reader, self).at_eof())))

    async def _step(self, told: dict[str, object], perform: Callable[[], Awaitable[bytes]]) -> bytes:
        async def performed() -> dict[str, object]:
            try:
                return {"data": await perform()}
            except asyncio.IncompleteReadError as error:
                return {"partial": error.partial, "expected": error.expected}
            except asyncio.LimitOverrunError as error:
                return {"overrun": str(error), "consumed": error.consumed}

        ended = await self.agent_replay_child.step_async(self.agent_replay_name, told, performed)
        if "partial" in ended:
            raise asyncio.IncompleteReadError(ended["partial"], ended["expected"])
        if "overrun" in ended:
            raise asyncio.LimitOverrunError(ended["overrun"], ended["consumed"])
        if self.agent_replay_child.replaying and ended["data"] == b"" and told.get("read") != 0:
            self._eof = True
        data: bytes = ended["data"]
        return data


class _Writer(asyncio.StreamWriter):
    agent_replay_child: Child
    agent_replay_name: str

    def write(self, data: Any) -> None:
        held = bytes(data)
        self.agent_replay_child.step(self.agent_replay_name, held, lambda: super(_Writer, self).write(held))

    def writelines(self, data: Iterable[Any]) -> None:
        self.write(b"".join(data))

    async def drain(self) -> None:
        await self.agent_replay_child.step_async(f"{self.agent_replay_name}.drain", None, super().drain, nothing)

    async def wait_closed(self) -> None:
        name = f"{self.agent_replay_name}.wait_closed"
        await self.agent_replay_child.step_async(name, None, super().wait_closed, nothing)

    def is_closing(self) -> bool:
        child = self.agent_replay_child
        found = None if child.quiet else asking(COMMANDS, _THROUGH)
        if found is None:
            return super().is_closing()
        lane, frame = found
        source = f"process:is_closing:{child.key}.{self.agent_replay_name}"
        return bool(lane.session.read(lane, source, frame, lambda: int(super(_Writer, self).is_closing())))

    def __del__(self, *_: Any) -> None:
        """A writer of a replay has nothing to close; one of a recording closes with its transport."""
