"""Whether what is asked is what was recorded, and if not, only what differs.

A request is compared by method, path and query (not by host: a base URL may move) and body. A JSON body is
compared by structure: the order of keys does not count; 1, 1.0 and true are three things. Headers do not count.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from contextlib import suppress
from difflib import SequenceMatcher
from email.parser import BytesHeaderParser
from email.policy import HTTP
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from otel_agent_replay.recording.divergence import Difference
from otel_agent_replay.recording.variables import Bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_agent_replay.recording.values import Json, WireRequest
    from otel_agent_replay.recording.variables import Trial

LIMIT = 8
"""So many differences are told, unless more are asked for."""

SHOWN = 160
"""Characters of a value that a difference shows."""

BEFORE = 40
"""Characters shown before the first one that differs."""

ABSENT = "(absent)"
"""Stands for what one side does not have."""

DEEPEST = 24
"""Levels below which a value is compared and shown as a whole."""

LONGEST_LIST = 2000
"""Items; what differs in the middle of a longer list is compared one by one, without looking for insertions."""

LARGEST_COMPARED = 1 << 20
"""Bytes at each end of a body that count for its similarity."""


def same_request(recorded: WireRequest, asked: WireRequest, bound: Bindings | None = None) -> bool:
    """Whether a recorded request answers this one. Masked values are variables, bound where it does."""
    if recorded.method.upper() != asked.method.upper():
        return False
    trial = (Bindings() if bound is None else bound).trial()
    if not _same([*_target(recorded)], [*_target(asked)], trial):
        return False
    before, after = recorded.body, asked.body
    if before != after and not _same(_body(recorded, before), _body(asked, after), trial):
        return False
    trial.keep()
    return True


def differences(
    recorded: WireRequest, asked: WireRequest, limit: int = LIMIT, bound: Bindings | None = None
) -> tuple[Difference, ...]:
    """Where the two requests differ, at most `limit` places.

    The host alone is no difference, as a server may have moved; beside another one it may be the cause of it.
    """
    found = _Differences(limit, bound)
    if recorded.method.upper() != asked.method.upper():
        found.add("method", recorded.method.upper(), asked.method.upper())
    (path, query), (asked_path, asked_query) = _target(recorded), _target(asked)
    if not found.same(path, asked_path):
        found.add("path", path, asked_path)
    found.walk(query, asked_query, "query", 0)
    before, after = recorded.body, asked.body
    if before != after:
        found.walk(_body(recorded, before), _body(asked, after), "body", 0)
    hosts = [urlsplit(request.url).netloc.rpartition("@")[2].lower() for request in (recorded, asked)]
    if found.found and hosts[0] != hosts[1]:
        found.found.insert(0, Difference("host", *hosts))
    return tuple(found.found[:limit])


def similarity(recorded: WireRequest, asked: WireRequest) -> float:
    """How alike two requests are, 0 to 1; cheap, for finding the nearest one."""
    share = _overlap(recorded.body, asked.body)
    if recorded.method.upper() != asked.method.upper() or _target(recorded)[0] != _target(asked)[0]:
        return share / 2
    return 0.2 + 0.8 * share


def same_value(recorded: Json, asked: Json, bound: Bindings | None = None) -> bool:
    """Whether two values are the same, type for type. The order of keys does not count; a NaN is itself.

    Masked values are variables, bound where they are the same.
    """
    trial = (Bindings() if bound is None else bound).trial()
    if not _same(recorded, asked, trial):
        return False
    trial.keep()
    return True


def _same(recorded: Json, asked: Json, trial: Trial) -> bool:
    todo: list[tuple[Any, Any]] = [(recorded, asked)]
    while todo:
        a, b = todo.pop()
        if a is b:
            continue
        if type(a) is not type(b):
            if isinstance(a, str) and trial.value(a, b):
                continue
            return False
        if isinstance(a, dict):
            if len(a) != len(b):
                return False
            if a.get("$") == "map" == b.get("$"):
                a, b = _by_key(a), _by_key(b)
            pairs = a if a.keys() == b.keys() else trial.keys(a, b)
            if pairs is None:
                return False
            todo += ((value, b[key if pairs is a else pairs[key]]) for key, value in a.items())
        elif isinstance(a, list):
            if len(a) != len(b):
                return False
            todo += zip(a, b, strict=True)
        elif a != b and not (a != a and b != b) and not (isinstance(a, str) and trial.text(a, b)):
            return False
    return True


def value_differences(
    recorded: Json, asked: Json, where: str = "", limit: int = LIMIT, bound: Bindings | None = None
) -> tuple[Difference, ...]:
    """Where two values, as the codec wrote them, differ; `where` is the path of the whole."""
    found = _Differences(limit, bound)
    found.walk(recorded, asked, where, 0)
    return tuple(found.found)


def value_similarity(recorded: Json, asked: Json) -> float:
    """How alike two values are, 0 to 1."""
    return _overlap(_key(recorded).encode("utf-8", "surrogatepass"), _key(asked).encode("utf-8", "surrogatepass"))


def _target(request: WireRequest) -> tuple[str, Json]:
    """Path, and query as values by name."""
    parts = urlsplit(request.url)
    return parts.path or "/", _fields(parts.query)


def _fields(text: str) -> dict[str, Json]:
    """The pairs of a query or a form: a value by name, a list of them where a name is repeated."""
    found: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _by_key(value: dict[str, Any]) -> dict[str, Any]:
    """A ``map`` of the codec by what its keys are."""
    flat = value.get("v")
    if not isinstance(flat, list) or len(flat) % 2:
        return value
    return dict(zip(map(_key, flat[::2]), flat[1::2], strict=True))


def _body(request: WireRequest, body: bytes) -> Json:
    """A body as values, by its content type. One that was masked is recorded without its content coding."""
    if body[:1] in (b"\x1f", b"\x78"):
        body = _uncoded(request, body)
    content_type = next((value for name, value in request.headers if name.lower() == "content-type"), "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _multipart(content_type, body)
    if kind == "application/x-www-form-urlencoded":
        return _fields(body.decode("utf-8", "surrogateescape"))
    if "json" in kind or body[:1] in (b"{", b"["):
        try:
            return json.loads(body)  # type: ignore[no-any-return] # orjson would round integers beyond 64 bits
        except (ValueError, RecursionError):
            pass
    return _text(body)


def _uncoded(request: WireRequest, body: bytes) -> bytes:
    coding = next((value for name, value in request.headers if name.lower() == "content-encoding"), "")
    if coding.strip().lower() in ("gzip", "x-gzip", "deflate"):
        with suppress(zlib.error):
            return zlib.decompress(body, zlib.MAX_WBITS | 32)
    return body


def _text(data: bytes) -> Json:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"bytes": len(data), "digest": blake2b(data, digest_size=16).hexdigest(), "hex": data[:32].hex()}


def _multipart(content_type: str, body: bytes) -> Json:
    """Its parts in order, each with its headers and its content; the boundary, which is random, left out."""
    header = BytesHeaderParser(policy=HTTP).parsebytes(b"content-type: " + content_type.encode("latin-1", "replace"))
    boundary = header.get_boundary()
    if not boundary:
        return _text(body)
    mark = b"--" + boundary.encode("latin-1", "replace")
    parts: list[Json] = []
    for part in body.split(mark)[1:]:
        if part.startswith(b"--"):
            break
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        found: dict[str, Json] = {}
        for line in head.split(b"\r\n"):
            name, _, value = line.decode("utf-8", "replace").partition(":")
            found[name.strip().lower()] = value.strip()
        found["content"] = _text(content.removesuffix(b"\r\n"))
        parts.append(found)
    return parts


def _key(value: Json) -> str:
    """Text that is the same for the same value."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        return f"<{type(value).__name__} that is too deep>"


