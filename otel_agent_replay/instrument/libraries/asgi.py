"""ASGI: each HTTP request that an application serves is a run; its body is taken in message by message."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from otel_agent_replay.boundary import runs
from otel_agent_replay.boundary.lanes import current
from otel_agent_replay.boundary.session import Call, cross, run_async, settle
from otel_agent_replay.instrument._patch import Function, Library, Target
from otel_agent_replay.instrument.serving import SERVING, Response, caller, locate
from otel_agent_replay.recording import codec
from otel_agent_replay.recording.values import Json, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
Application: TypeAlias = "Callable[[Any, Receive, Send], Awaitable[None]]"

RECEIVE = "http:request.receive"
"""Key of the crossing by which a request's body, or its end, comes in."""

_KEPT = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "client",
    "server",
)
"""What the ASGI specification (3.0) puts into an HTTP scope, headers apart."""


async def serve(
    application: Application, scope: Any, receive: Receive, send: Send, place: dict[str, Json] | None = None
) -> None:
    """Call an ASGI 3 application for one scope; an HTTP request is a run of its own.

    `place` is where the application is found again; it is looked for where not given.
    """
    if scope["type"] != "http" or SERVING.get():
        await application(scope, receive, send)
        return
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    entry: dict[str, Json] = {
        "kind": "asgi",
        "application": locate(application) if place is None else place,
        "scope": {
            **{name: codec.encode(scope[name], strict=False) for name in _KEPT if name in scope},
            "headers": [[name, value] for name, value in headers],
        },
    }
    parent = caller(next((value for name, value in headers if name == "traceparent"), None))
    token = SERVING.set(True)
    try:
        with runs.begun(f"{scope['method']} {scope['path']}", entry, parent) as run:
            if run is None:
                await application(scope, receive, send)
                return
            response = Response()
            try:
                await application(scope, received(receive), sent(send, response))
            finally:
                run.declare(response.declared())
    finally:
        SERVING.reset(token)


def received(receive: Receive) -> Receive:
    async def crossed() -> Message:
        lane = current()
        if lane is None:
            return await receive()
        crossing = lane.session.open(lane, Call(Kind.HTTP, RECEIVE))
        message: Any = settle(await run_async(cross(crossing), receive))
        return dict(message)

    return crossed


def sent(send: Send, response: Response) -> Send:
    async def kept(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in message.get("headers", ())
            ]
            response.start(message["status"], headers)
        elif message["type"] == "http.response.body":
            response.body(bytes(message.get("body", b"")))
        await send(message)

    return kept


def _framework(original: Function) -> Function:
    """`Starlette.__call__` and its like: the application object itself is called."""

    @functools.wraps(original)
    async def served(self: Any, scope: Any, receive: Receive, send: Send) -> None:
        if SERVING.get() or scope["type"] != "http":
            await original(self, scope, receive, send)
            return
        await serve(functools.partial(original, self), scope, receive, send, locate(self))

    return served


def _server(original: Function) -> Function:
    """`uvicorn.Config.load`: any application, whatever it is made with, also behind its own middleware."""

    @functools.wraps(original)
    def loaded(self: Any) -> None:
        original(self)
        if self.interface != "asgi3" and not str(self.interface).startswith("asgi"):
            return
        application, named = self.loaded_app, self.app
        place: dict[str, Json] | None = None
        if isinstance(named, str) and not self.factory:
            module, _, attribute = named.partition(":")
            place = {"module": module, "attribute": attribute}
        elif isinstance(named, str):
            module, _, attribute = named.partition(":")
            place = {"module": module, "attribute": attribute, "factory": True}

        async def outermost(scope: Any, receive: Receive, send: Send) -> None:
            found = place if place is not None else locate(named)
            await serve(application, scope, receive, send, found)

        self.loaded_app = outermost

    return loaded


LIBRARIES = (
    Library("uvicorn", (Target("uvicorn.config", "Config.load", _server),)),
    Library(
        "starlette", (Target("starlette.applications", "Starlette.__call__", _framework, ("scope", "receive", "send")),)
    ),
)
"""Hypercorn, Daphne and Granian are not patched: an application of Starlette or FastAPI is seen there by itself,
any other is wrapped with `otel_agent_replay.asgi`."""
