"""HTTP beneath a crossing: each attempt is recorded as it goes, or served from the recording.

A *marker* (`marker`) is put around a library's own choke point: it opens the crossing, and the library's
code runs beneath it in a recording and in a replay alike. Beneath it the HTTP client asks for a transport,
and gets one (`WireTransport`) that records what passes, or answers.

What happens to an attempt is decided once, by the generator `_attempt`; a synchronous and an asynchronous
driver perform its steps.
"""

from __future__ import annotations

import functools
import inspect
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import wrapt

from otel_agent_replay.boundary import lanes, session
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.instrument import _coding, _headers
from otel_agent_replay.instrument._body import HeldBody
from otel_agent_replay.instrument._failures import RAISED
from otel_agent_replay.instrument._stream import AsyncPlayed, AsyncTap, Played, SyncPlayed, SyncTap, Tap
from otel_agent_replay.recording.values import End, Raised, Returned, WireHead, WireRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable
    from types import ModuleType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Answer, Call, Crossing, Exchange, Turn
    from otel_agent_replay.instrument._patch import Function
    from otel_agent_replay.instrument.genai import Attributes, Reading
    from otel_agent_replay.recording.values import Outcome


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between httpx and httpx2: whose classes are used."""

    module: ModuleType
    sync_stream: Callable[[Played], Any]
    async_stream: Callable[[Played], Any]

    def decoder(self, response: Any) -> Any:
        """A decoder of this response's content coding: a new one, for the response keeps its own."""
        codings = [(name, value) for name, value in response.headers.raw if name.lower() == b"content-encoding"]
        return self.module.Response(200, headers=codings)._get_content_decoder()  # noqa: SLF001 (no public way)


@functools.cache
def family(name: str) -> Family:
    """The family of this module name, which the program has imported."""
    module = sys.modules[name]
    return Family(
        module,
        type("SyncPlayed", (SyncPlayed, module.SyncByteStream), {}),
        type("AsyncPlayed", (AsyncPlayed, module.AsyncByteStream), {}),
    )


def remembered(make: Callable[[str, Any], Attributes]) -> Callable[[str, Any], Attributes]:
    """Remember what `make` gives for a client's class and base URL, by the URL's identity: comparing costs more."""
    known: dict[tuple[str, int], tuple[Any, Attributes]] = {}

    @functools.wraps(make)
    def recall(client: str, url: Any) -> Attributes:
        found = known.get((client, id(url)))
        if found is None or found[0] is not url:
            if len(known) >= 64:
                known.clear()
            known[client, id(url)] = found = (url, make(client, url))
        return found[1]

    return recall


# -- markers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that is not made: it raises this."""

    error: Exception


Describe: TypeAlias = "Callable[..., Call | Refused | None]"
"""What a call with these arguments is; None where it is no crossing of its own."""

readings: dict[str, Reading] = {}
"""How to read the responses of a call for semantic attributes, by its key; each library adds its own."""


def marker(describe: Describe) -> Callable[[Function], Function]:
    """Makes the replacement of a choke point, synchronous or not: a wire crossing around each call.

    Outside a run, and beneath another crossing, calls pass straight through.
    """

    def wrap(original: Function) -> Function:
        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def marked_async(*args: Any, **kwargs: Any) -> Any:
                lane = lanes.current()
                if lane is None or lane.beneath is not None:
                    return await original(*args, **kwargs)
                script = _marked(lane, describe, args, kwargs)
                if script is None:
                    return await original(*args, **kwargs)
                return session.settle(await session.run_async(script, lambda: original(*args, **kwargs)))

            return marked_async

        @functools.wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            lane = lanes.current()
            if lane is None or lane.beneath is not None:
                return original(*args, **kwargs)
            script = _marked(lane, describe, args, kwargs)
            if script is None:
                return original(*args, **kwargs)
            return session.settle(session.run(script, lambda: original(*args, **kwargs)))

        return marked

    return wrap


