"""Values that boundaries take and give, as JSON that gives back exactly the same.

Plain data stands as it is. Whatever JSON has no form for is an object with a ``$``, which is one of a closed set
of tags; a dictionary that has a key ``$`` itself, or keys that are no strings, is a ``map``. No tag makes the
reader import a module or run code of a class: `allowed` says which classes may come back, a class that it lacks
comes back as plain data, and an object is made without its ``__new__`` and ``__init__``.

What comes back is equal and of the same type. That two places held the same object is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_agent_replay.errors import Unencodable, UnreadableRecording
from otel_agent_replay.recording import opaque
from otel_agent_replay.recording.allowed import allowed_from, ref
from otel_agent_replay.recording.decoder import Decoder
from otel_agent_replay.recording.encoder import Encoder, refusal
from otel_agent_replay.recording.opaque import Opaque

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.values import Json

__all__ = ["Opaque", "allowed_from", "decode", "encode", "ref"]

_NO_TYPES: Mapping[str, type] = {}


def encode(value: object, *, strict: bool = True, by: Encoder | None = None) -> Json:
    """The JSON of a value, which `orjson.dumps` takes.

    Where some part cannot be written so that it comes back the same, a strict call raises Unencodable, which
    names the type. Otherwise that part is written by type and repr, and comes back as an `Opaque`. `by` writes it,
    where one wants to ask it something afterwards; it is as strict as `strict`.
    """
    by = Encoder(strict=strict) if by is None else by
    try:
        return by.encode(value, 0)
    except Unencodable:
        if strict:
            raise
        why = "it holds too much"
    except RecursionError:
        why = "the program's stack is too full to look into it"
    except RuntimeError as error:  # "dictionary changed size during iteration"
        why = f"another thread changes it: {error}"
    if strict:
        raise Unencodable(refusal(value, why))
    by.refused += 1
    return opaque.name_only(ref(type(value)), why)


def decode(found: Json, allowed: Mapping[str, type] = _NO_TYPES) -> object:
    """The value of such JSON. `allowed` maps references (``module:qualname``) to classes.

    Raises:
        UnreadableRecording: it is not what `encode` gives.
    """
    try:
        return Decoder(allowed).whole(found)
    except (RecursionError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise UnreadableRecording(
            "A recorded value", why, "it was changed on its way, so record the run again"
        ) from error
