"""ClickHouse, embedded or as a server, through clickhouse-connect.

`chdb://PATH` opens the embedded engine in this process; `clickhouse://HOST:PORT/DATABASE` speaks HTTP to a server.
The embedded engine allows one process for each path and hangs in a forked child, so a lock file is held while it
is open, and a child that inherits it is refused. Where that process is `agent-replay serve`, the lock file says so,
and its HTTP interface is used instead: to whoever asks, the embedded store is the same either way.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from otel_agent_replay.boundary import real
from otel_agent_replay.errors import StoreError, StoreMissing, UsageError
from otel_agent_replay.store.lock import PATIENCE, EngineLock, Serving, private_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

DATABASE = "otel"
"""Database of the embedded store, and of a server whose DSN names none."""

_FEW = {"max_threads": 1, "use_skip_indexes_on_data_read": 0, "use_skip_indexes_if_final_exact_mode": 0}
"""Settings of the embedded engine for a look-up. Half of the time went into handing work to threads; and what the
filter of a part leaves out may stay out where duplicates are removed, since they are of the same run."""

_UNKNOWN = frozenset({"UNKNOWN_TABLE", "UNKNOWN_DATABASE"})
_SERVER_SCHEMES = ("clickhouse", "clickhouses", "http", "https")


class NoSuchTableError(StoreError):
    """The store has no such table: its schema has not been applied."""


class Engine:
    """An open connection. Use it as a context manager, from one thread, in the process that opened it.

    Attributes:
        embedded: whether the store is the embedded one, opened by this process or by a server beside it.
        where: how messages name the store; holds no password.
    """

    def __init__(self, dsn: str, *, patience: float = PATIENCE, serving: Serving | None = None) -> None:
        """Open the store. Raises UsageError, StoreMissing or StoreError.

        Args:
            dsn: as in the module's description.
            patience: seconds to wait for another process that has the embedded engine open.
            serving: a server that is known to have it open.
        """
        parts = urlsplit(dsn)
        self.embedded = is_embedded(dsn)
        self._pid = real.getpid()
        self._remote = not self.embedded
        self._lock: EngineLock | None = None
        self._empty: set[str] = set()
        if self.embedded:
            self.path = embedded_path(dsn)
            self.where = str(self.path)
            self.database = DATABASE
            if serving is None:
                self._client = self._open_embedded(patience)
            else:
                self._remote = True
                self._client = self._connect(served_dsn(serving, self.database))
        elif parts.scheme in _SERVER_SCHEMES:
            self.database = unquote(parts.path.strip("/").split("/")[0]) or DATABASE
            self.where = f"{parts.hostname or 'localhost'}:{parts.port or 8123}/{self.database}"
            self._client = self._connect(dsn)
        else:
            raise UsageError(
                f"The store {parts.scheme + '://' if parts.scheme else dsn} is of no known kind; "
                "set OTEL_AGENT_REPLAY_DSN to chdb://PATH or clickhouse://HOST:PORT/DATABASE."
            )

    def command(self, sql: str, parameters: Mapping[str, object] | None = None) -> None:
        """Run a statement that gives no rows."""
        with self._words():
            self._client.command(sql, parameters=dict(parameters or {}))

    def rows(
        self, sql: str, parameters: Mapping[str, object] | None = None, *, raw: bool = False, few: bool = False
    ) -> Iterator[Sequence[Any]]:
        """Rows of a query, block by block.

        Args:
            sql: with ``{name:Type}`` where a parameter goes.
            parameters: their values.
            raw: give every String as bytes, and every DateTime64 as the number it is (nanoseconds in our tables).
            few: few rows are looked up by their key, so that one thread finds them sooner than several would.
        """
        asked = {
            "parameters": dict(parameters or {}),
            "query_formats": {"String": "bytes", "DateTime64": "int"} if raw else None,
            "settings": _FEW if few and not self._remote else None,
        }
        with self._words():
            stream = self._client.query_row_block_stream(sql, **asked)
            with stream:
                for block in stream:
                    yield from block

    def is_empty(self, table: str) -> bool:
        """Whether a table has no row. It is asked once where nobody but this process can insert any."""
        if table not in self._empty:
            if any(True for _ in self.rows(f"SELECT 1 FROM {table} LIMIT 1", few=True)):
                return False
            if not self._remote:
                self._empty.add(table)
        return True

    def insert(self, table: str, columns: Sequence[str], body: bytes) -> None:
        """Insert rows in RowBinary."""
        self._empty.discard(table)
        with self._words():
            self._client.raw_insert(table, column_names=list(columns), insert_block=body, fmt="RowBinary")

    def use_database(self, *, create: bool) -> None:
        """Make `database` current, for every later statement."""
        if create:
            if self._remote:
                self._client.database = None  # a server refuses every statement in a database that is not there yet
            self.command(f"CREATE DATABASE IF NOT EXISTS `{self.database.replace('`', '')}`")
        self._client.database = self.database

    def close(self) -> None:
        """Close the connection and let the next process have the engine. Twice is harmless."""
        client, self._client = self._client, None
        try:
            if client is not None and real.getpid() == self._pid:
                client.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def loading(self, patience: float = PATIENCE) -> Iterator[None]:
        """Load the spool into an embedded store as the only process that does so. Raises StoreError."""
        if not self._remote:
            yield  # the engine's own lock is held
            return
        lock = EngineLock(self.path.with_name(self.path.name + ".loading.lock"))
        lock.acquire(patience)
        try:
            yield
        finally:
            lock.release()

    def _open_embedded(self, patience: float) -> Any:
        lock = EngineLock(self.path.with_name(self.path.name + ".lock"))
        deadline = real.monotonic() + patience
        while (serving := lock.acquire_or_find(max(deadline - real.monotonic(), 0))) is not None:
            self._remote = True
            try:
                return self._connect(served_dsn(serving, self.database))
            except StoreError:
                if real.monotonic() >= deadline:
                    raise
                real.sleep(0.05)  # it ended just now, and whoever holds the lock has not said so yet
        self._remote = False
        self._lock = lock
        return self._open_here()

    def _open_here(self) -> Any:
        assert self._lock is not None
        try:
            if not engine_installed():
                raise StoreMissing
            from clickhouse_connect import get_client  # noqa: PLC0415 (a third of a second, only where needed)

            private_directory(self.path)
            client = get_client(interface="chdb", path=str(self.path))
        except StoreMissing:
            self._lock.release()
            raise
        except Exception as error:
            self._lock.release()
            raise StoreError(
                f"The embedded store {self.path} cannot be opened ({_first_line(error)}); "
                "see that its directory can be written and that nothing else has it open."
            ) from error
        return client

    def _connect(self, dsn: str) -> Any:
        from clickhouse_connect import get_client  # noqa: PLC0415 (a third of a second, only where needed)

        parts = urlsplit(dsn)
        secure = parts.scheme in ("clickhouses", "https")
        bare = parts._replace(path="", scheme="clickhouse").geturl()
        try:
            return get_client(
                dsn=bare,
                interface="https" if secure else None,
                autogenerate_session_id=False,
                connect_timeout=10,
                send_receive_timeout=300,
            )
        except Exception as error:
            raise StoreError(
                f"The store at {self.where} does not answer ({_first_line(error)}); "
                "see that OTEL_AGENT_REPLAY_DSN names a running server."
            ) from error

    @contextmanager
    def _words(self) -> Iterator[None]:
        """Turn whatever the driver raises into one sentence of ours."""
        if self._client is None or real.getpid() != self._pid:
            raise StoreError(
                "The store was opened by another process or has been closed; open it again where it is used."
            )
        from clickhouse_connect.driver.exceptions import Error  # noqa: PLC0415 (loaded with the client)

        try:
            yield
        except Error as error:
            if error.name in _UNKNOWN:
                raise NoSuchTableError(
                    f"The store {self.where} has no schema of ours; run `agent-replay schema apply`."
                ) from error
            raise StoreError(f"The store {self.where} refused a statement: {_first_line(error)}.") from error
        except OSError as error:
            raise StoreError(f"The store {self.where} cannot be used: {error}.") from error


def is_embedded(dsn: str) -> bool:
    """Whether a DSN names the embedded engine."""
    return dsn.startswith("chdb:")


def embedded_path(dsn: str) -> Path:
    """Directory of the embedded store that a DSN names. Raises UsageError where it names none."""
    parts = urlsplit(dsn)
    path = unquote(parts.netloc + parts.path)
    if not path or path in ("memory", ":memory:"):
        raise UsageError("The embedded store needs a directory; set OTEL_AGENT_REPLAY_DSN to chdb:///PATH.")
    return Path(path).expanduser().absolute()


def served_dsn(serving: Serving, database: str) -> str:
    """How a server beside this process is reached, by whoever may read its token."""
    try:
        token = Path(serving.token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        token = ""  # another user's: what can be read without it can be read
    parts = urlsplit(serving.url)
    return parts._replace(netloc=f"default:{quote(token, safe='')}@{parts.netloc}", path=f"/{database}").geturl()


def engine_installed() -> bool:
    """Whether the embedded engine can be imported; does not import it."""
    return find_spec("chdb") is not None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:300]
