"""Randomness: `random`, `os.urandom` and what is made of it, `uuid`, names of temporary files.

The generator that `random` shares stays the object that it is, in the same state: its class is exchanged for
one whose primitive draws are readings. So a seeded program draws what it always drew, and two runs that draw
from it in turns replay each by itself. A generator of the program's own is kept by the entropy that seeds it.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import uuid
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.callers import caller
from otel_agent_replay.boundary.virtual import MOST_BITS, NAME_CHARACTERS, NAME_LENGTH, SEED_BYTES
from otel_agent_replay.instrument._ambient import Installation, Patches, entropy_reading, like, unbindable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

GETRANDBITS: Final = "random:getrandbits:"
"""Followed by the number of bits, so that a draw of another size is another reading; so is it below."""
URANDOM: Final = "random:os.urandom:"
"""Followed by the number of bytes."""
SEED: Final = "random:seed"
UUID4: Final = "random:uuid4"
TEMPFILE: Final = "random:tempfile"

RUST_UUIDS: Final = ("uuid_utils", "uuid_utils.compat")
"""Modules that make UUIDs of entropy and time that Rust code asks for; they are patched once they are imported."""

UUIDS: Final = ("uuid1", "uuid6", "uuid7", "uuid8")
"""Beside `uuid4`; those that this Python has."""

_shared: Random = random._inst  # noqa: SLF001 (the generator of the module)
_plain_random: Callable[[], float] = Random.random.__get__(_shared)
_plain_getrandbits: Callable[[int], int] = Random.getrandbits.__get__(_shared)
_uuid4_code = uuid.uuid4.__code__
_tempfile_code = tempfile._get_default_tempdir.__code__  # type: ignore[attr-defined]  # noqa: SLF001


def install() -> Callable[[], None]:
    """Patch the generators. Gives what undoes it; several installations patch once."""
    return _installation.install()


class _Recorded(Random):
    """The class of the shared generator: its primitive draws are readings."""

    def random(self) -> float:
        found = entropy_reading()
        if found is None:
            return _plain_random()
        lane, frame = found
        return lane.session.read(lane, "random:random", frame, _plain_random)

    def getrandbits(self, k: int, /) -> int:
        found = entropy_reading()
        if found is None:
            return _plain_getrandbits(k)
        lane, frame = found
        source = f"{GETRANDBITS}{k}"
        if k <= MOST_BITS:
            return lane.session.read(lane, source, frame, partial(_plain_getrandbits, k))
        return int.from_bytes(lane.session.read(lane, source, frame, partial(_plain_bytes, k)))

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        # It makes two values of two draws and keeps one for later: one more call would shift all that follow.
        found = entropy_reading()
        if found is None:
            return super().gauss(mu, sigma)
        lane, frame = found
        return mu + lane.session.read(lane, "random:gauss", frame, _plain_gauss) * sigma

    def __reduce__(self) -> tuple[type[Random], tuple[()], Any]:
        return Random, (), self.getstate()


def _plain_bytes(bits: int) -> bytes:
    return _plain_getrandbits(bits).to_bytes((bits + 7) // 8)


def _plain_gauss() -> float:
    lane = lanes.LANE.set(lanes.OUTSIDE)  # its own draws are no readings
    try:
        return Random.gauss(_shared, 0.0, 1.0)
    finally:
        lanes.LANE.reset(lane)


def _put(patches: Patches) -> None:
    _put_shared(patches)
    _put_entropy(patches)
    _put_seed(patches)
    patches.put(uuid, "uuid4", _uuid4(uuid.uuid4))
    for name in UUIDS:
        if hasattr(uuid, name):
            patches.put(uuid, name, _uuid(getattr(uuid, name)))
    for name in RUST_UUIDS:
        if name in sys.modules:
            _put_rust(patches, sys.modules[name])
        elif name not in _awaited:
            _awaited.add(name)
            wrapt.register_post_import_hook(_imported, name)
    patches.put(tempfile._RandomNameSequence, "__next__", _name(tempfile._RandomNameSequence.__next__))  # type: ignore[attr-defined]  # noqa: SLF001


_installation = Installation(_put)


def _put_shared(patches: Patches) -> None:
    if type(_shared) is not Random:
        return  # somebody has exchanged it before; what it draws is theirs
    _shared.__class__ = _Recorded

    def undo() -> None:
        _shared.__class__ = Random

    patches.on_undo(undo)
    for name in ("random", "getrandbits", "gauss"):
        # The others are methods that look these up when they are called.
        patches.put(random, name, getattr(_shared, name))


def _put_entropy(patches: Patches) -> None:
    original = os.urandom  # noqa: TID251 (to be replaced)

    def urandom(_: object, size: int, /) -> bytes:
        found = entropy_reading()
        if found is None or type(size) is not int or size < 0:
            return original(size)
        lane, frame = found
        asking = caller()
        if asking is not None and asking.f_code is _uuid4_code:  # taken by its name before it was patched
            return uuid.UUID(lane.session.read(lane, UUID4, frame, _uuid4_text)).bytes
        return lane.session.read(lane, f"{URANDOM}{size}", frame, partial(original, size))

    replacement = unbindable(urandom, original, "os")
    patches.put(os, "urandom", replacement)
    patches.put(random, "_urandom", replacement)
    if hasattr(os, "getrandom"):
        get = os.getrandom

        def getrandom(_: object, size: int, flags: int = 0) -> bytes:
            found = entropy_reading()
            if found is None or type(size) is not int or size < 0:
                return get(size, flags)
            lane, frame = found
            return lane.session.read(lane, f"{URANDOM}{size}", frame, partial(get, size, flags))

        patches.put(os, "getrandom", unbindable(getrandom, get, "os"))


def _put_seed(patches: Patches) -> None:
    original = Random.seed

    def seed(self: Random, a: Any = None, version: int = 2) -> None:
        found = entropy_reading() if a is None and not isinstance(self, SystemRandom | _Recorded) else None
        if found is not None and not _for_names(caller()):
            lane, frame = found
            a = int.from_bytes(lane.session.read(lane, SEED, frame, partial(real.urandom, SEED_BYTES)))
        original(self, a, version)

    like(seed, original, "random")
    patches.put(Random, "seed", seed)


def _for_names(frame: FrameType | None) -> bool:
    """Whether `tempfile` wants a generator, whose names are readings of their own."""
    while frame is not None and frame.f_globals.get("__name__") == "random":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "tempfile"


# -- uuid --------------------------------------------------------------------------------------------------


def _uuid4_text() -> str:
    return str(uuid.UUID(bytes=real.urandom(16), version=4))


def _uuid4(original: Callable[[], uuid.UUID]) -> Callable[[], uuid.UUID]:
    def uuid4() -> uuid.UUID:
        found = entropy_reading()
        if found is None:
            return original()
        lane, frame = found
        return uuid.UUID(lane.session.read(lane, UUID4, frame, _uuid4_text))

    like(uuid4, original, "uuid")
    return uuid4


_awaited: set[str] = set()
"""Modules of Rust's UUIDs that are patched when they are imported, if somebody wants that then."""


