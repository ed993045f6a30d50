from array import array
from collections.abc import Callable

from otel_agent_replay.recording.values import Attribute, Headers, Json

def describe(
    body: bytes,
    old: bytes,
    bounds: array[int],
    digest_of: Callable[[bytes], str],
    text_or_base64: Callable[[bytes], Json],
    /,
) -> tuple[list[Json], list[tuple[str, bytes]], bytes, int]: ...
def start_alike(body: bytes, at: int, old: bytes, other_at: int, most: int, /) -> int: ...
def end_alike(body: bytes, end: int, old: bytes, other_end: int, most: int, /) -> int: ...
def suspicious(
    patterns: tuple[tuple[int, Callable[..., object], Callable[..., object]], ...],
    word: bytes,
    data: bytes,
    start: int,
    end: int,
    /,
) -> bool: ...
def attributes(
    attributes: dict[str, Attribute],
    but: frozenset[str],
    known: dict[str, bytes],
    tag: bytes,
    whole: Callable[[str, Attribute], bytes],
    /,
) -> bytes: ...
def headers(url: str | None, headers: Headers, size: str, /) -> bytes | None: ...
def checksum(data: bytes, value: int, /) -> int | None: ...
def delimited(parts: list[bytes | int], mark: bytes, most: int, /) -> bytes | None: ...
