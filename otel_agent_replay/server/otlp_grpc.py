"""OTLP over gRPC. Messages are taken as bytes: our own decoder is the only one that reads what strangers send."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

import grpc

from otel_agent_replay.errors import StoreError
from otel_agent_replay.recording.wire import MalformedError
from otel_agent_replay.server import limits, otlp
from otel_agent_replay.server.commit import OverloadedError, UnavailableError

if TYPE_CHECKING:
    from otel_agent_replay.server.commit import Committer
    from otel_agent_replay.server.http import Access

THREADS = 8
"""Requests that are decoded, or wait to be stored, at once."""

_COLLECTOR = "opentelemetry.proto.collector"
_TRACES = f"/{_COLLECTOR}.trace.v1.TraceService/Export"
_OTHERS = (f"/{_COLLECTOR}.metrics.v1.MetricsService/Export", f"/{_COLLECTOR}.logs.v1.LogsService/Export")


class OtlpGrpc:
    """The port for spans over gRPC."""

    def __init__(self, host: str, port: int, access: Access, committer: Committer) -> None:
        """Listen. Raises StoreError where the address cannot be had."""
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, thread_name_prefix="otlp-grpc"),
            handlers=[_Services(access, committer)],
            maximum_concurrent_rpcs=limits.GRPC_CALLS,
            options=[
                ("grpc.max_receive_message_length", limits.GRPC_BYTES),
                ("grpc.max_metadata_size", 16384),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        where = f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._server.add_insecure_port(where)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise StoreError(f"Nothing can listen on {where}; name another port with --grpc-port, or 0 for a free one.")

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self) -> None:
        """Finish what has begun, and take nothing new."""
        self._server.stop(limits.STOP_SECONDS).wait(limits.STOP_SECONDS + 1)


class _Services(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Finds the service that a call is for."""

    def __init__(self, access: Access, committer: Committer) -> None:
        self._access = access
        self._committer = committer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        if method == _TRACES:
            return grpc.unary_unary_rpc_method_handler(self._export)
        if method in _OTHERS:
            return grpc.unary_unary_rpc_method_handler(_traces_only)
        return None

    def _export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not self._access.may_send(_token(context)):
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "A token is needed here; send it as `authorization: Bearer TOKEN`."
            )
        try:
            batch = otlp.export(self._committer, request)
        except MalformedError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"This is no export of spans: {error}.")
        except OverloadedError as error:
            _retry(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"The server is busy ({error}); come again.")
        except UnavailableError as error:
            _retry(context, grpc.StatusCode.UNAVAILABLE, f"The spans could not be stored ({error}); send them again.")
        return otlp.response(batch)


def _traces_only(_: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, otlp.TRACES_ONLY)
    raise AssertionError  # abort raises


def _retry(context: grpc.ServicerContext, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """Tell the client to come again, in both ways that clients look for it."""
    context.set_trailing_metadata(
        (
            ("grpc-status-details-bin", otlp.status(code.value[0], sentence, retry=True)),
            ("google.rpc.retryinfo-bin", otlp.retry_info()),
        )
    )
    context.abort(code, sentence)
    raise AssertionError  # abort raises


def _token(context: grpc.ServicerContext) -> str:
    for name, value in context.invocation_metadata():
        if name == "authorization" and isinstance(value, str):
            return value[7:].strip() if value.lower().startswith("bearer ") else "?"
    return ""
