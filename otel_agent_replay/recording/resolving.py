"""Bodies from references: the inverse of `contents`, which says what a reference is."""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_right
from collections import OrderedDict
from threading import RLock
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from otel_agent_replay.errors import UnreadableRecording
from otel_agent_replay.recording.rope import is_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.values import Json

T = TypeVar("T", bytes, "list[_Leaf]")

HELD = 32 << 20
"""Bytes of bodies resolved last that a reader holds."""

LONGEST = 1 << 32
"""Bytes: a reference that claims a longer body is refused."""

MOST_PIECES = 1 << 22
"""A reference that claims more pieces is refused."""


class MissingContent(UnreadableRecording):
    """A body refers to content that the recording does not hold, or holds damaged."""

    def __init__(self, why: str) -> None:
        super().__init__("A recorded body", why, "a frame was lost or cut on its way, so record the run again")


_Leaf: TypeAlias = "bytes | str | tuple[bytes | str, int, int]"
"""A piece as it is found at the end of a chain: new bytes, a digest, or a stretch of either."""


class _Rope:
    """A reference, read."""

    __slots__ = ("again", "checked", "count", "ident", "length", "of", "parts", "starts")

    def __init__(self, ref: dict[str, Json]) -> None:
        ident, of, length = ref.get("id"), ref.get("of"), ref.get("n")
        parts = ref.get("p", [])
        if not (isinstance(ident, str) and isinstance(of, str | None) and isinstance(parts, list)):
            raise MissingContent("its reference is malformed")
        if type(length) is not int or not 0 <= length <= LONGEST:
            raise MissingContent(f"its reference claims {length!r} bytes")
        self.ident = ident
        self.of = of
        self.again = of if "p" not in ref else None
        """Name of the body that this one is again."""
        self.length = length
        self.parts: list[bytes | str | list[int]] = [_part(part) for part in parts]
        self.starts: list[int] = []
        """Number of the first piece of each part."""
        self.count = 0
        for part in self.parts:
            self.starts.append(self.count)
            self.count += part[1] if isinstance(part, list) and len(part) == 2 else 1
        if self.count > min(length, MOST_PIECES):
            raise MissingContent(f"its reference claims {self.count} pieces in {length} bytes")
        self.checked = False


def _part(part: Json) -> bytes | str | list[int]:
    if isinstance(part, str) and part[:1] == "=":
        return part[1:].encode()
    if isinstance(part, str) and part[:1] == "#":
        return part[1:]
    if isinstance(part, dict) and part.get("$") == "b64":
        return from_base64(part)
    if isinstance(part, list) and len(part) in (2, 3):
        numbers = [number for number in part if type(number) is int and number >= 0]
        if len(numbers) == len(part) and numbers[-1] > (numbers[1] if len(part) == 3 else 0):
            return numbers
    raise MissingContent("its reference is malformed")


def from_base64(ref: dict[str, Json]) -> bytes:
    """The bytes that `text_or_base64` tagged. Raises MissingContent where they are no base64."""
    value = ref.get("v")
    try:
        return b64decode(value, validate=True) if isinstance(value, str) else _malformed()
    except ValueError as error:
        raise MissingContent("its reference is malformed") from error


def _malformed() -> bytes:
    raise MissingContent("its reference is malformed")


