"""numpy's generators: the legacy one that its functions share, and what `default_rng` makes.

Their methods are C, and so are their classes: each is given a subclass whose methods are ours. The shared one is the
only one of its class; it draws from the same bits, so a seed means what it meant, and each of its draws is a reading.
One that `default_rng` makes is kept by its seed until others draw from it (`boundary.draws`). What a reading holds
is the number that was drawn; of arrays that are larger than the state of the generator, the state before.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.instrument._ambient import entropy_reading, like

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from otel_agent_replay.instrument._ambient import Installation, Patches

NUMPY: Final = "random:numpy:"
"""Followed by the name of the method."""
ENTROPY: Final = "random:os.urandom:16"
"""As numpy reads it for a generator that is given no seed."""
MODULE: Final = "numpy.random"

_NO_DRAWS: Final = frozenset({"bit_generator", "spawn", "seed", "get_state", "set_state"})
_MOST_BYTES: Final = 256
"""Arrays and bytes of at most this many are kept by value: the smallest state takes about as many."""
_MOST: Final = 1 << 63
_BITS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

_awaited: list[Installation] = []


def put(patches: Patches, installation: Installation) -> None:
    """Patch numpy's generators, now or once it is imported."""
    if MODULE in sys.modules:
        _put(patches, sys.modules[MODULE])
    elif not _awaited:
        _awaited.append(installation)
        wrapt.register_post_import_hook(_imported, MODULE)


def _imported(module: ModuleType) -> None:
    patches = _awaited.pop().patches
    if patches is not None:
        _put(patches, module)


def _put(patches: Patches, numpy_random: Any) -> None:
    legacy = numpy_random.mtrand
    shared = legacy._rand  # noqa: SLF001 (the generator of the module)
    if type(shared) is not numpy_random.RandomState or _forms(shared.get_state(legacy=False)) is None:
        return  # exchanged by somebody else, or kept in a way that is not known here
    ours = _subclass(numpy_random.RandomState)(shared._bit_generator)  # noqa: SLF001
    ours.set_state(shared.get_state(legacy=False))
    patches.on_undo(lambda: shared.set_state(ours.get_state(legacy=False)))
    patches.put(legacy, "_rand", ours)
    for module in (legacy, numpy_random):
        for name, value in list(vars(module).items()):
            if getattr(value, "__self__", None) is shared:
                patches.put(module, name, getattr(ours, value.__name__))
    patches.put(numpy_random, "default_rng", _default_rng(numpy_random))


def _default_rng(numpy_random: Any) -> Callable[..., Any]:
    original, own = numpy_random.default_rng, _subclass(numpy_random.Generator)

    def default_rng(seed: Any = None) -> Any:
        found = entropy_reading()
        if found is None:
            return original(seed)
        lane, frame = found
        if seed is None:
            seed = int.from_bytes(lane.session.read(lane, ENTROPY, frame, lambda: real.urandom(16)))
        made = original(seed)
        if made is not seed and type(made) is numpy_random.Generator:
            made = own(made.bit_generator)
            made.draws = lane.session.seeded(lane, frame)
        return made

    like(default_rng, original, MODULE)
    return default_rng


def _subclass(kind: Any) -> Any:
    """A class that draws as `kind` does, each draw looked at."""
    drawing = {name: _method(kind, name) for name in dir(kind) if not name.startswith("_") and name not in _NO_DRAWS}
    extra = {"get_state": _get_state(kind)} if hasattr(kind, "get_state") else {"spawn": _spawn(kind)}
    extra["__reduce__"] = _reduce(kind)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**named, **drawing, **extra, "draws": None})


def _method(kind: Any, name: str) -> Callable[..., Any]:
    original, source = getattr(kind, name), NUMPY + name
    sized = _parameters_before_size(original)

    @functools.wraps(original)
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.draws is not None and self.draws.by_seed():
            return _aside(original, self, args, kwargs)
        found = entropy_reading()
        if found is None:
            return original(self, *args, **kwargs)
        if self.draws is not None:
            self.draws.share()
        lane, frame = found
        made: list[Any] = []

        def fresh() -> float | str | bytes:
            number = not kwargs and len(args) <= sized and all(type(arg) in (int, float) for arg in args)
            before = "" if number else _forms(_state(self)) or ""
            made.append(_aside(original, self, args, kwargs))
            if before and any(made[0] is arg for arg in (*args, *kwargs.values())):
                return before  # it was drawn into what was given, and is drawn into it again
            return _value(made[0], before)

        value = lane.session.read(lane, source, frame, fresh)
        return made[0] if made else _again(kind, original, value, args, kwargs)

    return draw


def _aside(original: Callable[..., Any], generator: Any, args: Any, kwargs: Any) -> Any:
    """Draw without a reading: some methods call others."""
    token = lanes.LANE.set(lanes.OUTSIDE)
    try:
        return original(generator, *args, **kwargs)
    finally:
        lanes.LANE.reset(token)


