"""Compressed bodies: ClickHouse's own block frames (`compress=1`, `decompress=1`), and Content-Encodings.

A frame is a checksum (CityHash128 of ClickHouse's version, of all that follows), a method, the size of the rest
with its nine bytes of header, the size of the plain data, and the data.
"""

from __future__ import annotations

import sys
import zlib
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

import lz4.block
import lz4.frame
from clickhouse_cityhash.cityhash import CityHash128

from otel_agent_replay.server.engine import SqlError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_BYTES = 1 << 20
"""Plain bytes in a frame that we write, and in a part that we decompress."""

LARGEST_BLOCK = 64 << 20
"""Plain bytes in a frame that we read."""

LZ4, ZSTD, NONE = 0x82, 0x90, 0x02
_HEAD = Struct("<BII")
_HASH = Struct("<QQ")
_FRAME_HEAD = 16 + _HEAD.size


class Packer(Protocol):
    """Compresses a stream."""

    def pack(self, data: bytes) -> bytes:
        """What can be sent of it now."""

    def end(self) -> bytes:
        """The rest."""


class Plain:
    """Sends a stream as it is."""

    def pack(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""


class Frames:
    """Block frames, LZ4."""

    def pack(self, data: bytes) -> bytes:
        return b"".join(frame(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))

    def end(self) -> bytes:
        return b""


class Gzip:
    """Content-Encoding gzip."""

    def __init__(self) -> None:
        self._engine = zlib.compressobj(1, wbits=31)

    def pack(self, data: bytes) -> bytes:
        return bytes(self._engine.compress(data))

    def end(self) -> bytes:
        return bytes(self._engine.flush())


class Zstd:
    """Content-Encoding zstd."""

    def __init__(self) -> None:
        self._engine = zstd.ZstdCompressor(level=1)

    def pack(self, data: bytes) -> bytes:
        return bytes(self._engine.compress(data))

    def end(self) -> bytes:
        return bytes(self._engine.flush())


class Lz4:
    """Content-Encoding lz4."""

    def __init__(self) -> None:
        self._engine = lz4.frame.LZ4FrameCompressor()
        self._begun = False

    def pack(self, data: bytes) -> bytes:
        begin = b"" if self._begun else self._engine.begin()
        self._begun = True
        return bytes(begin + self._engine.compress(data))

    def end(self) -> bytes:
        begin = b"" if self._begun else self._engine.begin()
        return bytes(begin + self._engine.flush())


ENCODINGS: dict[str, Callable[[], Packer]] = {"zstd": Zstd, "lz4": Lz4, "gzip": Gzip}
"""What a result can be sent as, what is best first."""


def frame(data: bytes) -> bytes:
    """One block frame."""
    packed: bytes = lz4.block.compress(data, store_size=False)
    rest = _HEAD.pack(LZ4, len(packed) + _HEAD.size, len(data)) + packed
    return _checksum(rest) + rest


def unframe(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The plain data of block frames, frame by frame. Raises SqlError where they are broken."""
    held = bytearray()
    for piece in pieces:
        held += piece
        at = 0
        while len(held) - at >= _FRAME_HEAD:
            method, packed, plain = _HEAD.unpack_from(held, at + 16)
            if packed < _HEAD.size or packed > LARGEST_BLOCK or plain > LARGEST_BLOCK:
                raise SqlError.refused(271, "CANNOT_DECOMPRESS", "A compressed block has impossible sizes")
            end = at + 16 + packed
            if len(held) < end:
                break
            yield _plain(bytes(held[at : at + 16]), bytes(held[at + 16 : end]), method, plain)
            at = end
        del held[:at]
    if held:
        raise SqlError.refused(271, "CANNOT_DECOMPRESS", "A compressed block is not whole")


def unpack(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """A body in zstd or lz4, a bounded part at a time. Raises ValueError."""
    make: Any = zstd.ZstdDecompressor if encoding == "zstd" else lz4.frame.LZ4FrameDecompressor
    engine, begun = make(), False
    try:
        for piece in pieces:
            data, waits = piece, False
            while not waits:
                yield engine.decompress(data, max_length=BLOCK_BYTES)
                if engine.eof:
                    data = engine.unused_data or b""
                    engine, begun, waits = make(), False, not data
                else:
                    data, begun, waits = b"", True, engine.needs_input
    except (zstd.ZstdError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from None
    if begun:
        raise ValueError("it ends too early")


def _plain(checksum: bytes, rest: bytes, method: int, size: int) -> bytes:
    if _checksum(rest) != checksum:
        raise SqlError.refused(40, "CHECKSUM_DOESNT_MATCH", "A compressed block has a wrong checksum")
    packed = rest[_HEAD.size :]
    try:
        if method == LZ4:
            data = lz4.block.decompress(packed, uncompressed_size=size)
        elif method == ZSTD:
            data = zstd.ZstdDecompressor().decompress(packed, max_length=size + 1)
        elif method == NONE:
            data = packed
        else:
            raise SqlError.refused(89, "UNKNOWN_COMPRESSION_METHOD", f"The compression {method:#04x} is unknown")
    except (lz4.block.LZ4BlockError, zstd.ZstdError) as error:
        raise SqlError.refused(271, "CANNOT_DECOMPRESS", f"A compressed block cannot be read: {error}") from None
    if len(data) != size:
        raise SqlError.refused(271, "CANNOT_DECOMPRESS", "A compressed block has another size than it says")
    return bytes(data)


def _checksum(data: bytes) -> bytes:
    value = CityHash128(data)
    return _HASH.pack(value >> 64, value & 0xFFFF_FFFF_FFFF_FFFF)