def _imported(module: ModuleType) -> None:
    _awaited.discard(module.__name__)
    if (patches := _installation.patches) is not None:
        _put_rust(patches, module)


def _put_rust(patches: Patches, module: ModuleType) -> None:
    kind = getattr(module, "UUID", uuid.UUID)
    for name in ("uuid4", *UUIDS[:-1]):  # its uuid8 is made of what it is given
        original = getattr(module, name, None)
        if original is not None:
            patches.put(module, name, _uuid(original, kind))


def _uuid(original: Callable[..., Any], kind: Callable[[str], Any] = uuid.UUID) -> Callable[..., Any]:
    source = f"random:{original.__name__}"

    def make(*args: Any, **kwargs: Any) -> Any:
        found = entropy_reading()
        if found is None:
            return original(*args, **kwargs)
        lane, frame = found
        made: list[Any] = []

        def fresh() -> str:
            token = lanes.LANE.set(lanes.OUTSIDE)  # what it is made of is no reading
            try:
                made.append(original(*args, **kwargs))
            finally:
                lanes.LANE.reset(token)
            return str(made[0])

        text = lane.session.read(lane, source, frame, fresh)
        return made[0] if made and str(made[0]) == text else kind(text)

    like(make, original, "uuid")
    return make


# -- names of temporary files ------------------------------------------------------------------------------


def _name(original: Callable[[Any], str]) -> Callable[[Any], str]:
    def __next__(self: Any) -> str:  # noqa: N807 (it stands for one)
        found, asking = entropy_reading(), caller()
        if found is None or (asking is not None and asking.f_code is _tempfile_code):
            return original(self)
        lane, frame = found
        return lane.session.read(lane, TEMPFILE, frame, _fresh_name)

    like(__next__, original, "tempfile")
    return __next__


def _fresh_name() -> str:
    number = int.from_bytes(real.urandom(8))
    letters = []
    for _ in range(NAME_LENGTH):
        number, index = divmod(number, len(NAME_CHARACTERS))
        letters.append(NAME_CHARACTERS[index])
    return "".join(letters)
