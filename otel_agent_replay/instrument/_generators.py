"""Generators of `random`: the one that its functions share, and those that the program makes.

The class stays what it is; its primitive draws are exchanged. Draws of the shared generator are readings, so a
seeded program draws what it always drew, and two runs that draw in turns replay each by itself. A generator of the
program's own is kept by its seed until somebody beside the lane that seeded it draws (`boundary.draws`).
"""

from __future__ import annotations

import random
import sys
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.callers import TELEMETRY, caller
from otel_agent_replay.boundary.draws import Draws
from otel_agent_replay.boundary.sites import is_near
from otel_agent_replay.boundary.virtual import MOST_BITS, SEED_BYTES, state_bytes, state_of
from otel_agent_replay.instrument._ambient import Patches, entropy_reading, like
from otel_agent_replay.instrument._kept import FARTHEST, FULL, REMEMBERS, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


RANDOM: Final = "random:random"
GAUSS: Final = "random:gauss"
STATE: Final = "random:state"
GETRANDBITS: Final = "random:getrandbits:"
"""Followed by the number of bits, so that a draw of another size is another reading."""
SEED: Final = "random:seed"

KEPT: Final = "_otel_agent_replay_draws"
"""Attribute of a generator that a run has seeded: its `Draws`."""

_getframe = sys._getframe  # noqa: SLF001 (there is no other way to a caller)
_shared: Random = random._inst  # noqa: SLF001 (the generator of the module)
_random: Callable[[Random], float] = Random.random
_getrandbits: Callable[[Random, int], int] = Random.getrandbits
_gauss = Random.gauss
_seed = Random.seed
_setstate = Random.setstate
_getstate = Random.getstate


def put(patches: Patches) -> None:
    """Exchange the primitive draws of `random`; its other methods look these up when they are called."""
    for name, replacement in (
        ("random", _put_random),
        ("getrandbits", _put_getrandbits),
        ("gauss", _put_gauss),
        ("seed", _put_seed),
        ("setstate", _put_setstate),
        ("getstate", _put_getstate),
    ):
        like(replacement, getattr(Random, name), "random")
        patches.put(Random, name, replacement)
    patches.put(SystemRandom, "gauss", _gauss)  # what it draws of are readings, and of a frame of ours they are none
    if type(_shared) is Random:
        for name in ("random", "getrandbits", "gauss", "getstate"):
            patches.put(random, name, getattr(_shared, name))


def _put_random(self: Random) -> float:
    draws = self.__dict__.get(KEPT)
    if draws is not None and draws.by_seed():
        return _random(self)
    draw = _random
    if _remembered() is not None:
        value = _random(self)
        values = _remembered()  # again: while it was drawn, another thread may have handed them on
        if values is not None:
            values.append(value)
            if len(values) >= FULL:
                write()
            if draws is not None:
                draws.share()
            return value
        draw = lambda _: value  # noqa: E731
    found = entropy_reading()
    if found is None:
        return int.from_bytes(_aside(53)) / 2**53 if self is _shared and _telemetry(caller()) else draw(self)
    if draws is not None:
        draws.share()
    lane, frame = found
    keep = getattr(lane.session, "keep", None)
    if keep is None:
        return lane.session.read(lane, RANDOM, frame, partial(draw, self))
    value = draw(self)
    near = REMEMBERS and frame is caller() and is_near(frame) and sys.gettrace() is None
    keep(lane, RANDOM, frame, value, near=near)
    return value


def _remembered() -> list[Any] | None:
    """Where the lane keeps what the caller of `random` draws, if it remembers that (see `_kept`)."""
    lane = lanes.LANE.get()
    if lanes.GROUND:
        lane = lanes.grounded(lane)
    if lane is None:
        lane = lanes.process_root
        if lane is None:
            return None
    if lane.beneath is not None:
        return None
    try:
        frame = _getframe(2)
        outer = frame.f_back or frame
        code, behind, source, values = lane.sites[frame.f_lasti * FARTHEST + outer.f_lasti]
    except (KeyError, ValueError):
        return None
    return values if frame.f_code is code and outer.f_code is behind and source is RANDOM else None


