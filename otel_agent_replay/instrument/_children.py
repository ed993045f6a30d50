"""Commands that the program has started: the steps that it takes with them, and what it does to them by their ids.

A command that is run to its end in one call is one crossing. One that the program speaks with is a crossing for its
start and one for each step: a read that came back, something written, a wait that ended. So each has its place among
everything else that the program does.

In a replay the id of a command is the recorded one, which may be anybody's here: what is done to it is answered, and
never reaches the system.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import BASE, caller, kind_of
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _asking, _filesystem, _outputs
from otel_agent_replay.recording.values import Kind, Outcome, Returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Session
    from otel_agent_replay.instrument._outputs import Output

THROUGH: Final = frozenset({"subprocess", "os", "contextlib", "functools", "signal", "select", "selectors"})
"""Modules that only pass on what is done to a command."""

_MOST: Final = 10_000
"""Commands whose ids are known while recording; a replay knows them all."""


@dataclass(slots=True)
class Child:
    """A command that the program has started and speaks with."""

    lane: Lane
    """The lane that started it, which speaks for code that belongs to none."""
    key: str
    replaying: bool
    returncode: int | None = None
    quiet: bool = False
    """Whatever still happens to its pipes is no step."""
    outputs: list[Output] = field(default_factory=list)
    """Files of the program that it writes to."""
    ends: list[Any] = field(default_factory=list)
    """Ends of pipes of the program's own to it."""

    def step(
        self,
        name: str,
        told: object,
        perform: Callable[[], object],
        otherwise: Callable[[], Outcome | None] | None = None,
    ) -> Any:
        """One step; `perform` takes it while recording. Gives its outcome."""
        lane = self._speaker()
        if lane is None:
            return perform()
        self._told(name, lane)
        return _asking.cross(lane, Call(Kind.PROCESS, f"{self.key}.{name}", told, otherwise=otherwise), perform)

    async def step_async(
        self,
        name: str,
        told: object,
        perform: Callable[[], Awaitable[object]],
        otherwise: Callable[[], Outcome | None] | None = None,
    ) -> Any:
        """The same for a coroutine."""
        lane = self._speaker()
        if lane is None:
            return await perform()
        self._told(name, lane)
        call = Call(Kind.PROCESS, f"{self.key}.{name}", told, otherwise=otherwise)
        return await _asking.cross_async(lane, call, perform)

    def ended(self) -> None:
        """The program knows that it has ended: what it wrote to files of the program stands there now."""
        outputs, self.outputs = self.outputs, []
        if not outputs:
            return
        written = self.step("files", None, lambda: _outputs.taken(self.lane, self.key, outputs), nothing)
        if self.replaying:
            _outputs.put(outputs, written)
        _outputs.close(outputs)

    def _told(self, name: str, lane: Lane) -> None:
        """While recording: one that is told something may write files, as one that starts."""
        if name == "stdin" and not self.replaying:
            _filesystem.command_starts(lane.session)

    def _speaker(self) -> Lane | None:
        """The lane that takes a step; None for what the standard library does within one."""
        if self.quiet:
            return None
        lane = _asking.lane_of(_asking.COMMANDS)
        if lane is not None and lane.session is self.lane.session:
            return lane
        return self.lane if self.replaying else None


def nothing() -> Outcome:
    """The outcome of a step that an earlier version did not record."""
    return Returned(None)


@dataclass(slots=True)
class _Ids:
    """What the program may call its commands by."""

    pids: dict[int, Child] = field(default_factory=dict)
    groups: dict[int, Child] = field(default_factory=dict)
    """By what it was told of the group and session of one."""
    fds: dict[int, Child] = field(default_factory=dict)
    """By descriptors of processes that it has opened."""


_IDS: Final = "ids_of_commands"
"""The attribute of a session that holds them, so that they go with it."""


def ids_of(session: Session) -> _Ids | None:
    """What the program of this run may call its commands by."""
    return vars(session).get(_IDS)


def started(child: Child, pid: int) -> None:
    """The program has been given the id of a command."""
    ids: _Ids = vars(child.lane.session).setdefault(_IDS, _Ids())
    ids.pids[pid] = child
    if not child.replaying and len(ids.pids) > _MOST:
        del ids.pids[next(iter(ids.pids))]


def has_any() -> bool:
    """Whether the running code belongs to a run that has started a command."""
    lane = lanes.current()
    return lane is not None and ids_of(lane.session) is not None


def of(pid: object, *, group: bool = False) -> Child | None:
    """The command of the running code's run that has this id, or whose group has it."""
    lane = lanes.current()
    ids = None if lane is None else ids_of(lane.session)
    if ids is None or type(pid) is not int:
        return None
    return ids.pids.get(pid) or (ids.groups.get(pid) if group else None)


def do(child: Child, name: str, act: Callable[[], Any], depth: int = 2) -> Any:
    """What the program does to a command by its id: a reading, of what came back or of the error.

    Args:
        child: the command.
        name: what is done, as `os` calls it.
        act: does it, while recording.
        depth: how many frames above this one the caller of the patched function is.
    """
    found = _asking.asking(_asking.COMMANDS, THROUGH, depth + 1)
    if found is None:
        frame = caller(depth)
        if not child.replaying or (frame is not None and kind_of(frame) == BASE):
            return act()  # it is the standard library, with a process of its own
        return settled(_presumed(child, name))
    lane, frame = found

    def look() -> str:
        return json.dumps(_presumed(child, name) if child.replaying else told(act))

    value = settled(json.loads(lane.session.read(lane, f"process:{name}:{child.key}", frame, look)))
    if name in ("getpgid", "getsid"):
        ids = ids_of(child.lane.session)
        assert ids is not None  # it is where the child was found
        ids.groups[value] = child
    return value


def told(act: Callable[[], Any]) -> dict[str, Any]:
    """What came back, or the arguments of the OSError."""
    try:
        return {"v": act()}
    except OSError as error:
        return {"e": list(error.args), "gone": isinstance(error, ProcessLookupError)}


def settled(told: Mapping[str, Any]) -> Any:
    """What came back. Raises the OSError that was told of."""
    if "e" not in told:
        return told["v"]
    raise ProcessLookupError(*told["e"]) if told.get("gone") else OSError(*told["e"])


def pid_of(child: Child) -> int:
    """The id of a command, as the program was given it; 0 where nobody knows it any more."""
    ids = ids_of(child.lane.session)
    return 0 if ids is None else next((pid for pid, known in ids.pids.items() if known is child), 0)


def _presumed(child: Child, name: str) -> dict[str, Any]:
    """What a replay answers where the recording has nothing."""
    if name in ("getpgid", "getsid"):
        return {"v": pid_of(child)}
    if name.startswith("wait"):
        return {"e": [errno.ECHILD, os.strerror(errno.ECHILD)]}
    return {"v": None} if child.returncode is None else {"e": [errno.ESRCH, os.strerror(errno.ESRCH)]}