def _marked(lane: Lane, describe: Describe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> session.Script | None:
    try:
        call = describe(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 (it is then recorded, and replayed, as the HTTP call that it makes)
        fault("describing a call", error, lane.session.note)
        return None
    if call is None:
        return None
    if isinstance(call, Refused):
        raise call.error
    return session.cross(lane.session.open(lane, call))


# -- transports ------------------------------------------------------------------------------------------


class _Do(Enum):
    """A step of an attempt that needs input or output."""

    READ = "read the request body"
    SEND = "send the request"


_Attempt: TypeAlias = "Generator[_Do | Turn, Outcome, Outcome]"

_sending: ContextVar[Crossing | None] = ContextVar("otel_agent_replay_sending", default=None)
"""Whose attempt a live transport makes: one that is built on another HTTP client makes none of its own. It may stand in
a context that several tasks share, each with a crossing of its own."""


def _beneath() -> Crossing | None:
    lane = lanes.current()
    crossing = None if lane is None else lane.beneath
    return None if crossing is None or _sending.get() is crossing else crossing


def transported(name: str) -> Callable[[Function], Function]:
    """Makes the replacement of `_transport_for_url` in the family `name`."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def transport_for_url(client: Any, url: Any) -> Any:
            transport = original(client, url)
            if _beneath() is None or type(transport) is WireTransport:
                return transport
            return WireTransport(transport, name)

        return transport_for_url

    return wrap


class WireTransport(wrapt.BaseObjectProxy[Any]):
    """A transport whose requests, made beneath a crossing, are attempts of it."""

    def __init__(self, transport: Any, name: str) -> None:
        super().__init__(transport)
        self._self_family = family(name)

    def handle_request(self, request: Any) -> Any:
        def perform(step: _Do) -> object:
            if step is _Do.READ:
                return list(cast("Iterable[bytes]", request.stream))
            return self.__wrapped__.handle_request(request)

        script = _attempt(self._self_family, request, SyncTap, self._self_family.sync_stream)
        return session.settle(_drive(script, perform))

    async def handle_async_request(self, request: Any) -> Any:
        async def perform(step: _Do) -> object:
            if step is _Do.READ:
                return [chunk async for chunk in cast("AsyncIterable[bytes]", request.stream)]
            return await self.__wrapped__.handle_async_request(request)

        script = _attempt(self._self_family, request, AsyncTap, self._self_family.async_stream)
        return session.settle(await _drive_async(script, perform))


def _drive(script: _Attempt, perform: Callable[[_Do], object]) -> Outcome:
    try:
        step = next(script)
        while True:
            doing = functools.partial(perform, step) if isinstance(step, _Do) else step.wait
            step = script.send(session.attempt(doing))
    except StopIteration as finished:
        return cast("Outcome", finished.value)


async def _drive_async(script: _Attempt, perform: Callable[[_Do], Awaitable[object]]) -> Outcome:
    try:
        step = next(script)
        while True:
            doing = functools.partial(perform, step) if isinstance(step, _Do) else step.wait_async
            step = script.send(await session.attempt_async(doing))
    except StopIteration as finished:
        return cast("Outcome", finished.value)


def _attempt(family: Family, request: Any, tap: Callable[[Any, Tap], Any], played: Callable[[Played], Any]) -> _Attempt:
    """One attempt, decided once for both colours."""
    crossing = _beneath()
    if crossing is None:
        return (yield _Do.SEND)
    held: HeldBody | None = None
    try:
        body = request.content
    except family.module.RequestNotRead:
        read = yield _Do.READ
        if not isinstance(read, Returned):
            return read
        request.stream = held = HeldBody(request.stream, cast("list[bytes]", read.value))
        body = held.body
    asked = WireRequest(request.method, str(request.url), _headers.texts(request.headers.raw), body)
    exchange = crossing.attempt(asked)
    if exchange.answer is not None:
        return (yield from _served(family, crossing, exchange, exchange.answer, request, held, played))
    inside = _sending.set(crossing)
    outcome = yield _Do.SEND
    _sending.reset(inside)
    if isinstance(outcome, Returned):
        _record(family, crossing, exchange, outcome.value, tap)
    else:
        _failed(exchange, outcome, held)
    return outcome


def _served(
    family: Family,
    crossing: Crossing,
    exchange: Exchange,
    answer: Answer,
    request: Any,
    held: HeldBody | None,
    played: Callable[[Played], Any],
) -> _Attempt:
    """Give the recorded response, or raise the recorded error."""
    if answer.parked is not None:
        waited = yield answer.parked
        if isinstance(waited, Raised):
            if held is not None and answer.error is not None and not isinstance(answer.error, _unconnected(family)):
                held.sent()
            _failed(exchange, waited, held)
            return waited
    if answer.head is None:
        outcome = Raised(crossing.past_end() if answer.error is None else answer.error)
        if held is not None and not isinstance(outcome.error, _unconnected(family)):
            held.sent()
        _failed(exchange, outcome, held)
        return outcome
    if held is not None:
        held.sent()
    whole = answer.error is None and not answer.left
    head, chunks = _coding.redo(answer.head, answer.chunks, whole=whole)
    extensions = {"http_version": head.http_version.encode("latin-1")}
    if head.reason:
        extensions["reason_phrase"] = head.reason.encode("latin-1")
    response = family.module.Response(
        head.status,
        headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in head.headers],
        stream=played(Played(crossing, exchange, answer, chunks)),
        extensions=extensions,
        request=request,
    )
    return Returned(response)


def _unconnected(family: Family) -> tuple[type[Exception], ...]:
    """Errors that come before anything is sent."""
    module = family.module
    return (module.ConnectError, module.ConnectTimeout, module.PoolTimeout, module.UnsupportedProtocol)


def _failed(exchange: Exchange, outcome: Outcome, held: HeldBody | None) -> None:
    """No response came."""
    error = outcome.error if isinstance(outcome, Raised) else None
    if isinstance(error, RAISED):
        exchange.end(End.RAISED, error)
    else:
        exchange.end(End.ABANDONED)
    if held is not None:
        held.give_back()


def _record(
    family: Family, crossing: Crossing, exchange: Exchange, response: Any, tap: Callable[[Any, Tap], Any]
) -> None:
    """Write the head, and tap the body."""
    try:
        head = WireHead(
            response.status_code,
            response.extensions.get("reason_phrase", b"").decode("latin-1"),
            _headers.texts(response.headers.raw),
            response.extensions.get("http_version", b"HTTP/1.1").decode("latin-1"),
        )
        exchange.head(head)
        reading = readings.get(crossing.lane.name)
        if response.is_stream_consumed:
            # A transport that made the response from content: its stream is not read again.
            tapped = Tap(crossing, exchange, head, None, reading)
            tapped.took(response.content)
            tapped.ended()
            return
        undo = _coding.Undo(family.decoder(response)) if _coding.codings(head.headers) else None
        response.stream = tap(response.stream, Tap(crossing, exchange, head, undo, reading))
    except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
        exchange.end(End.ABANDONED)
        fault("recording a response", error, crossing.lane.session.note)
