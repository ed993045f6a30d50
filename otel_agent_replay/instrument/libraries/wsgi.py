"""WSGI: each request that an application serves is a run; its body is read through a boundary."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from otel_agent_replay.boundary import runs
from otel_agent_replay.boundary.lanes import current
from otel_agent_replay.boundary.session import Call, cross, run, settle
from otel_agent_replay.instrument._patch import Function, Library, Target
from otel_agent_replay.instrument.serving import SERVING, Response, caller, locate
from otel_agent_replay.recording.values import Json, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Environ: TypeAlias = "dict[str, Any]"
Application: TypeAlias = "Callable[[Environ, Callable[..., Any]], Iterable[bytes]]"

READ = "http:request.read"
"""Key of the crossing by which a request's body comes in."""


class Input:
    """`wsgi.input`, each read of which is a crossing."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def read(self, size: int = -1, /) -> bytes:
        return self._cross("read", size)

    def readline(self, size: int = -1, /) -> bytes:
        return self._cross("readline", size)

    def readlines(self, hint: int = -1, /) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _cross(self, how: str, size: int) -> bytes:
        lane = current()
        take = getattr(self._wrapped, how, None)
        if lane is None:
            return bytes(take(size))  # type: ignore[misc]  # outside a run the input is the server's own
        crossing = lane.session.open(lane, Call(Kind.HTTP, READ, [how, size]))
        data: Any = settle(run(cross(crossing), lambda: take(size) if take is not None else b""))
        return bytes(data)


def serve(
    application: Application, environ: Environ, start_response: Callable[..., Any], place: dict[str, Json] | None = None
) -> Iterable[bytes]:
    """Call a WSGI application for one request, which is a run of its own and ends with its response's last byte.

    `place` is where the application is found again; it is looked for where not given.
    """
    if SERVING.get():
        return application(environ, start_response)
    entry: dict[str, Json] = {
        "kind": "wsgi",
        "application": locate(application) if place is None else place,
        "environ": {
            name: value
            for name, value in environ.items()
            if (isinstance(value, str) and (name.isupper() or name == "wsgi.url_scheme") and name in _REQUEST)
            or name.startswith("HTTP_")
        },
    }
    return _body(application, environ, start_response, entry)


_REQUEST = frozenset(
    (
        "REQUEST_METHOD", "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "CONTENT_LENGTH", "SERVER_NAME",
        "SERVER_PORT", "SERVER_PROTOCOL", "REMOTE_ADDR", "REMOTE_HOST", "REMOTE_PORT", "RAW_URI", "REQUEST_URI",
        "wsgi.url_scheme",
    )
)  # fmt: skip
"""What of the environ is the request; a server adds much that is its own."""


def _body(
    application: Application, environ: Environ, start_response: Callable[..., Any], entry: dict[str, Json]
) -> Iterator[bytes]:
    """The response, as lazily as the application gives it."""
    response = Response()

    def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        response.start(int(status.split(" ", 1)[0]), headers)
        return start_response(status, headers, *rest)

    name = f"{environ.get('REQUEST_METHOD', '')} {environ.get('PATH_INFO', '')}"
    with ExitStack() as leaving:
        token = SERVING.set(True)
        leaving.callback(SERVING.reset, token)
        begun = leaving.enter_context(runs.begun(name, entry, caller(environ.get("HTTP_TRACEPARENT"))))
        if begun is not None:
            environ["wsgi.input"] = Input(environ.get("wsgi.input"))
            leaving.callback(lambda: begun.declare(response.declared()))
        parts = application(environ, started)
        close = getattr(parts, "close", None)
        if close is not None:
            leaving.callback(close)
        for part in parts:
            response.body(part)
            yield part


def _framework(original: Function) -> Function:
    """`Flask.__call__`: the application object itself is called."""

    @functools.wraps(original)
    def served(self: Any, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if SERVING.get():
            result: Iterable[bytes] = original(self, environ, start_response)
            return result
        return serve(functools.partial(original, self), environ, start_response, locate(self))

    return served


def _server(original: Function) -> Function:
    """`wsgiref`'s `set_app`: any application."""

    @functools.wraps(original)
    def set_app(self: Any, application: Application) -> None:
        original(self, functools.partial(_outermost, application))

    return set_app


def _outermost(application: Application, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    return serve(application, environ, start_response, locate(application))


LIBRARIES = (
    Library("flask", (Target("flask.app", "Flask.__call__", _framework, ("environ", "start_response")),)),
    Library("wsgiref", (Target("wsgiref.simple_server", "WSGIServer.set_app", _server, ("application",)),)),
)
"""Gunicorn, Waitress and uWSGI are not patched: an application of Flask is seen there by itself, any other is
wrapped with `otel_agent_replay.wsgi`."""
