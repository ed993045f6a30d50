"""Randomness: `random` and numpy, `os.urandom` and what is made of it, `uuid`, names of temporary files."""

from __future__ import annotations

import os
import random
import sys
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.callers import caller
from otel_agent_replay.instrument import _generators, _numpy_random, _temporary
from otel_agent_replay.instrument._ambient import Installation, Patches, entropy_reading, like, unbindable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

URANDOM: Final = "random:os.urandom:"
"""Followed by the number of bytes, so that entropy of another size is another reading."""
UUID4: Final = "random:uuid4"
GETNODE: Final = "random:getnode"

RUST_UUIDS: Final = ("uuid_utils", "uuid_utils.compat", "fastuuid")
"""Modules that make UUIDs of entropy and time that Rust code asks for; they are patched once they are imported."""

UUIDS: Final = ("uuid1", "uuid6", "uuid7", "uuid8")
"""Beside `uuid4`; those that this Python has."""

_uuid4_code = uuid.uuid4.__code__


def install() -> Callable[[], None]:
    """Patch the generators. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    _generators.put(patches)
    _put_entropy(patches)
    _temporary.put(patches)
    _numpy_random.put(patches, _installation)
    patches.put(uuid, "uuid4", _uuid4(uuid.uuid4))
    for name in UUIDS:
        if hasattr(uuid, name):
            patches.put(uuid, name, _uuid(getattr(uuid, name)))
    patches.put(uuid, "getnode", _getnode(uuid.getnode))
    for name in _LATER:
        if name in sys.modules:
            _LATER[name](patches, sys.modules[name])
        elif name not in _awaited:
            _awaited.add(name)
            wrapt.register_post_import_hook(_imported, name)


_installation = Installation(_put)


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


def _sized(original: Callable[[int], bytes]) -> Callable[..., bytes]:
    def draw(_: object, size: int, /) -> bytes:
        found = entropy_reading()
        if found is None or type(size) is not int or size < 0:
            return original(size)
        lane, frame = found
        return lane.session.read(lane, f"{URANDOM}{size}", frame, partial(original, size))

    return draw


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


def _getnode(original: Callable[[], int]) -> Callable[[], int]:
    def getnode() -> int:
        # Of the machine's address; of the shared generator where it has none.
        found = entropy_reading()
        if found is None:
            return original()
        lane, frame = found
        node: int = lane.session.read(lane, GETNODE, frame, partial(_aside, original))
        return node

    like(getnode, original, "uuid")
    return getnode


def _aside(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make something of what is no reading by itself."""
    token = lanes.LANE.set(lanes.OUTSIDE)
    try:
        return make(*args, **kwargs)
    finally:
        lanes.LANE.reset(token)


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
            made.append(_aside(original, *args, **kwargs))
            return str(made[0])

        text = lane.session.read(lane, source, frame, fresh)
        return made[0] if made and str(made[0]) == text else kind(text)

    like(make, original, "uuid")
    return make


# -- what is imported later --------------------------------------------------------------------------------


def _put_ssl(patches: Patches, module: Any) -> None:
    # What OpenSSL draws for TLS does not come by here.
    patches.put(module, "RAND_bytes", unbindable(_sized(module.RAND_bytes), module.RAND_bytes, "ssl"))


_LATER: Final[dict[str, Callable[[Patches, Any], None]]] = {**dict.fromkeys(RUST_UUIDS, _put_rust), "ssl": _put_ssl}
"""Modules that are patched once they are imported, and how."""

_awaited: set[str] = set()
"""Those that were not imported yet, when somebody wanted patches."""


def _imported(module: ModuleType) -> None:
    _awaited.discard(module.__name__)
    if (patches := _installation.patches) is not None:
        _LATER[module.__name__](patches, module)
