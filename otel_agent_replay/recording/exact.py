"""JSON text that gives back exactly what went in, for values that are already plain.

`orjson` is fast and refuses or changes what JSON has no form for: integers beyond 64 bits, lone surrogates, NaN
and the infinities. Such a value, rare as it is, is written by the standard library, with everything escaped that
is not ASCII; a space before the text says so to the reader.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, cast

import orjson

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Json


def dumps(value: Json) -> str:
    """JSON text of `value`; valid UTF-8 whatever strings it holds. Raises TypeError where it is no plain data."""
    if not _nonfinite(value):
        try:
            return orjson.dumps(value).decode()
        except TypeError:
            pass
    return " " + json.dumps(value, separators=(",", ":"))


def loads(text: str | bytes) -> Json:
    """The inverse. Raises ValueError where the text is not JSON."""
    if text[:1] in (" ", b" "):
        return cast("Json", json.loads(text))
    return cast("Json", orjson.loads(text))


def _nonfinite(value: object) -> bool:
    """Whether a float is in there that orjson would write as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, list | tuple):
        return any(map(_nonfinite, value))
    if isinstance(value, dict):
        return any(map(_nonfinite, value.values()))
    return False
