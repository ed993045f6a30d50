"""What the handlers of signals raise: told by its traceback, wherever it comes out.

The handler of a signal is called through `hand_over`, whose frame says which signal it was. An error that came out of
one may be wrapped by whatever it came into: a library takes the TimeoutError of a handler for one of its socket's.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

CLOSED = tuple(
    f"otel_agent_replay.{name}"
    for name in (
        "recording.",
        "telemetry.",
        "replay.",
        "boundary.delivery:",
        "boundary.gate:",
        "boundary.session:cross",
        "boundary.session:run",
        "instrument._stream:Tap.",
        "instrument.wire:_",
    )
)
"""Modules, and functions in them, in which the recorder does things of its own: no handler may raise in the middle of
that, and none of it waits for the world."""

BELOW = (
    *(
        f"otel_agent_replay.boundary.{name}:"
        for name in ("callers", "draws", "lanes", "loops", "parties", "real", "shield", "sites", "spots", "stall")
    ),
    "otel_agent_replay.boundary.handlers:in_recorder",
    "otel_agent_replay.boundary.order:call_handler",
    "otel_agent_replay.boundary.order:ordering",
    "otel_agent_replay.instrument.libraries.signals:_Handler",
)
"""Modules, and functions in them, that these call, and the program's calls too; or that another signal runs."""

DEEPEST = 40
"""Frames that are looked through for one of ours."""

UNPLACED = -1
"""Stands for the place of a signal that has none in the order of its run."""


def hand_over(
    handler: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None, place: int
) -> object:
    """Call a handler; `place` is that of its signal in the order of the run."""
    return handler(number, frame)


def in_recorder(frame: FrameType | None) -> bool:
    """Whether a thread that is interrupted in this frame is in the middle of recording something."""
    for _ in range(DEEPEST):
        if frame is None:
            return False
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("otel_agent_replay."):
            place = f"{module}:{frame.f_code.co_qualname}"
            if not place.startswith(BELOW):
                return place.startswith(CLOSED)
        frame = frame.f_back
    return False


def raised_by(error: BaseException | None, since: int = UNPLACED - 1) -> int | None:
    """The place of the signal whose handler raised this, or what it was made of; None for none after `since`."""
    for part in chain(error):
        place = came_out_of(part)
        if place is not None:
            return place if place > since else None
    return None


def came_out_of(error: BaseException) -> int | None:
    """The place of the signal whose handler raised just this error."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is hand_over.__code__:
            place: int = trace.tb_frame.f_locals["place"]
            return place
        trace = trace.tb_next
    return None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it was made of, latest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def told(recorded: BaseException | None, raised: BaseException) -> BaseException:
    """What a call raises into which a handler has raised: the recorded error, where that was made of such a one."""
    if recorded is None:
        return raised
    if type(raised) is type(recorded):
        raised.__traceback__ = _grafted(recorded.__traceback__, raised.__traceback__)
        return raised
    return recorded if any(type(part) is type(raised) for part in chain(recorded)) else raised


def _grafted(recorded: TracebackType | None, raised: TracebackType | None) -> TracebackType | None:
    """Where a handler raised, below the recorded frames that it came into: a replay does not run those."""
    parts = _parts(raised)
    ours = [place for place, part in enumerate(parts) if part.tb_frame.f_code is hand_over.__code__]
    own = parts[ours[-1] :] if ours else []
    was = _parts(recorded)
    count = len(own) - 1
    names = [part.tb_frame.f_code.co_name for part in own[1:]]
    if count < 1 or [part.tb_frame.f_code.co_name for part in was[-count:]] != names:
        return raised
    made: TracebackType | None = None
    for part in reversed([*was[:-count], *own]):
        made = TracebackType(made, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return made


def _parts(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found
