"""`agent-replay serve`: spans in, the embedded store inside, SQL out."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from otel_agent_replay import settings
from otel_agent_replay.boundary import real
from otel_agent_replay.errors import UsageError
from otel_agent_replay.store.clickhouse import embedded_path, is_embedded

if TYPE_CHECKING:
    from otel_agent_replay.server.app import Serve

_PORT = click.IntRange(0, 65535)


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; another than loopback needs a token."
)
@click.option("--grpc-port", type=_PORT, default=4317, show_default=True, help="OTLP over gRPC. 0: a free one.")
@click.option(
    "--http-port", type=_PORT, default=4318, show_default=True, help="OTLP over HTTP, and /health. 0: a free one."
)
@click.option(
    "--sql-port", type=_PORT, default=8123, show_default=True, help="ClickHouse's HTTP interface. 0: a free one."
)
@click.option(
    "--token",
    envvar=settings.OTEL_AGENT_REPLAY_SERVE_TOKEN,
    default="",
    help="Allows writing by SQL, and everything where the address is not loopback. Better in the environment.",
    show_envvar=True,
)
@click.option(
    "--read-token",
    envvar=settings.OTEL_AGENT_REPLAY_SERVE_READ_TOKEN,
    default="",
    help="Allows reading by SQL where the address is not loopback. Better in the environment.",
    show_envvar=True,
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory of local state, instead of OTEL_AGENT_REPLAY_HOME.",
)
@click.option("--dsn", default=None, help="The embedded store, as chdb://PATH, instead of OTEL_AGENT_REPLAY_DSN.")
@click.option("--json", "as_json", is_flag=True, help="Print where it listens as one line of JSON.")
def command(
    host: str,
    grpc_port: int,
    http_port: int,
    sql_port: int,
    token: str,
    read_token: str,
    home: Path | None,
    dsn: str | None,
    as_json: bool,  # noqa: FBT001 (click gives it by name)
) -> None:
    """Take spans by OTLP, keep them in the embedded store, and answer SQL, until it is stopped.

    Commands of this home use it while it runs. On loopback, spans and reading need no token; writing by SQL needs
    the one in the file that is printed.
    """
    store = _store(home, dsn)
    for name, value in (("--token", token), ("--read-token", read_token)):
        if value and (not value.isascii() or not value.isprintable() or " " in value):
            raise UsageError(f"{name} may hold printable ASCII without spaces only.")
    from otel_agent_replay.server.app import Plan, Serve  # noqa: PLC0415 (gRPC and the engine: only here)

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    serve = Serve(Plan(store, host, grpc_port, http_port, sql_port, token, read_token))
    try:
        _say(serve, store, as_json=as_json)
        stopping.wait()
    finally:
        serve.stop()


def _store(home: Path | None, dsn: str | None) -> Path:
    chosen = settings.read()
    if home is not None:
        chosen = dataclasses.replace(
            chosen, home=home.expanduser().absolute(), dsn=f"chdb://{home.absolute() / 'store'}"
        )
    where = dsn or chosen.dsn
    if not is_embedded(where):
        raise UsageError(
            "Only the embedded store is served; give --dsn chdb:///PATH, or use the server that the DSN names."
        )
    return embedded_path(where)


def _say(serve: Serve, store: Path, *, as_json: bool) -> None:
    if as_json:
        said = {
            "pid": real.getpid(),
            "otlp_grpc": serve.grpc_url,
            "otlp_http": serve.http_url,
            "sql": serve.sql_url,
            "store": str(store),
            "token_file": str(serve.token_file),
        }
        click.echo(json.dumps(said))
    else:
        click.echo(
            f"Serving {store}\n"
            f"  OTLP over gRPC  {serve.grpc_url}\n"
            f"  OTLP over HTTP  {serve.http_url}/v1/traces\n"
            f"  ClickHouse      {serve.sql_url} (reads without a token; the writer's is in {serve.token_file})\n"
            "Send spans here with\n"
            f"  export OTEL_EXPORTER_OTLP_ENDPOINT={serve.grpc_url} OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none"
        )
    sys.stdout.flush()
