"""Draws from torch's generators of the processor: where the generator stood, where that does not follow.

What torch draws depends on what it is given, and is part of a graph of gradients: it cannot be handed out again as a
value. So a reading says where the generator stood before the draw: nothing, where the lane that draws has left it
there, else its whole state. A replay puts it there and draws. One run that has the process for itself records a
seed and nothing else; runs that draw in turns replay each by itself. A draw that the recording does not know is made
with a seed of its own, and moves nothing.
"""

from __future__ import annotations

import base64
import binascii
import functools
import os
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.instrument._ambient import entropy_reading
from otel_agent_replay.recording.values import Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

TORCH: Final = "random:torch:"
"""Followed by the name of what is drawn."""
SEED: Final = "random:torch:seed"
"""A seed that torch takes of entropy, as 16 hexadecimal digits."""

_SEED_DIGITS: Final = 16
"""A derived position is a seed, and as long; a recorded state is longer."""
_MOST_BYTES: Final = 1 << 16
"""No state of a generator is larger."""


class Shape:
    """What of torch the draws need; taken once, while nothing is patched.

    Args:
        torch: the module. Raises AttributeError, TypeError or ValueError where it is not as it is known to be.
    """

    def __init__(self, torch: Any) -> None:
        self.kind: type = torch._C.Generator  # noqa: SLF001 (`torch.Generator` may be exchanged)
        self.default: Any = torch.default_generator
        self.tensor: Any = torch.Tensor
        self.plain: Any = torch._C.DisableTorchFunction  # noqa: SLF001 (what keeps modes of the program away)
        self.modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)  # noqa: SLF001
        self.methods = {name: vars(self.kind)[name] for name in ("seed", "manual_seed", "get_state", "set_state")}
        self._made = functools.partial(torch.frombuffer, dtype=torch.uint8)
        fresh = self.kind()
        self.fresh = self.state(fresh)
        """Where a generator begins that the program makes."""
        self.put(fresh, self.fresh)
        self.methods["manual_seed"](fresh, 5)
        if not self.fresh or self.state(fresh) == self.fresh or len(self.fresh) > _MOST_BYTES:
            raise ValueError("the state of a generator is not what it was")

    def state(self, generator: Any) -> bytes:
        """Where a generator stands."""
        with self.plain():
            state: bytes = self.methods["get_state"](generator).numpy().tobytes()
        return state

    def put(self, generator: Any, state: bytes) -> None:
        """Let it stand there. Raises ValueError where that is no state of this torch."""
        try:
            with self.plain():
                self.methods["set_state"](generator, self._made(bytearray(state)))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"a recorded generator of torch is of an unknown kind: {error}") from None

    def device(self, made: Any) -> str:
        """Where a tensor is; ``cpu`` for anything else."""
        if type(made) is not self.tensor:
            return "cpu"  # asking may be what somebody traces
        with self.plain():
            kind: str = made.device.type
        return kind

    def seed(self, generator: Any, digits: str) -> int:
        """Seed it as recorded; gives the seed."""
        number = int(digits, 16)
        self.methods["manual_seed"](generator, number)
        return number


_left: dict[int, tuple[Any, WeakKeyDictionary[Lane, bytes], WeakKeyDictionary[Lane, bytes]]] = {}
"""Where lanes have left each generator, by its id: the last one that is recorded, and every one that is replayed.

Older versions of torch let nobody hold a generator weakly. So those that nobody else holds are given up now and then.
"""
_FEWEST: Final = 64
_most = _FEWEST
"""So many generators are known before it is looked who holds them."""

_lock = threading.RLock()
"""Held from a look at a generator to the end of the draw."""
_inside = threading.local()
"""Whether this thread is in a draw: what is called by one is part of it."""


def _begin_again() -> None:
    global _lock  # noqa: PLW0603 (another thread of the parent may hold it)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


def drawing(shape: Shape, original: Callable[..., Any], name: str, draws: Callable[..., bool]) -> Callable[..., Any]:
    """A function or method of torch that draws.

    Args:
        shape: torch, as it was.
        original: what it is without us.
        name: what it is called in the recording.
        draws: whether it does, given its arguments.
    """
    source = TORCH + name

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        found = None if getattr(_inside, "draw", False) or shape.modes() else entropy_reading()
        if found is None or not draws(args, kwargs):
            return original(*args, **kwargs)
        lane, frame = found
        generator = _generator(shape, args, kwargs)
        if generator.device.type != "cpu":
            _elsewhere(lane, frame, generator.device.type)
            return original(*args, **kwargs)
        made = _from(shape, generator, lane, frame, source, functools.partial(original, *args, **kwargs))
        if (device := shape.device(made)) not in ("cpu", "meta"):
            _elsewhere(lane, frame, device)
        return made

    return draw


