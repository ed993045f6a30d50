"""Readings of a clock that is read often: the place of a call site's values, found again at little cost.

A lane remembers, by the instructions of the code that reads and of the code that called it, which call site that
is and where its values wait to be written (`Lane.sites`, filled by the session). Whoever reads looks there first.

Between the look and the append nothing else may run, or the values could have been taken to be written meanwhile:
the interpreter lets other threads run at calls and jumps only, so the value is read before the look, and nothing is
called or made in between. Without the interpreter's lock, or under a debugger, nothing is remembered.

Where the package was built with a C compiler, the look and the append of a frame that remembers are made by
`_keeping`, which hands everything else to the functions here.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import WRAPPER_ASSIGNMENTS
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import DISPATCH, SEEN_THROUGH, clock_reader, kind_of
from otel_agent_replay.boundary.lanes import GROUND, LANE, ONCE, OUTSIDE, Memo
from otel_agent_replay.boundary.sites import is_near

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

try:
    from otel_agent_replay.instrument import _keeping
except ImportError:  # there was no compiler where the package was built
    _keeping = None  # type: ignore[assignment]

F = TypeVar("F", bound="Callable[..., Any]")

FULL: Final = 4096
"""So many values of one call site are written, whatever else happens."""

NOBODY: Final[list[Any]] = []
"""Stands for the values of code whose readings are none of the program's."""

FARTHEST: Final = lanes.FARTHEST

REMEMBERS: Final = getattr(sys, "_is_gil_enabled", lambda: True)()

_MOST_PLACES: Final = 10_000
_getframe = sys._getframe  # noqa: SLF001 (there is no other way to a caller)


class Keeping(Protocol):
    """A session that takes a value that was read already."""

    def keep(self, lane: Lane, source: str, frame: FrameType, value: object, *, near: bool) -> None:
        """Keep it; `near` if `frame` and its caller tell the call site, so that the lane can remember it."""

    def follow(self, lane: Lane, source: str, frame: FrameType) -> None:
        """Let a frame remember what its lane remembers of the call that it is making."""

    def pack(self) -> None:
        """Write what waits."""


def numbers(original: Callable[[], Any], source: str) -> Callable[[object], Any]:  # noqa: C901 (`read`)
    """The replacement of a function that takes nothing. It is called often: everything it needs is at hand."""
    lane_here, getframe, ground, nobody, once = LANE.get, _getframe, GROUND, NOBODY, ONCE
    offset = lanes.offset_of(source)

    def read(_: object) -> Any:  # noqa: C901 (it is called often)
        value = original()
        try:
            frame = getframe(1)
            memo = frame.f_trace
            if type(memo) is Memo:
                kept = memo[frame.f_lasti + offset]
                kept.append(value)
                if len(kept) >= FULL:
                    write()
                return value
        except (KeyError, ValueError):
            pass
        lane = lane_here()
        if ground:
            lane = lanes.grounded(lane)
        if lane is None:
            lane = lanes.process_root
            if lane is None:
                return value
        if lane.beneath is not None:  # as HTTP clients do for each connection that they hold
            return value
        try:
            frame = getframe(1)
            outer = frame.f_back or frame
            code, behind, which, values = lane.sites[frame.f_lasti * FARTHEST + outer.f_lasti]
        except (KeyError, ValueError):
            return first(source, value, original)
        if frame.f_code is code and outer.f_code is behind and which is source:
            if values is nobody:
                return value
            values.append(value)
            if memo is None:
                frame.f_trace = once
            elif memo is once:
                follow(source, frame)
            if len(values) >= FULL:
                write()
            return value
        return first(source, value, original)

    if _keeping is None or not REMEMBERS:
        return read
    return _as(read, _keeping.numbers(original, Memo, read, write, offset, FULL))


