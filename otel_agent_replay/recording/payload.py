"""What the payload of a crossing holds, as JSON with short keys; what is absent has its default.

| key | holds | default |
|---|---|---|
| `w` | 1: answered at the wire | 0 |
| `i` | input, as the codec wrote it | null |
| `o` | outcome, as the codec wrote it | null |
| `y` | what a generator gave, in order, as the codec wrote it | [] |
| `c` | what the call was handed as it was afterwards, where it changed something of it, as `changed` wrote it | null |
| `s` | which objects of it are which, as `changed.identities` tells | {} |
| `k` | signals whose handlers raised into it: place in the run's order, and attempts begun, of each | [] |
| `I`, `O`, `Y`, `C`, `S` | reference to the JSON of the same, where it is long | |
| `a` | HTTP attempts, each as below | [] |

| key of an attempt | holds | default |
|---|---|---|
| `m` | method | POST |
| `h` | URL and request headers: a list of URL, name, value, name, value …, or a reference to it | |
| `b` | reference to the request body | empty |
| `s` | status | no response came |
| `r` | reason phrase | the usual one of the status |
| `v` | HTTP version | HTTP/1.1 |
| `g` | response headers, as `h` without a URL | [] |
| `d` | reference to the response body, its chunks joined | empty |
| `n` | length of each chunk | one chunk that holds `d`; none without `d` |
| `t` | microseconds of each chunk since the one before, the first since the request | [] |
| `q` | place of each chunk in the run's order, or null | [] |
| `e` | how it ended | ended; unfinished where no response came |
| `x` | the error, as the codec wrote it | null |
| `k` | place of the signal whose handler raised it | null |

A null among headers stands for the length of the body. References are those of `contents`; a rope leaves out its
tag and, where it is `ident(span_id, slot)`, its name.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from itertools import accumulate, chain
from operator import sub
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar, cast

import orjson

from otel_agent_replay.errors import UnreadableRecording
from otel_agent_replay.recording.compiled import PART
from otel_agent_replay.recording.exact import dumps, loads
from otel_agent_replay.recording.values import Attempt, End, WireHead, WireRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_agent_replay.recording.values import CrossingRecord, Headers, Json

T = TypeVar("T")
D = TypeVar("D")

SHORT_VALUE = 200
"""Characters of JSON: an input or outcome up to this many stands in the payload, more is content stored once."""

SHORT_HEADERS = {"h": 64, "g": 160}
"""Bytes of JSON: headers up to this many stand in the payload, more are content stored once. Those of the request
are written twice, with the input and with the outcome."""

_REASONS = {int(status): status.phrase for status in HTTPStatus}
_UNFINISHED, _ENDED = End.UNFINISHED, End.ENDED
_SLOTS = ("h", "b", "g", "d")
_SLOTS_OF_VALUES = ("i", "o", "y", "c", "s")


def ident(span_id: int, slot: str) -> str:
    """What `ContentWriter.refer` is to be given as `ident` for a slot of a crossing."""
    return f"{span_id:016x}.{slot}"


class Mask(Protocol):
    """Masks what a payload holds; gives the same object where nothing is masked."""

    def value(self, slot: str, text: str) -> str:
        """The JSON of what stands at a slot."""

    def request(self, request: WireRequest) -> WireRequest:
        """What an attempt sends."""

    def response(self, number: int, attempt: Attempt) -> Attempt:
        """An attempt with what came back so far; its request is of no matter."""


def compose(
    record: CrossingRecord,
    refer: Callable[[str, bytes], Json],
    requests: dict[int, dict[str, Json]] | None = None,
    mask: Mask | None = None,
) -> dict[str, Json]:
    """The payload of a crossing, with or without an outcome.

    `requests` keeps what is composed of each attempt's request, which does not change once it is sent: given
    again for the end frame, it is not composed twice.

    `mask` is asked for everything first; without it nothing is masked.

    `refer(slot, body)` is asked for each body; slots are ``<n>.b`` (request body of attempt n), ``<n>.d``
    (response body), ``<n>.h`` and ``<n>.g`` (request and response headers, where they are long), ``i``, ``o``, ``y``,
    ``c`` and ``s`` (input, outcome, items, what was changed, where they are long). It must give the same reference for
    the same crossing and slot when the body has not changed: keep them from the start frame for the end frame. Use
    `ident(record.span_id, slot)` as the ident, and as the stream the lane, the key and the last letter of the slot,
    and give what `unnamed` makes of the reference.
    """
    payload: dict[str, Json] = {}
    if record.wire:
        payload["w"] = 1

    for slot, value in _values(record):
        if value is None:
            continue
        text = dumps(value)
        if mask is not None:
            masked = mask.value(slot, text)
            if masked is not text:
                text, value = masked, loads(masked)
        if len(text) > SHORT_VALUE:
            payload[slot.upper()] = refer(slot, text.encode())
        else:
            payload[slot] = value
    if record.signals:
        payload["k"] = [list(signal) for signal in record.signals]
    if record.attempts:
        known = {} if requests is None else requests
        payload["a"] = attempts = []
        for number, attempt in enumerate(record.attempts):
            asked = known.get(number)
            if asked is None:
                request = attempt.request if mask is None else mask.request(attempt.request)
                asked = known[number] = _request(number, request, refer)
            attempts.append({**asked, **_response(number, attempt, refer, mask)})
    return payload


def _values(record: CrossingRecord) -> tuple[tuple[str, Json], ...]:
    """What the codec wrote, by its slot."""
    items = list(record.items) or None
    return ("i", record.input), ("o", record.outcome), ("y", items), ("c", record.after), ("s", record.same or None)


def unnamed(ref: Json, name: str) -> Json:
    """A reference as it stands in a payload, `name` being what `ContentWriter.refer` was given as `ident`."""
    if isinstance(ref, dict) and ref.get("$") == "rope":
        ref = ref.copy()
        del ref["$"]
        if ref.get("id") == name:
            del ref["id"]
    return ref


def _request(number: int, request: WireRequest, refer: Callable[[str, bytes], Json]) -> dict[str, Json]:
    body = request.body
    found: dict[str, Json] = {}
    if request.method != "POST":
        found["m"] = request.method
    found["h"] = _headers(request.url, request.headers, len(body), f"{number}.h", refer)
    if body:
        found["b"] = refer(f"{number}.b", body)
    return found


def _response(number: int, attempt: Attempt, refer: Callable[[str, bytes], Json], mask: Mask | None) -> dict[str, Json]:
    """What came back, when its chunks came, and how it ended."""
    if mask is not None and (attempt.head is not None or attempt.chunks or attempt.error is not None):
        attempt = mask.response(number, attempt)
    head, chunks = attempt.head, attempt.chunks
    data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    found: dict[str, Json] = {} if head is None else _head(head, len(data), f"{number}.g", refer)
    if data:
        found["d"] = refer(f"{number}.d", data)
    if len(chunks) != bool(data):
        found["n"] = list(map(len, chunks))
    if attempt.offsets:
        found["t"] = list(map(sub, attempt.offsets, [0, *attempt.offsets]))
    if attempt.seqs:
        found["q"] = list(attempt.seqs)
    if attempt.end is not (_UNFINISHED if head is None else _ENDED):
        found["e"] = str(attempt.end)
    if attempt.error is not None:
        found["x"] = attempt.error
    if attempt.signal is not None:
        found["k"] = attempt.signal
    return found


def _head(head: WireHead, length: int, slot: str, refer: Callable[[str, bytes], Json]) -> dict[str, Json]:
    found: dict[str, Json] = {"s": head.status}
    if head.reason != _REASONS.get(head.status, ""):
        found["r"] = head.reason
    if head.http_version != "HTTP/1.1":
        found["v"] = head.http_version
    if head.headers:
        found["g"] = _headers(None, head.headers, length, slot, refer)
    return found


def _headers(url: str | None, headers: Headers, length: int, slot: str, refer: Callable[[str, bytes], Json]) -> Json:
    """The URL, if any, names and values in turn, null for the length of the body: the list, or a reference to it."""
    text = None if PART is None else PART.headers(url, headers, str(length))
    if text is None:
        flat = flattened(url, headers, length)
        try:
            text = orjson.dumps(flat)
        except TypeError:  # a lone surrogate, which no header may hold
            return flat
    return orjson.loads(text) if len(text) <= SHORT_HEADERS[slot[-1]] else refer(slot, text)


def flattened(url: str | None, headers: Headers, length: int) -> list[Json]:
    """What `_headers` writes."""
    flat: list[Json] = [*([] if url is None else [url]), *chain.from_iterable(headers)]
    size, first = str(length), int(url is not None)
    at = first
    for _ in range(flat[first:].count(size)):
        at = flat.index(size, at) + 1
        if (at - first) % 2 == 0 and str(flat[at - 2]).lower() == "content-length":
            flat[at - 1] = None
    return flat


def references(payload: dict[str, Json], span_id: int) -> Iterator[Json]:
    """Every reference to a body in a payload, whole, for `ContentReader.add_rope`."""
    for slot in _SLOTS_OF_VALUES:
        if slot.upper() in payload:
            yield _named(payload[slot.upper()], ident(span_id, slot))
    attempts = payload.get("a")
    for number, attempt in enumerate(attempts if isinstance(attempts, list) else ()):
        if isinstance(attempt, dict):
            for letter in _SLOTS:
                if letter in attempt and not isinstance(attempt[letter], list):
                    yield _named(attempt[letter], ident(span_id, f"{number}.{letter}"))


def _named(ref: Json, name: str) -> Json:
    if isinstance(ref, dict) and "$" not in ref:
        return {"$": "rope", "id": name, **ref}
    return ref


class StoredRequest(WireRequest):
    """A recorded request whose body is resolved each time it is read.

    The bodies of a chat of 1,000 turns are a thousand times what is stored of them, so they are never all there.
    """

    __slots__ = ("_ref", "_resolve")
    _ref: Json | bytes
    _resolve: Callable[[Json], bytes]

    @classmethod
    def of(cls, method: str, url: str, headers: Headers, ref: Json, resolve: Callable[[Json], bytes]) -> StoredRequest:
        """A request whose body `resolve(ref)` gives."""
        request = cls(method, url, headers, b"")
        request._ref, request._resolve = ref, resolve
        return request

    @property
    def body(self) -> bytes:
        """The body, whole and as sent. Raises MissingContent where the recording lacks some of it."""
        ref = self._ref
        return ref if isinstance(ref, bytes) else self._resolve(ref)

    @body.setter
    def body(self, body: bytes) -> None:
        self._ref = body

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WireRequest):
            return NotImplemented
        mine = (self.method, self.url, self.headers)
        return mine == (other.method, other.url, other.headers) and self.body == other.body

    __hash__ = None  # type: ignore[assignment]


def restore(payload: dict[str, Json], base: CrossingRecord, resolve: Callable[[Json], bytes]) -> CrossingRecord:
    """The inverse of `compose`: a copy of `base` with input, outcome, attempts, items, changes and `wire` filled in.

    Request bodies that are ropes are resolved when they are read.

    Raises:
        UnreadableRecording: the payload is malformed, or `resolve` lacks something.
    """
    stored = _Stored(payload)
    attempts = stored.get("a", list, [])
    same = stored.value("s", base.span_id, resolve)
    return replace(
        base,
        wire=stored.get("w", int, 0) == 1,
        input=stored.value("i", base.span_id, resolve),
        outcome=stored.value("o", base.span_id, resolve),
        items=_items(stored.value("y", base.span_id, resolve)),
        after=stored.value("c", base.span_id, resolve),
        same=same if isinstance(same, dict) else {} if same is None else _malformed("`s`", same),
        signals=stored.pairs("k"),
        attempts=[
            _StoredAttempt(found, number, base.span_id, resolve).attempt() for number, found in enumerate(attempts)
        ],
    )


class _Stored:
    """A JSON object that may hold anything."""

    def __init__(self, found: Json) -> None:
        self.found = found if isinstance(found, dict) else _malformed("an attempt", found)

    def get(self, key: str, kind: type[T], default: D) -> T | D:
        """The value of this type, or the default where there is none."""
        value = self.found.get(key, default)
        return value if type(value) is kind or value is default else _malformed(f"`{key}`", value)

    def value(self, key: str, span_id: int, resolve: Callable[[Json], bytes]) -> Json:
        """What the codec wrote, here or as content of its own."""
        if key.upper() not in self.found:
            return self.found.get(key)
        try:
            return loads(resolve(_named(self.found[key.upper()], ident(span_id, key))))
        except ValueError as error:
            return _malformed(f"`{key.upper()}`", error)

    def numbers(self, key: str) -> list[int]:
        """A list of integers."""
        values = self.get(key, list, [])
        return values if all(type(value) is int for value in values) else _malformed(f"`{key}`", values)

    def pairs(self, key: str) -> list[list[int]]:
        """A list of pairs of integers."""
        values = self.get(key, list, [])
        if all(type(pair) is list and [type(value) for value in pair] == [int, int] for pair in values):
            return values
        return _malformed(f"`{key}`", values)


class _StoredAttempt(_Stored):
    """An attempt as it stands in a payload."""

    def __init__(self, found: Json, number: int, span_id: int, resolve: Callable[[Json], bytes]) -> None:
        super().__init__(found)
        self._number = number
        self._span_id = span_id
        self._resolve = resolve

    def attempt(self) -> Attempt:
        head = None
        data = self._resolve(self._ref("d")) if "d" in self.found else b""
        if "s" in self.found:
            status = self.get("s", int, 0)
            head = WireHead(
                status,
                self.get("r", str, _REASONS.get(status, "")),
                self._pairs("g", self._texts("g", lambda: len(data))),
                self.get("v", str, "HTTP/1.1"),
            )
        return Attempt(
            self._request(),
            head,
            self._chunks(data),
            list(accumulate(self.numbers("t"))),
            self._end(head),
            self.found.get("x"),
            self.get("q", list, []),
            self.get("k", int, None),
        )

    def _request(self) -> WireRequest:
        method = self.get("m", str, "POST")
        url, *texts = self._texts("h", lambda: self._length("b")) or [""]
        headers = self._pairs("h", texts)
        ref = self._ref("b") if "b" in self.found else ""
        if isinstance(ref, dict) and ref.get("$") == "rope":
            return StoredRequest.of(method, url, headers, ref, self._resolve)
        return WireRequest(method, url, headers, self._resolve(ref) if ref else b"")

    def _ref(self, letter: str) -> Json:
        return _named(self.found[letter], ident(self._span_id, f"{self._number}.{letter}"))

    def _length(self, letter: str) -> int:
        ref = self.found.get(letter, "")
        if isinstance(ref, dict) and type(length := ref.get("n")) is int:
            return length
        return len(self._resolve(self._ref(letter))) if ref else 0

    def _texts(self, letter: str, length: Callable[[], int]) -> list[str]:
        flat = self.found.get(letter, [])
        if not isinstance(flat, list):
            try:
                flat = orjson.loads(self._resolve(self._ref(letter)))
            except ValueError:
                _malformed(f"`{letter}`", flat)
        if not isinstance(flat, list) or not all(isinstance(text, str | None) for text in flat):
            return _malformed(f"`{letter}`", flat)
        return [str(length()) if text is None else cast("str", text) for text in flat]

    def _pairs(self, letter: str, texts: list[str]) -> Headers:
        return (
            list(zip(texts[::2], texts[1::2], strict=True)) if len(texts) % 2 == 0 else _malformed(f"`{letter}`", texts)
        )

    def _chunks(self, data: bytes) -> list[bytes]:
        if "n" not in self.found:
            return [data] if data else []
        lengths = self.numbers("n")
        if sum(lengths) != len(data) or min(lengths, default=0) < 0:
            return _malformed("`n`", f"{sum(lengths)} bytes of {len(data)}")
        ends = list(accumulate(lengths))
        return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _end(self, head: WireHead | None) -> End:
        text = self.get("e", str, str(_UNFINISHED if head is None else _ENDED))
        try:
            return End(text)
        except ValueError:
            return _malformed("`e`", text)


def _items(found: Json) -> list[Json]:
    return [] if found is None else found if isinstance(found, list) else _malformed("`y`", found)


def _malformed(what: str, found: object) -> NoReturn:
    raise UnreadableRecording(
        "A recorded crossing",
        f"{what} of its payload is {str(found)[:80]!r}",
        "it was changed on its way, so record the run again",
    )