def looking(shape: Shape, original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method of a generator that tells where it stands, or where it began."""
    source = TORCH + name

    @functools.wraps(original)
    def look(self: Any, *args: Any) -> Any:
        found = None if _foreign(shape, self) else entropy_reading()
        if found is None:
            return original(self, *args)
        return _from(shape, self, *found, source, functools.partial(original, self, *args), look=True)

    return look


def placing(shape: Shape, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a generator that puts it where the program says."""

    @functools.wraps(original)
    def place(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = None if _foreign(shape, self) else entropy_reading()
        if found is None:
            return original(self, *args, **kwargs)
        with _lock:
            given = original(self, *args, **kwargs)
            _leave(self, found[0], shape.state(self))
        return given

    return place


def seeding(shape: Shape, original: Callable[..., Any]) -> Callable[..., Any]:
    """`Generator.seed`, which seeds of entropy."""

    @functools.wraps(original)
    def seed(self: Any) -> Any:
        found = None if _foreign(shape, self) else entropy_reading()
        if found is None:
            return original(self)
        return _seeded(shape, self, *found, lambda: original(self))

    return seed


def begin(shape: Shape, lane: Lane, frame: FrameType) -> None:
    """The program has imported torch: what its default generator begins with is a reading."""
    number = shape.default.initial_seed()
    started = shape.kind()
    shape.methods["manual_seed"](started, number)
    if shape.state(started) == shape.state(shape.default):
        _seeded(shape, shape.default, lane, frame, lambda: number)


def _seeded(shape: Shape, generator: Any, lane: Lane, frame: FrameType, real: Callable[[], int]) -> int:
    made: list[str] = []

    def fresh() -> str:
        made.append(f"{real():0{_SEED_DIGITS}x}")
        return made[0]

    with _lock:
        digits = lane.session.read(lane, SEED, frame, fresh)
        number = int(digits, 16) if made == [digits] else shape.seed(generator, digits)
        _leave(generator, lane, shape.state(generator))
    return number


def _from(
    shape: Shape,
    generator: Any,
    lane: Lane,
    frame: FrameType,
    source: str,
    perform: Callable[[], Any],
    *,
    look: bool = False,
) -> Any:
    """Perform a draw, or a look, of a generator that stands where it stood."""
    with _lock:
        try:
            back = _stand(shape, generator, lane, frame, source, look=look)
        except Exception as error:
            if lane.session.replaying:
                raise
            fault("recording where a generator of torch stands", error, lane.session.note)
            return perform()
        _inside.draw = True
        try:
            return perform()
        finally:
            _inside.draw = False
            if back is None:
                _leave(generator, lane, shape.state(generator))
            else:
                shape.put(generator, back)


def _stand(shape: Shape, generator: Any, lane: Lane, frame: FrameType, source: str, *, look: bool) -> bytes | None:
    """Let a generator stand where it stood; gives where to put it back afterwards, if the draw is not to move it."""
    state = shape.state(generator)
    left = _lanes(generator, lane).get(lane)
    if left is None and generator is not shape.default:
        left = shape.fresh
    told = lane.session.read(lane, source, frame, lambda: "" if state == left else _text(state))
    if not isinstance(told, str):
        raise ValueError("a recorded generator of torch is no text")
    derived = len(told) == _SEED_DIGITS
    if derived and not look:
        shape.seed(generator, told)
        return state
    wanted = left if derived or not told else _state(told)
    if wanted is not None and wanted != state:
        shape.put(generator, wanted)
    return None


def _lanes(generator: Any, lane: Lane) -> WeakKeyDictionary[Lane, bytes]:
    known = _left.get(id(generator))
    if known is None:
        if len(_left) >= _most:
            _give_up()
        known = _left.setdefault(id(generator), (generator, WeakKeyDictionary(), WeakKeyDictionary()))
    return known[2 if lane.session.replaying else 1]


def _give_up() -> None:
    global _most  # noqa: PLW0603 (it belongs to what is known)
    for key in list(_left):
        if sys.getrefcount(_left[key][0]) <= 2:  # we hold it, and so does whoever counts
            del _left[key]
    _most = max(_FEWEST, 2 * len(_left))


def _leave(generator: Any, lane: Lane, state: bytes) -> None:
    lanes = _lanes(generator, lane)
    if not lane.session.replaying and lane not in lanes:
        lanes.clear()
    lanes[lane] = state


def _text(state: bytes) -> str:
    return base64.b64encode(zlib.compress(state)).decode("ascii")


def _state(text: str) -> bytes:
    """A recorded state. Raises ValueError where it is none."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    except (binascii.Error, zlib.error, AttributeError, TypeError) as error:
        raise ValueError(f"a recorded generator of torch cannot be read: {error}") from None


def _generator(shape: Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = kwargs.get("generator")
    if given is None:
        given = next((arg for arg in args if isinstance(arg, shape.kind)), None)
    return given if isinstance(given, shape.kind) else shape.default


def _foreign(shape: Shape, generator: Any) -> bool:
    """Whether a generator is none of the processor's, or is looked at by a draw."""
    if not isinstance(generator, shape.kind) or getattr(_inside, "draw", False) or shape.modes():
        return True
    kind: str = generator.device.type  # type: ignore[attr-defined]
    return kind != "cpu"


def _elsewhere(lane: Lane, frame: FrameType, device: str) -> None:
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    lane.session.note(Note(NoteKind.UNCAPTURED, f"what torch draws on the device {device!r}", where))
