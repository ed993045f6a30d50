"""Starts and stops the server: the lock, the engine, the schema, the ports, in this order and back.

A port answers only when what it needs is there, and the engine closes only when nothing is being answered. What was
acknowledged is in the engine's files, so that nothing of it is lost however the process ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import StoreError, UsageError
from otel_agent_replay.server import limits
from otel_agent_replay.server.commit import Committer
from otel_agent_replay.server.engine import Embedded
from otel_agent_replay.server.http import Access, Server, is_loopback
from otel_agent_replay.server.otlp_grpc import OtlpGrpc
from otel_agent_replay.server.otlp_http import OtlpServer
from otel_agent_replay.server.sql_http import SqlServer
from otel_agent_replay.server.sql_run import Runner
from otel_agent_replay.store import schema
from otel_agent_replay.store.clickhouse import DATABASE, Engine
from otel_agent_replay.store.lock import EngineLock, Serving, private_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

S = TypeVar("S", bound=Server)

TOKEN_FILE = "serve.token"  # noqa: S105 (a name)
"""Beside the store, for this user only: the token that allows writing, so that commands find it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be served, and where."""

    store: Path
    """Directory of the embedded store."""
    host: str = "127.0.0.1"
    grpc_port: int = 4317
    http_port: int = 4318
    sql_port: int = 8123
    """0 is a free one, for each."""
    token: str = ""
    """Allows writing; on loopback one is made where none is given."""
    read_token: str = ""
    """Allows reading by SQL, where that needs a token."""


class Serve:
    """A running server.

    Attributes:
        grpc_url, http_url, sql_url: where it listens.
        token_file: where the token that allows writing is kept.
    """

    def __init__(self, plan: Plan) -> None:
        """Start. Raises UsageError, StoreError; then nothing is left running."""
        if not is_loopback(plan.host) and not plan.token:
            raise UsageError(
                f"{plan.host} can be reached from other machines; give a token with OTEL_AGENT_REPLAY_SERVE_TOKEN "
                "or --token, or serve on 127.0.0.1."
            )
        self._stack = ExitStack()
        try:
            self._start(plan)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Finish what has begun, store what waits, close the engine. Twice is harmless."""
        self._stack.close()

    def _start(self, plan: Plan) -> None:
        lock = EngineLock(plan.store.with_name(plan.store.name + ".lock"))
        lock.acquire()
        self._stack.callback(lock.release)
        token, file = _token(plan)
        self.token_file = file
        access = Access(plan.host, token, plan.read_token)
        engine = Embedded(plan.store)
        self._stack.callback(engine.close)
        runner = Runner(engine)
        sql = self._listen(
            lambda: SqlServer(plan.host, plan.sql_port, access, runner), "--sql-port", _url(plan.host, plan.sql_port)
        )
        self.sql_url = _url(plan.host, sql.port)
        serving = Serving(_url(_reachable(plan.host), sql.port), str(file))
        with Engine(f"chdb://{quote(str(plan.store))}", serving=serving) as client:
            schema.require(client)
        committer = Committer(engine, DATABASE)
        self._stack.callback(committer.close)
        self.committer = committer
        http = self._listen(
            lambda: OtlpServer(plan.host, plan.http_port, access, committer),
            "--http-port",
            _url(plan.host, plan.http_port),
        )
        self.http_url = _url(plan.host, http.port)
        grpc = OtlpGrpc(plan.host, plan.grpc_port, access, committer)
        grpc.start()
        self._stack.callback(grpc.stop)
        self.grpc_url = _url(plan.host, grpc.port)
        lock.announce(serving)

    def _listen(self, server: Callable[[], S], flag: str, where: str) -> S:
        """Open a port and begin to answer. Raises StoreError."""
        try:
            opened = server()
        except OSError as error:
            raise StoreError(
                f"Nothing can listen on {where} ({error.strerror or error}); name another port with {flag}, or 0 for "
                "a free one."
            ) from error
        thread = Thread(target=opened.serve_forever, args=(0.1,), name=flag, daemon=True)
        thread.start()

        def stop() -> None:
            opened.shutdown()
            opened.server_close()
            opened.settle(limits.STOP_SECONDS)

        self._stack.callback(stop)
        return opened


def _token(plan: Plan) -> tuple[str, Path]:
    """The writer's token, and the file that it is kept in."""
    file = plan.store.with_name(TOKEN_FILE)
    try:
        private_directory(file.parent)
        kept = file.read_text(encoding="ascii").strip() if file.exists() else ""
        token = plan.token or kept or real.urandom(24).hex()
        if token != kept:
            fresh = file.with_name(f"{file.name}.{real.getpid()}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write(token + "\n")
            fresh.replace(file)
    except (OSError, ValueError) as error:
        raise StoreError(f"The token file {file} cannot be used ({error}); see whose it is.") from error
    return token, file


def _reachable(host: str) -> str:
    """An address at which this machine reaches itself."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host)  # noqa: S104 (compared, not listened on)


def _url(host: str, port: int) -> str:
    bare = host.strip("[]")
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"
