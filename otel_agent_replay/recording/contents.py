"""Content stored once: bodies become references to what the run has already written.

A reference is JSON: short bodies stand in it (a string, or ``{"$": "b64", "v": …}`` where they are not UTF-8),
others are ropes:

    {"$": "rope", "id": name of this body, "of": name of the earlier body or absent, "p": parts, "n": bytes}

`rope` says what the parts are; without parts it is the earlier body again. A body is described by the previous body
of its stream, so neither the content nor the references of a growing chat grow with the square of its turns.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from otel_agent_replay.recording.resolving import ContentReader, MissingContent
from otel_agent_replay.recording.rope import describe, text_or_base64

if TYPE_CHECKING:
    from otel_agent_replay.recording.rope import Description
    from otel_agent_replay.recording.values import Json

__all__ = ["ContentReader", "ContentWriter", "MissingContent"]

SMALL = 64
"""Bytes: a shorter body stands in its reference whole."""

HELD = 64 << 20
"""Bytes of earlier bodies that a writer holds, to describe the next ones by."""

START = 64
"""Bytes that a stream's first body must share with another stream's to be described by it."""


class _Body:
    """The last body of a stream."""

    __slots__ = ("body", "bounds", "cost", "ref", "start", "tail")

    def __init__(self, ref: dict[str, Json], made: Description) -> None:
        self.ref = ref
        self.body = made.body
        self.start = made.body[:START]
        self.bounds = made.bounds
        self.tail = made.tail
        self.cost = len(made.body) + 8 * len(made.bounds)


class ContentWriter:
    """Refers to bodies, and says which pieces must be written first.

    Thread-safe. Hold one lock from `refer` until what it returned is written, or a frame can stand in the
    spool before the piece or the body that it refers to. It holds the last body of each stream, the least
    recently used dropped beyond `held` bytes, and 16 bytes for each piece of the run.
    """

    def __init__(self, held: int = HELD) -> None:
        self._lock = Lock()
        self._limit = held
        self._held = 0
        self._bodies: OrderedDict[str, _Body] = OrderedDict()
        self._starts: dict[bytes, str] = {}
        self._known: set[bytes] = set()

    def refer(self, stream: str, ident: str, body: bytes) -> tuple[Json, dict[str, bytes]]:
        """A compact reference to `body`, and the new pieces (digest of 32 hex digits to bytes) to write before it.

        `stream` names the conversation whose previous body is compared (lane, key and slot); `ident` is unique
        for this body within the run. Asked again for the same stream, ident and body, it gives the same.
        """
        if len(body) < SMALL:
            return text_or_base64(body), {}
        with self._lock:
            held = self._bodies.get(stream)
            earlier = held or self._bodies.get(self._starts.get(body[:START], ""))
            if earlier is not None and earlier.ref["id"] == ident:
                if earlier.body == body:
                    return earlier.ref, {}
                earlier = None  # the same name again for another body, which cannot be described by itself
            ref: dict[str, Json] = {"$": "rope", "id": ident}
            if earlier is not None and earlier.body == body:
                # The same body again: later ones are described by the earlier one, which keeps chains short.
                self._hold(stream, held, earlier)
                ref["of"], ref["n"] = earlier.ref["id"], len(body)
                return ref, {}
            made = describe(body) if earlier is None else describe(body, earlier.body, earlier.bounds, earlier.tail)
            if earlier is not None:
                for part in made.parts:
                    if type(part) is list:
                        ref["of"] = earlier.ref["id"]
                        break
            ref["p"] = made.parts
            ref["n"] = len(body)
            self._hold(stream, held, _Body(ref, made))
            fresh: dict[str, bytes] = {}
            for digest, piece in made.apart:
                short = bytes.fromhex(digest)
                if short not in self._known:
                    self._known.add(short)
                    fresh[digest] = piece
            return ref, fresh

    def reset(self) -> None:
        """Forget every body and digest: what was handed out could not be written, so nothing may refer to it."""
        with self._lock:
            self._held = 0
            self._bodies.clear()
            self._starts.clear()
            self._known.clear()

    def _hold(self, stream: str, held: _Body | None, body: _Body) -> None:
        if held is not None:
            self._held -= held.cost
            if held.start != body.start:
                self._forget_start(stream, held)
        self._bodies[stream] = body
        self._bodies.move_to_end(stream)
        self._starts[body.start] = stream
        self._held += body.cost
        while self._held > self._limit and self._bodies:
            name, dropped = self._bodies.popitem(last=False)
            self._held -= dropped.cost
            self._forget_start(name, dropped)

    def _forget_start(self, stream: str, body: _Body) -> None:
        if self._starts.get(body.start) == stream:
            del self._starts[body.start]