def times(  # noqa: C901 (`now`)
    original: Callable[[tzinfo | None], datetime],
    sources: tuple[str, str],
    otherwise: Callable[[type[datetime], tzinfo | None], datetime],
    unknown: Callable[[datetime, tzinfo | None], datetime],
) -> Callable[..., datetime]:
    """The replacement of `datetime.now`: the same for `datetime` itself, without a time zone or with UTC.

    Args:
        original: the time of such a zone.
        sources: what is read without a zone, and with one.
        otherwise: makes the time of another class or zone.
        unknown: keeps a time that `original` gave to a call site that nobody remembers, two frames out.
    """
    lane_here, getframe, ground, nobody, once = LANE.get, _getframe, GROUND, NOBODY, ONCE
    without, with_zone = sources
    offset, offset_with_zone = map(lanes.offset_of, sources)

    def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:  # noqa: C901 (as above)
        if cls is not datetime or (tz is not None and tz is not UTC):
            return otherwise(cls, tz)
        value = original(tz)
        try:
            frame = getframe(1)
            memo = frame.f_trace
            if type(memo) is Memo:
                kept = memo[frame.f_lasti + (offset if tz is None else offset_with_zone)]
                kept.append(value)
                if len(kept) >= FULL:
                    write()
                return value
        except (KeyError, ValueError):
            pass
        lane = lane_here()
        if ground:
            lane = lanes.grounded(lane)
        if lane is None:
            lane = lanes.process_root
            if lane is None:
                return value
        if lane.beneath is not None:  # as HTTP clients do for each connection that they hold
            return value
        try:
            frame = getframe(1)
            outer = frame.f_back or frame
            code, behind, which, values = lane.sites[frame.f_lasti * FARTHEST + outer.f_lasti]
        except (KeyError, ValueError):
            return unknown(value, tz)
        if frame.f_code is code and outer.f_code is behind and which is (without if tz is None else with_zone):
            if values is nobody:
                return value
            values.append(value)
            if memo is None:
                frame.f_trace = once
            elif memo is once:
                follow(which, frame)
            if len(values) >= FULL:
                write()
            return value
        return unknown(value, tz)

    if _keeping is None or not REMEMBERS:
        return now
    return _as(now, _keeping.times(original, Memo, now, write, offset, offset_with_zone, FULL, datetime, UTC))


def _as(function: F, compiled: F) -> F:
    """What was compiled, with the names and the signature of what it stands for."""
    for name in (*WRAPPER_ASSIGNMENTS, "__code__", "__defaults__", "__kwdefaults__"):
        setattr(compiled, name, getattr(function, name))
    return compiled


def first(source: str, value: Any, original: Callable[[], Any], depth: int = 2) -> Any:
    """Keep a reading of a call site that nobody remembers, and remember it.

    Args:
        source: what is read.
        value: what has been read.
        original: reads it in the form in which sessions know it.
        depth: how many frames out the code that reads is.

    Returns:
        `value` itself, or what the session gave instead, in that form.
    """
    lane = lanes.here()
    if lane is None:
        lane = lanes.process_root
    if lane is None or lane.beneath is not None or lane is OUTSIDE:
        return value
    try:
        frame: FrameType = _getframe(depth)
    except ValueError:  # called from no frame at all: by the interpreter as it ends, or as a thread begins
        return value
    kind = kind_of(frame)
    reader = frame if kind <= DISPATCH else clock_reader(frame)
    if reader is None:
        if kind != SEEN_THROUGH and REMEMBERS and len(lane.sites) < _MOST_PLACES:
            outer = frame.f_back or frame
            if outer.f_lasti < FARTHEST:
                lane.sites[frame.f_lasti * FARTHEST + outer.f_lasti] = (frame.f_code, outer.f_code, source, NOBODY)
        return value
    keep = getattr(lane.session, "keep", None)
    if keep is None:
        return lane.session.read(lane, source, reader, original)
    near = REMEMBERS and reader is frame and is_near(frame) and sys.gettrace() is None
    keep(lane, source, reader, value, near=near)
    return value


def follow(source: str, frame: FrameType) -> None:
    """Let a frame remember where its values are kept: it reads more than once."""
    lane = lanes.current()
    if lane is not None:
        cast("Keeping", lane.session).follow(lane, source, frame)


def write() -> None:
    """Write what waits in the caller's lane: it is much."""
    lane = lanes.current()
    if lane is not None:
        cast("Keeping", lane.session).pack()