def _get_state(kind: Any) -> Callable[..., Any]:
    original = kind.get_state

    @functools.wraps(original)
    def get_state(self: Any, legacy: Any = True) -> Any:  # noqa: FBT002 (numpy's)
        found = entropy_reading()
        if found is None or _forms(_state(self)) is None:
            return original(self, legacy)
        lane, frame = found
        made: list[Any] = []

        def fresh() -> str:
            made.append(original(self, legacy))
            return _forms(_state(self)) or ""

        text = lane.session.read(lane, f"{NUMPY}get_state", frame, fresh)
        return made[0] if made else original(_generator(kind, json.loads(text)), legacy)

    return get_state


def _reduce(kind: Any) -> Callable[..., Any]:
    """What `copy` and `pickle` take of a generator. In a replay one whose draws are readings has not moved on."""
    original = kind.__reduce__

    @functools.wraps(original)
    def __reduce__(self: Any) -> Any:  # noqa: N807 (it stands for one)
        found = None if self.draws is not None and self.draws.by_seed() else entropy_reading()
        state = None if found is None else _forms(_state(self))
        if found is None or state is None:
            return _aside(original, self, (), {})
        lane, frame = found
        told = lane.session.read(lane, f"{NUMPY}get_state", frame, lambda: state)
        generator = self if told == state else _generator(kind, json.loads(told))
        return _aside(original, generator, (), {})

    return __reduce__


def _spawn(kind: Any) -> Callable[..., Any]:
    original = kind.spawn

    @functools.wraps(original)
    def spawn(self: Any, n_children: int) -> Any:
        children = original(self, n_children)
        found = entropy_reading()
        if found is not None:
            lane, frame = found
            for child in children:
                child.draws = lane.session.seeded(lane, frame)
        return children

    return spawn


def _parameters_before_size(original: Any) -> int:
    """How many arguments a method takes that do not say how much to draw, by the first line of its documentation."""
    signature = re.search(r"\((.*?)\)", original.__doc__ or "")
    names = [part.partition("=")[0].strip() for part in signature[1].split(",")] if signature else []
    return names.index("size") if "size" in names else 0


# -- what a reading holds ----------------------------------------------------------------------------------


def _value(made: Any, before: str) -> float | str | bytes:
    """The recorded form of a draw."""
    if type(made) is float or (type(made) is int and -_MOST <= made < _MOST):
        return made
    if type(made) is bytes and (len(made) <= _MOST_BYTES or not before):
        return made
    kind = getattr(made, "dtype", None)
    if kind is not None and kind.kind in "biuf" and (made.nbytes <= _MOST_BYTES or not before):
        return json.dumps({"array": [kind.str, list(made.shape), base64.b64encode(made.tobytes()).decode("ascii")]})
    return before


def _again(kind: Any, original: Callable[..., Any], value: Any, args: Any, kwargs: Any) -> Any:
    """What was drawn, of its recorded form. Raises ValueError where that is none."""
    if not isinstance(value, str):
        return value
    form: dict[str, Any] = json.loads(value) if value else {"seed": "0"}
    if "array" not in form:
        return _aside(original, _generator(kind, form), args, kwargs)
    import numpy as np  # noqa: PLC0415 (it is there: one of its methods is called)

    dtype, shape, data = form["array"]
    shape = tuple(map(int, shape))
    made = np.frombuffer(base64.b64decode(data), np.dtype(str(dtype))).reshape(shape)
    return made.copy() if shape else made[()]


def _state(generator: Any) -> Any:
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else _legacy(generator)


def _legacy(generator: Any) -> Any:
    kinds: list[Any] = [kind for kind in type(generator).__mro__ if kind.__name__ == "RandomState"]
    return kinds[-1].get_state(generator, legacy=False)


def _forms(state: Any) -> str | None:
    """A state as JSON; None where it is of no kind that numpy brings along."""
    if not isinstance(state, dict) or state.get("bit_generator") not in _BITS:
        return None
    return json.dumps({"state": state}, default=lambda array: {"words": array.tolist(), "type": array.dtype.str})


def _generator(kind: Any, form: Any) -> Any:
    """A generator in a recorded state, or with a seed that was derived."""
    from numpy import random  # noqa: PLC0415 (it is there)

    if "seed" in form:
        bits = (random.MT19937 if kind is random.RandomState else random.PCG64)(int(str(form["seed"]), 16))
        return kind(bits)
    state = _arrays(form["state"])
    if state["bit_generator"] not in _BITS:
        raise ValueError(f"a recorded generator of numpy is of an unknown kind: {state['bit_generator']!r}")
    made = kind(getattr(random, state["bit_generator"])(0))
    if kind is random.RandomState:
        made.set_state(state)
    else:
        made.bit_generator.state = state
    return made


def _arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "words" in value:
        import numpy as np  # noqa: PLC0415 (it is there)

        return np.array(value["words"], np.dtype(str(value["type"])))
    return {name: _arrays(inner) for name, inner in value.items()}
