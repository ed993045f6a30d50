"""OTLP receivers with the limits that receivers have by default, which answer as they are told.

    python receiver.py (grpc|http) PORT FILE [--fault NAME]

runs one as a process that can be killed: a request is in FILE before it is acknowledged.
"""

from __future__ import annotations

import gzip
import os
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

if TYPE_CHECKING:
    import ssl

Request = trace_service_pb2.ExportTraceServiceRequest
METHOD = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass
class Said:
    """What a receiver says in place of yes."""

    status: int = 200
    """HTTP; for gRPC the fitting code."""
    message: str = ""
    rejected: int = 0
    retry_after: str = ""
    silent: float = 0.0
    """Seconds without a word."""
    cut: bool = False
    """The connection is closed."""
    code: str = ""
    """gRPC."""
    keeps: bool = False
    """It has stored what it does not acknowledge."""
    but_last: bool = False
    """What is rejected is the last span, whatever it is."""


Judge = Callable[[Request, int], Said | None]


@dataclass
class Inbox:
    """What has arrived, and what is said to it."""

    judge: Judge = lambda _request, _number: None
    file: str = ""
    requests: list[Request] = field(default_factory=list)
    """Those that were accepted, whole."""
    metadata: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes of each request that came, accepted or not."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, data: bytes, metadata: dict[str, str]) -> Said:
        request = Request.FromString(data)
        with self.lock:
            number = len(self.sizes)
            self.sizes.append(len(data))
            self.metadata.append(metadata)
        said = self.judge(request, number) or Said()
        if said.silent:
            time.sleep(said.silent)
        if said.keeps or (said.status == 200 and not said.code and not said.cut and not said.silent):
            with self.lock:
                if said.rejected:
                    every = spans_of(request)
                    keep = every[:-1] if said.but_last else [s for s in every if not rejected(s)]
                    for each in request.resource_spans:
                        for scope in each.scope_spans:
                            kept = [span for span in scope.spans if span in keep]
                            del scope.spans[:]
                            scope.spans.extend(kept)
                self.requests.append(request)
                if self.file:
                    with open(self.file, "ab") as file:
                        body = request.SerializeToString()
                        file.write(struct.pack("<I", len(body)) + body)
        return said

    @property
    def spans(self) -> list:
        return [span for request in self.requests for span in spans_of(request)]

    @property
    def ids(self) -> set:
        """Frame kind and ids of all spans."""
        return {identity(span) for span in self.spans}


def spans_of(request: Request) -> list:
    return [s for each in request.resource_spans for scope in each.scope_spans for s in scope.spans]


def attributes(span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def rejected(span) -> bool:
    """Spans that a picky receiver rejects."""
    return "picky" in str(attributes(span).get("agent_replay.key", ""))


def identity(span) -> tuple[str, str, str]:
    return (str(attributes(span).get("agent_replay.frame")), span.trace_id.hex(), span.span_id.hex())


def read_file(path: str) -> list:
    """Spans in the file of a receiver that was a process; a torn end was not acknowledged."""
    found = []
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        if at + 4 + size > len(data):
            break
        found += spans_of(Request.FromString(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


class GrpcServer:
    """With grpcio's default limits: 4 MiB a message."""

    def __init__(self, inbox: Inbox, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> None:
        self.inbox = inbox
        self._server = grpc.server(ThreadPoolExecutor(8))
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD, {"Export": handler}),))
        address = f"127.0.0.1:{port}"
        if credentials is not None:
            self.port = self._server.add_secure_port(address, credentials)
        else:
            self.port = self._server.add_insecure_port(address)
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _export(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        said = self.inbox.take(data, dict(context.invocation_metadata()))
        if said.cut:
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        code = said.code or {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 500: "INTERNAL"}.get(said.status, "")
        if said.status in (429, 503) and not code:
            code = "RESOURCE_EXHAUSTED" if said.status == 429 else "UNAVAILABLE"
        if said.status == 413:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 8)")
        if code:
            if said.retry_after:
                status = status_pb2.Status(code=8, message=said.message)
                delay = duration_pb2.Duration(nanos=int(float(said.retry_after) * 1e9) % 10**9)
                delay.seconds = int(float(said.retry_after))
                status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(getattr(grpc.StatusCode, code), said.message or "no")
        return _response(said)

    def close(self) -> None:
        self._server.stop(0).wait(5)


class HttpServer:
    """With the 20 MiB that the Collector takes by default."""

    MOST = 20 << 20

    def __init__(self, inbox: Inbox, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.inbox = inbox
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                outer.post(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.scheme = "https" if tls is not None else "http"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["Content-Length"])
        if length > self.MOST:
            handler.send_error(413)
            handler.close_connection = True
            return
        data = handler.rfile.read(length)
        unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(handler.headers.get("Content-Encoding"))
        if unpack is not None:
            data = unpack(data)
        if handler.path != "/v1/traces" or len(data) > self.MOST:
            self._answer(handler, 404 if handler.path != "/v1/traces" else 413, b"")
            return
        said = self.inbox.take(data, {name.lower(): value for name, value in handler.headers.items()})
        if said.cut:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        body = _response(said) if said.status == 200 else status_pb2.Status(message=said.message).SerializeToString()
        extra = {"Retry-After": said.retry_after} if said.retry_after else {}
        self._answer(handler, said.status, body, extra)

    def _answer(self, handler, status: int, body: bytes, extra: dict[str, str] | None = None) -> None:
        try:
            handler.send_response(status)
            for name, value in {"Content-Type": "application/x-protobuf", **(extra or {})}.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            pass  # the client has given up

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _response(said: Said) -> bytes:
    response = trace_service_pb2.ExportTraceServiceResponse()
    if said.rejected:
        response.partial_success.rejected_spans = said.rejected
        response.partial_success.error_message = said.message
    return response.SerializeToString()


SMALL = 60_000
"""Bytes of a request that a flaky receiver takes at most."""

FLAKY = (
    Said(500),
    Said(503),
    Said(429, retry_after="0.1"),
    Said(cut=True),
    Said(503, keeps=True),
    Said(rejected=1, message="not that one, not now", but_last=True),
    Said(silent=3.0),
)
"""What a flaky receiver says to every third request, in turn."""


def main(kind: str, port: str, file: str, fault: str = "") -> None:
    def judge(request: Request, number: int) -> Said | None:
        if fault != "flaky":
            return None
        if request.ByteSize() > SMALL:
            return Said(413)
        said = FLAKY[number // 3 % len(FLAKY)] if number % 3 == 1 else None
        return said if said is None or not said.rejected or len(spans_of(request)) > 1 else None

    inbox = Inbox(judge, file)
    server = (GrpcServer if kind == "grpc" else HttpServer)(inbox, int(port))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    while os.getppid() != 1:
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