class _Bounded(OrderedDict[str, T]):
    """What was used last, up to a total size."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._size = 0

    def put(self, name: str, value: T) -> None:
        size = len(value)
        if size > self._limit or name in self:
            return
        self[name] = value
        self._size += size
        while self._size > self._limit:
            self._size -= len(self.popitem(last=False)[1])


class ContentReader:
    """Gives bodies back. `pieces` maps digests (32 hex digits) to bytes, and may be filled while this is used.

    Thread-safe. It holds what the references say, and of bodies those resolved last, within `held` bytes.
    """

    def __init__(self, pieces: Mapping[str, bytes], held: int = HELD) -> None:
        self._pieces = pieces
        self._lock = RLock()
        self._ropes: dict[str, _Rope] = {}
        self._sound: set[str] = set()
        """Digests of pieces that were compared with their bytes."""
        self._lists: _Bounded[list[_Leaf]] = _Bounded(1 << 20)
        self._bodies: _Bounded[bytes] = _Bounded(held)

    def add_rope(self, ref: Json) -> None:
        """Make a body known, so that later references can build on it; any order, twice is harmless.

        Raises MissingContent where the reference is malformed.
        """
        if isinstance(ref, dict) and ref.get("$") == "rope":
            with self._lock:
                if ref.get("id") not in self._ropes:
                    rope = _Rope(ref)
                    self._ropes[rope.ident] = rope

    def check(self, ref: Json) -> None:
        """Raise MissingContent where the body cannot be resolved; costs only what no earlier check looked at."""
        if isinstance(ref, dict) and ref.get("$") == "rope":
            with self._lock:
                self._check(self._rope(ref))
        else:
            self.resolve(ref)

    def resolve(self, ref: Json) -> bytes:
        """The body. Raises MissingContent, which names the digest or the body that is lacking."""
        if isinstance(ref, str):
            return ref.encode()
        if not isinstance(ref, dict) or ref.get("$") not in ("b64", "rope"):
            raise MissingContent("its reference is malformed")
        if ref["$"] == "b64":
            return from_base64(ref)
        with self._lock:
            rope = self._rope(ref)
            body = self._bodies.get(rope.ident)
            if body is None:
                self._check(rope)
                body = self._joined(rope)
                self._bodies.put(rope.ident, body)
            else:
                self._bodies.move_to_end(rope.ident)
            return body

    def _rope(self, ref: dict[str, Json]) -> _Rope:
        self.add_rope(ref)
        return self._named(str(ref["id"]))

    def _named(self, ident: str) -> _Rope:
        """The body of this name, or the one that it is again."""
        passed: set[str] = set()
        while True:
            rope = self._ropes.get(ident)
            if rope is None:
                raise MissingContent(f"it is described by body {ident}, which is not there")
            if rope.again is None:
                return rope
            if ident in passed:
                raise MissingContent(f"body {ident} is described by itself")
            passed.add(ident)
            ident = rope.again

    def _check(self, rope: _Rope) -> None:
        """Follow the chain down to what was checked before, then check upwards."""
        chain: dict[str, _Rope] = {}
        at: _Rope | None = rope
        while at is not None and not at.checked:
            if at.ident in chain:
                raise MissingContent(f"body {at.ident} is described by itself")
            chain[at.ident] = at
            if at.of is None:
                break
            at = self._named(at.of)
        for link in reversed(chain.values()):
            most = self._named(link.of).count if link.of is not None else 0
            for part in link.parts:
                if isinstance(part, list) and part[0] + (part[1] if len(part) == 2 else 1) > most:
                    raise MissingContent(f"body {link.ident} refers to more than the earlier body holds")
                if isinstance(part, str) and part not in self._pieces:
                    raise MissingContent(f"piece {part} is not there")
            link.checked = True

    def _joined(self, rope: _Rope) -> bytes:
        leaves = self._expand(rope)
        self._lists.put(rope.ident, leaves)
        pieces = [
            leaf
            if isinstance(leaf, bytes)
            else self._piece(leaf)
            if isinstance(leaf, str)
            else self._piece(leaf[0])[leaf[1] : leaf[2]]
            for leaf in leaves
        ]
        found = sum(map(len, pieces))
        if found != rope.length:
            raise MissingContent(f"body {rope.ident} has {rope.length} bytes, {found} are there")
        return b"".join(pieces)

    def _piece(self, source: str | bytes) -> bytes:
        if isinstance(source, bytes):
            return source
        try:
            piece = self._pieces[source]
        except KeyError:
            raise MissingContent(f"piece {source} is not there") from None
        if source not in self._sound:
            if not is_named(piece, source):
                raise MissingContent(f"piece {source} is damaged")
            self._sound.add(source)
        return piece

    def _expand(self, rope: _Rope) -> list[_Leaf]:
        """The pieces of a body, in order. Chains may be 10,000 long, so there is no recursion."""
        leaves: list[_Leaf] = []
        todo: list[tuple[_Rope, int, int] | _Leaf] = [(rope, 0, rope.count)]
        while todo:
            task = todo.pop()
            if not isinstance(task, tuple) or not isinstance(task[0], _Rope):
                leaves.append(task)
                continue
            at, first, count = task
            expanded = self._lists.get(at.ident)
            if expanded is not None:
                leaves += expanded[first : first + count]
                continue
            todo += reversed(self._step(at, first, count))
        return leaves

    def _step(self, rope: _Rope, first: int, count: int) -> list[tuple[_Rope, int, int] | _Leaf]:
        """Pieces first to first + count of a body, by its earlier body."""
        found: list[tuple[_Rope, int, int] | _Leaf] = []
        number = bisect_right(rope.starts, first) - 1
        while count:
            part = rope.parts[number]
            taken = 1
            if isinstance(part, list) and len(part) == 2:
                skipped = first - rope.starts[number]
                taken = min(count, part[1] - skipped)
                found.append((self._named(cast("str", rope.of)), part[0] + skipped, taken))
            elif isinstance(part, list):
                found.append(self._stretch(rope, part[0], part[1], part[2]))
            else:
                found.append(part)
            first += taken
            count -= taken
            number += 1
        return found

    def _stretch(self, rope: _Rope, index: int, begin: int, end: int) -> _Leaf:
        """Bytes begin to end of one piece of the earlier body."""
        while True:
            rope = self._named(cast("str", rope.of))
            number = bisect_right(rope.starts, index) - 1
            part = rope.parts[number]
            if not isinstance(part, list):
                return part, begin, end
            if len(part) == 2:
                index = part[0] + index - rope.starts[number]
            else:
                index, begin, end = part[0], begin + part[1], min(end + part[1], part[2])
