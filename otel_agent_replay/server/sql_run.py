"""Runs the statements of the ClickHouse HTTP interface: who may what, in which settings, and how many at once."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.server import limits, sql_settings
from otel_agent_replay.server.engine import SqlError, identifier
from otel_agent_replay.server.gate import SYSTEM_TABLES, Gate, Kind, read_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_agent_replay.server.engine import Embedded, Handle
    from otel_agent_replay.server.gate import Insert

DEFAULT_DATABASE = "default"
"""The current database of whoever names none."""


@dataclass(slots=True)
class Session:
    """What a session keeps from one statement to the next."""

    database: str = ""
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    writer: bool
    database: str
    """Empty for the default."""
    form: str
    """The format of a result whose statement names none."""
    parameters: Mapping[str, str]
    """Escaped, as they came."""
    settings: tuple[tuple[str, str], ...]
    session: str
    """Empty for none."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result, before its first byte is sent."""

    form: str
    """Empty where the statement has no result."""
    parts: Iterator[bytes]


class Runner:
    """Runs statements for many threads."""

    def __init__(self, engine: Embedded) -> None:
        self._engine = engine
        self._places = BoundedSemaphore(limits.QUERIES)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = Lock()
        with engine.handle() as handle:
            self._gate = Gate(handle)

    @contextmanager
    def query(self, sql: str, asked: Asked) -> Iterator[Result]:
        """Run a statement. Raises SqlError, before or while its result is read."""
        if any(value.lower().rpartition(".")[2].strip('`" ') in SYSTEM_TABLES for value in asked.parameters.values()):
            raise SqlError.refused(497, "ACCESS_DENIED", "Such a parameter is not to be had here")
        with self._place(), self._engine.handle() as handle:
            statement = self._gate.judge(handle, sql, writer=asked.writer)
            if statement.kind in (Kind.SET, Kind.USE):
                self._remember(handle, asked, dict(statement.settings), use=statement.kind is Kind.USE)
                yield Result("", iter(()))
                return
            self._prepare(handle, asked)
            form = statement.form or asked.form
            if statement.kind is Kind.STREAM:
                # Closed here, whoever left it: before its connection is.
                with closing(handle.stream(statement.sql, form, asked.parameters)) as parts:
                    yield Result(form, _bounded(parts))
            elif statement.kind is Kind.WHOLE:
                yield Result(form, iter([handle.query(statement.sql, form, asked.parameters)]))
            else:
                handle.query(statement.sql, "TabSeparated", asked.parameters)
                yield Result("", iter(()))

    def insert(self, insert: Insert, body: Iterable[bytes], asked: Asked) -> int:
        """Insert rows; gives how many were written, into views too. Raises SqlError."""
        if not asked.writer:
            raise read_only()
        self._gate.check_head(f"{insert.head} {insert.settings}")
        with self._place(), self._engine.handle() as handle:
            self._prepare(handle, asked)
            return handle.insert(insert.head, insert.form, body, insert.settings)

    def _prepare(self, handle: Handle, asked: Asked) -> None:
        with self._lock:
            session = self._session(asked.session)
            database, settings = asked.database or session.database, dict(session.settings)
        if database and database != DEFAULT_DATABASE:
            handle.query(f"USE {identifier(database)}")
        settings |= sql_settings.checked(asked.settings)
        handle.set(sql_settings.applied(settings, writer=asked.writer))

    def _remember(self, handle: Handle, asked: Asked, given: dict[str, str], *, use: bool) -> None:
        """Keep what SET or USE say for the session; without a session they are tried and forgotten."""
        if "readonly" in given:
            raise SqlError.refused(164, "READONLY", "Who may write is settled by the token, not by a setting")
        settings = {} if use else sql_settings.checked(given.items())
        if use:
            handle.query(f"USE {identifier(given[''])}")
        else:
            handle.set(settings)
        with self._lock:
            session = self._session(asked.session)
            session.settings |= settings
            if use:
                session.database = given[""]

    def _session(self, name: str) -> Session:
        """The session of this name; a new one that nobody keeps where there is no name. The lock is held."""
        if not name:
            return Session()
        session = self._sessions.setdefault(name, Session())
        self._sessions.move_to_end(name)
        while len(self._sessions) > limits.SESSIONS:
            self._sessions.popitem(last=False)
        return session

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(timeout=limits.QUERY_WAIT_SECONDS):
            raise SqlError.refused(202, "TOO_MANY_SIMULTANEOUS_QUERIES", f"{limits.QUERIES} statements run already")
        try:
            yield
        finally:
            self._places.release()


def _bounded(parts: Iterator[bytes]) -> Iterator[bytes]:
    """A result that is cut off where it is too large or read too slowly. Raises SqlError."""
    size, deadline = 0, real.monotonic() + limits.RESULT_SECONDS
    for part in parts:
        size += len(part)
        if size > limits.RESULT_BYTES:
            raise SqlError.refused(396, "TOO_MANY_ROWS_OR_BYTES", f"A result may have {limits.RESULT_BYTES:,} bytes")
        if real.monotonic() > deadline:
            raise SqlError.refused(159, "TIMEOUT_EXCEEDED", f"A result is sent for {limits.RESULT_SECONDS} s at most")
        yield part