def _overlap(recorded: bytes, asked: bytes) -> float:
    """The share of the longer body that stands in both, in stretches between quotes or blanks."""
    if recorded == asked:
        return 1.0
    before, after = _stretches(recorded), _stretches(asked)
    shared = sum(len(stretch) * count for stretch, count in (before & after).items())
    most = max(sum(len(stretch) * count for stretch, count in side.items()) for side in (before, after))
    return shared / most if most else 0.0


def _stretches(body: bytes) -> Counter[bytes]:
    if len(body) > 2 * LARGEST_COMPARED:
        body = body[:LARGEST_COMPARED] + body[-LARGEST_COMPARED:]
    return Counter(body.replace(b'"', b" ").split())


class _Differences:
    """Collects differences up to a limit."""

    def __init__(self, limit: int, bound: Bindings | None) -> None:
        self.found: list[Difference] = []
        self._limit = limit
        self._bound = Bindings() if bound is None else bound.copy()

    def same(self, recorded: Json, asked: Json) -> bool:
        """Whether two values are the same, masked ones as in what was compared before."""
        return same_value(recorded, asked, self._bound)

    @property
    def full(self) -> bool:
        return len(self.found) >= self._limit

    def add(self, where: str, recorded: str, asked: str) -> None:
        if not self.full:
            self.found.append(Difference(where, recorded, asked))

    def walk(self, recorded: Any, asked: Any, where: str, depth: int) -> None:
        """Add what differs between two values."""
        if self.full or self.same(recorded, asked):
            return
        if isinstance(recorded, dict) and isinstance(asked, dict) and depth < DEEPEST:
            if recorded.get("$") == "map" == asked.get("$"):
                recorded, asked = _by_key(recorded), _by_key(asked)
            for key in [*recorded, *(key for key in asked if key not in recorded)]:
                self._member(recorded, asked, key, where, depth)
        elif isinstance(recorded, list) and isinstance(asked, list) and depth < DEEPEST:
            self._lists(recorded, asked, where, depth)
        elif isinstance(recorded, str) and isinstance(asked, str):
            self.add(where, *_windows(recorded, asked))
        else:
            self.add(where, _shown(recorded), _shown(asked))

    def _member(self, recorded: dict[str, Any], asked: dict[str, Any], key: str, where: str, depth: int) -> None:
        place = f"{where}.{key}" if key.isidentifier() and where else key if key.isidentifier() else f"{where}[{key!r}]"
        if key not in asked:
            self.add(place, _shown(recorded[key]), ABSENT)
        elif key not in recorded:
            self.add(place, ABSENT, _shown(asked[key]))
        else:
            self.walk(recorded[key], asked[key], place, depth + 1)

    def _lists(self, recorded: list[Any], asked: list[Any], where: str, depth: int) -> None:
        for i, j in _aligned(recorded, asked, self.same):
            if self.full:
                return
            if j is None:
                self.add(f"{where}[{i}]", _shown(recorded[i or 0]), ABSENT)
            elif i is None:
                self.add(f"{where}[{j}]", ABSENT, _shown(asked[j]))
            else:
                self.walk(recorded[i], asked[j], f"{where}[{j}]", depth + 1)