def _put_getrandbits(self: Random, k: int, /) -> int:
    draws = self.__dict__.get(KEPT)
    if draws is not None and draws.by_seed():
        return _getrandbits(self, k)
    found = entropy_reading()
    if found is None:
        return int.from_bytes(_aside(k)) if self is _shared and _telemetry(caller()) else _getrandbits(self, k)
    if draws is not None:
        draws.share()
    lane, frame = found
    source = f"{GETRANDBITS}{k}"
    if k <= MOST_BITS:
        return lane.session.read(lane, source, frame, partial(_getrandbits, self, k))
    return int.from_bytes(lane.session.read(lane, source, frame, partial(_bytes, self, k)))


def _put_gauss(self: Random, mu: float = 0.0, sigma: float = 1.0) -> float:
    # It makes two values of two draws and keeps one for later: one more call would shift all that follow.
    if type(self).random is not _put_random:
        return _gauss(self, mu, sigma)  # what it draws of is its own
    draws = self.__dict__.get(KEPT)
    if draws is not None and draws.by_seed():
        return _aside_of_lanes(partial(_gauss, self, mu, sigma))
    found = entropy_reading()
    if found is None:
        return _gauss(self, mu, sigma)
    if draws is not None:
        draws.share()
    lane, frame = found
    return mu + lane.session.read(lane, GAUSS, frame, partial(_aside_of_lanes, partial(_gauss, self, 0.0, 1.0))) * sigma


def _put_seed(self: Random, a: Any = None, version: int = 2) -> None:
    found = None if self is _shared or isinstance(self, SystemRandom) else entropy_reading()
    self.__dict__.pop(KEPT, None)
    if found is None:
        _seed(self, a, version)
        return
    lane, frame = found
    if _for_names(caller()):
        _seed(self, a, version)
        self.__dict__[KEPT] = Draws(lanes.OUTSIDE)
        return
    if a is None:
        a = int.from_bytes(lane.session.read(lane, SEED, frame, partial(real.urandom, SEED_BYTES)))
    _seed(self, a, version)
    self.__dict__[KEPT] = lane.session.seeded(lane, frame)


def _put_setstate(self: Random, state: Any) -> None:
    _setstate(self, state)
    found = None if self is _shared or isinstance(self, SystemRandom) else entropy_reading()
    self.__dict__.pop(KEPT, None)
    if found is not None:
        lane, frame = found
        self.__dict__[KEPT] = lane.session.seeded(lane, frame)


def _put_getstate(self: Random) -> Any:
    # What a seed has led to is the same in a replay; else the state is something that the program takes in.
    draws = self.__dict__.get(KEPT)
    found = (
        None if isinstance(self, SystemRandom) or (draws is not None and draws.state_by_seed()) else entropy_reading()
    )
    if found is None:
        return _getstate(self)
    lane, frame = found
    return state_of(lane.session.read(lane, STATE, frame, lambda: state_bytes(_getstate(self))))


def _bytes(self: Random, bits: int) -> bytes:
    return _getrandbits(self, bits).to_bytes((bits + 7) // 8)


def _aside_of_lanes(draw: Callable[[], float]) -> float:
    """Draw without a reading: its own draws are part of one."""
    lane = lanes.LANE.set(lanes.OUTSIDE)
    try:
        return draw()
    finally:
        lanes.LANE.reset(lane)


def _aside(bits: int) -> bytes:
    """Random bits that are taken from no generator of the program's."""
    size = (bits + 7) // 8
    return (int.from_bytes(real.urandom(size)) >> (size * 8 - bits)).to_bytes(size)


def _telemetry(frame: FrameType | None) -> bool:
    """Whether telemetry draws: with it, the program is to draw what it draws without."""
    name = _outside_of_random(frame)
    return name is not None and name.partition(".")[0] in TELEMETRY


def _for_names(frame: FrameType | None) -> bool:
    """Whether `tempfile` wants a generator, whose names are readings of their own."""
    return _outside_of_random(frame) == "tempfile"


def _outside_of_random(frame: FrameType | None) -> str | None:
    """Name of the module that has called into `random`."""
    while frame is not None and frame.f_globals.get("__name__") == "random":
        frame = frame.f_back
    name = None if frame is None else frame.f_globals.get("__name__")
    return name if isinstance(name, str) else None
