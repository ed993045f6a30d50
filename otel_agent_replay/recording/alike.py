"""How much two bodies have in common: compared as memory, block by block, the last bytes as two numbers."""

from __future__ import annotations

from otel_agent_replay.recording.compiled import PART

_FIRST = 48
_BLOCK = 1 << 16
_COMPARED = 512
"""Bytes that are compared as two numbers."""
_number = int.from_bytes


def interpreted_start(body: bytes, at: int, old: bytes, other_at: int, most: int) -> int:
    """How many bytes, up to `most`, both have in common from `at` and `other_at` on. Both have so many."""
    starts, other = body.startswith, memoryview(old)
    same, step = 0, min(_FIRST, most)
    while same < most and starts(other[other_at + same : other_at + same + step], at + same):
        same += step
        step = min(most - same, 8 * step, _BLOCK)
    while step > _COMPARED:
        half = step // 2
        if starts(other[other_at + same : other_at + same + half], at + same):
            same += half
            step -= half
        else:
            step = half
    if not step:
        return same
    at, other_at = at + same, other_at + same
    differing = _number(body[at : at + step]) ^ _number(other[other_at : other_at + step])
    return same + step - (differing.bit_length() + 7) // 8


def interpreted_end(body: bytes, end: int, old: bytes, other_end: int, most: int) -> int:
    """How many bytes, up to `most`, both have in common before `end` and `other_end`. Both have so many."""
    starts, other = body.startswith, memoryview(old)
    same, step = 0, min(_FIRST, most)
    while same < most and starts(other[other_end - same - step : other_end - same], end - same - step):
        same += step
        step = min(most - same, 8 * step, _BLOCK)
    while step > _COMPARED:
        half = step // 2
        if starts(other[other_end - same - half : other_end - same], end - same - half):
            same += half
            step -= half
        else:
            step = half
    if not step:
        return same
    end, other_end = end - same, other_end - same
    differing = _number(body[end - step : end], "little") ^ _number(other[other_end - step : other_end], "little")
    return same + step - (differing.bit_length() + 7) // 8


start_alike = interpreted_start if PART is None else PART.start_alike
end_alike = interpreted_end if PART is None else PART.end_alike