def _aligned(
    recorded: list[Any], asked: list[Any], same: Callable[[Any, Any], bool]
) -> Iterator[tuple[int | None, int | None]]:
    """Which item of one list stands for which of the other; None where there is none. Most equal ones are left out."""
    first, last = 0, 0
    shorter = min(len(recorded), len(asked))
    while first < shorter and same(recorded[first], asked[first]):
        first += 1
    # the pair that ended the first loop differs, and where both are equally long it would be met again
    most = shorter - first - (len(recorded) == len(asked) and first < shorter)
    while last < most and same(recorded[-1 - last], asked[-1 - last]):
        last += 1
    before = list(map(_key, recorded[first : len(recorded) - last]))
    after = list(map(_key, asked[first : len(asked) - last]))
    if max(len(before), len(after)) > LONGEST_LIST:
        blocks = [("replace", 0, len(before), 0, len(after))]
    else:
        blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()  # type: ignore[assignment]
    for tag, i, i_end, j, j_end in blocks:
        if tag == "equal":  # as far as their keys tell
            yield from ((first + i + k, first + j + k) for k in range(i_end - i))
            continue
        while i < i_end and j < j_end:
            # in a block of different lengths, an item that is like none of the other side was added or removed
            if i_end - i < j_end - j and not _alike(before[i], after[j]):
                yield None, first + j
                j += 1
            elif i_end - i > j_end - j and not _alike(before[i], after[j]):
                yield first + i, None
                i += 1
            else:
                yield first + i, first + j
                i, j = i + 1, j + 1
        yield from ((first + k, None) for k in range(i, i_end))
        yield from ((None, first + k) for k in range(j, j_end))


def _alike(recorded: str, asked: str) -> bool:
    return _overlap(recorded[:2000].encode("utf-8", "replace"), asked[:2000].encode("utf-8", "replace")) > 0.5


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _key(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _windows(recorded: str, asked: str) -> tuple[str, str]:
    """Both strings around the first place where they differ, and up to the last."""
    start = _common(recorded, asked)
    end = _common(recorded[start:][::-1], asked[start:][::-1])
    return _window(recorded, start, end), _window(asked, start, end)


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _window(text: str, start: int, end: int) -> str:
    begin = start - BEFORE if start > BEFORE + 10 else 0
    stop = min(len(text), max(len(text) - end + BEFORE, start + 1))
    if stop > len(text) - 10:
        stop = len(text)
    stop = min(stop, begin + SHOWN)
    shown = json.dumps(text[begin:stop], ensure_ascii=False)[1:-1]
    return f'"{"…" if begin else ""}{shown}{"…" if stop < len(text) else ""}"'
