"""Stands for a value that could not be written down: it may be passed on, and fails where it is used."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sized
from typing import TYPE_CHECKING, NoReturn

from otel_agent_replay.errors import Unencodable

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Json

LONGEST_REPR = 200
"""Characters of a value's repr that are kept."""

_REPR = reprlib.Repr()
"""Shows little of what is large."""
_REPR.maxother = _REPR.maxstring = LONGEST_REPR

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Opaque:
    """A recorded value of which only type and repr are known.

    Asking it for anything else raises Unencodable, so that a replay does not go on with a guess.
    """

    __slots__ = ("_repr", "_type")

    def __init__(self, recorded_type: str, recorded_repr: str) -> None:
        object.__setattr__(self, "_type", recorded_type)
        object.__setattr__(self, "_repr", recorded_repr)

    def __repr__(self) -> str:
        return str(object.__getattribute__(self, "_repr"))

    def __getattribute__(self, name: str) -> object:
        if name == "__class__":
            return Opaque
        return _used(self, f"its attribute {name!r} is asked for")

    def __setattr__(self, name: str, value: object) -> None:
        _used(self, f"its attribute {name!r} is set")

    def __call__(self, *_: object, **__: object) -> object:
        return _used(self, "it is called")

    def __eq__(self, other: object) -> bool:
        return True if other is self else _used(self, "it is compared")

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return _used(self, "its truth is asked for")

    def __iter__(self) -> NoReturn:
        _used(self, "it is iterated over")

    def __len__(self) -> int:
        return _used(self, "its length is asked for")

    def __getitem__(self, key: object) -> object:
        return _used(self, "an item of it is asked for")

    def __contains__(self, item: object) -> bool:
        return _used(self, "an item is looked for in it")

    def __str__(self) -> str:
        return _used(self, "it is made a string")

    def __enter__(self) -> object:
        return _used(self, "it is entered")

    def __exit__(self, *_: object) -> None:
        _used(self, "it is left")

    def __await__(self) -> NoReturn:
        _used(self, "it is awaited")

    def __aiter__(self) -> NoReturn:
        _used(self, "it is iterated over")


def _used(value: Opaque, how: str) -> NoReturn:
    kind, shown = parts(value)
    raise Unencodable(
        f"A recorded value of type {kind} could not be written down, and {how}: {shown}; let the boundary give plain "
        "data, a dataclass or a pydantic model, and record again."
    )


def parts(value: Opaque) -> tuple[str, str]:
    """Type, as ``module:qualname``, and repr of what was recorded."""
    return object.__getattribute__(value, "_type"), object.__getattribute__(value, "_repr")


def describe(value: object, kind: str) -> Json:
    """How a value that cannot be written is recorded; the same from run to run as far as its repr is."""
    try:
        large = isinstance(value, Sized) and len(value) > LONGEST_REPR
        shown = f"<{kind} of {len(value)} items>" if large else _REPR.repr(value)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 (a repr is the program's own code, and may do anything)
        shown = f"<{kind}, whose repr raises {type(error).__name__}>"
    shown = _ADDRESS.sub("", shown).encode("utf-8", "replace").decode()
    return {"$": "opaque", "type": kind, "repr": shown[:LONGEST_REPR]}


def name_only(kind: str, why: str) -> Json:
    """The same for a value whose repr would be as endless as itself."""
    return {"$": "opaque", "type": kind, "repr": f"<{kind}: {why}>"}
