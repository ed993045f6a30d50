"""The embedded engine for many threads, with the rights that its schema needs and no others.

The engine's own user may read and change tables; it has no right to files, addresses, processes, functions, users
or system commands, whatever a statement asks for. The right to a scalar `file()` and to OUTFILE is not the
engine's to refuse: the gate does that (`server.gate`).
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from otel_agent_replay.errors import StoreError, StoreMissing
from otel_agent_replay.server import limits
from otel_agent_replay.store.clickhouse import engine_installed
from otel_agent_replay.store.lock import private_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from pathlib import Path

_USERS = """\
<clickhouse>
  <profiles><default></default></profiles>
  <quotas><default></default></quotas>
  <users><default>
    <password></password>
    <profile>default</profile>
    <quota>default</quota>
    <networks><ip>::/0</ip></networks>
    <grants><query>GRANT SHOW, SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW,
      DROP, TRUNCATE, OPTIMIZE ON *.*</query></grants>
  </default></users>
</clickhouse>
"""
_CONFIG = """\
<clickhouse>
  <users_config>{users}</users_config>
  <max_server_memory_usage>{memory}</max_server_memory_usage>
</clickhouse>
"""
_T = TypeVar("_T")
_BUFFERED = 1 << 20
_CODE = re.compile(r"Code: (\d+)\.")
_AGAIN = re.compile(r"(Code: \d+\. DB::Exception: )(?=Code: \d+\. DB::Exception: )")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0", "\b": "\\b", "\f": "\\f"})


class SqlError(Exception):
    """What a statement ends with: ClickHouse's code, and its text as its server would send it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @classmethod
    def of(cls, error: BaseException) -> SqlError:
        """From what the engine raised."""
        text = str(error)
        found = _CODE.search(text)
        text = _AGAIN.sub("", text)
        return (
            cls(int(found[1]), text[text.index("Code: ") :])
            if found
            else cls(1001, f"Code: 1001. DB::Exception: {text}")
        )

    @classmethod
    def refused(cls, code: int, name: str, why: str) -> SqlError:
        """One of our own."""
        return cls(code, f"Code: {code}. DB::Exception: {why} ({name})")


class Chunk(Protocol):
    """Part of a result."""

    def bytes(self) -> bytes:
        """The part, in the format asked for."""


class Handle:
    """A connection of one thread, with settings and a current database of its own."""

    def __init__(self, connection: Any, folder: Path) -> None:
        self._connection = connection
        self._folder = folder

    def query(self, sql: str, form: str = "TSVRaw", parameters: Mapping[str, str] | None = None) -> bytes:
        """A result, whole. Parameters are escaped as the HTTP interface wants them. Raises SqlError."""
        try:
            result = self._connection.query(sql, form, params=dict(parameters or {}))
            return b"" if result is None else bytes(result.bytes() or b"")
        except Exception as error:
            raise SqlError.of(error) from error

    def stream(self, sql: str, form: str, parameters: Mapping[str, str] | None = None) -> Generator[bytes, None, None]:
        """A result, part by part; a consumer that leaves cancels it. Raises SqlError, at any part."""
        try:
            result = self._connection.send_query(sql, form, params=dict(parameters or {}))
        except Exception as error:
            raise SqlError.of(error) from error
        try:
            while (chunk := _next(result)) is not None:
                yield chunk.bytes()
        finally:
            result.close()

    def insert(self, head: str, form: str, body: Iterable[bytes], settings: str = "") -> int:
        """Insert rows that are encoded in a format; gives how many were written, into views too. Raises SqlError.

        They go by a file that has no name. Of rows that it is handed one after another (`send_insert`), chdb 4.4
        counts as written what a table or a view refuses, and says nothing; rows in the text of the statement lose
        spaces and ends of lines where they begin.
        """
        with TemporaryFile(buffering=_BUFFERED, dir=self._folder) as file:
            for piece in body:
                _kept(file.write, piece)
            _kept(file.seek, 0)
            where = f"FROM INFILE '/dev/fd/{file.fileno()}' COMPRESSION 'none'"
            try:
                result = self._connection.query(f"{head}\n{where}\n{settings}\nFORMAT {form}", "TSVRaw")
                return int(result.rows_written()) if result is not None else 0
            except Exception as error:
                raise SqlError.of(error) from error

    def set(self, settings: Mapping[str, str]) -> None:
        """Change settings of this connection. Raises SqlError. Names must have been checked by the caller."""
        if settings:
            self.query("SET " + ", ".join(f"{name} = {literal(value)}" for name, value in settings.items()))


class Embedded:
    """The engine of one store. The caller holds the store's lock."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises StoreMissing, StoreError."""
        if not engine_installed():
            raise StoreMissing
        if "?" in str(path):
            raise StoreError(f"The embedded store {path} cannot be opened: its path has a question mark; rename it.")
        from chdb import connect  # noqa: PLC0415 (loads 400 MB: only where a server starts)

        self._connect = connect
        try:
            private_directory(path)
            # The engine takes the path as it stands, up to a question mark, and decodes the options.
            config = _configure(path)
            self._folder = config.parent
            self._where = f"{path}?config-file={quote(str(config))}"
            self._root = connect(self._where)
        except Exception as error:
            raise StoreError(
                f"The embedded store {path} cannot be opened ({str(error).splitlines()[0][:300]}); "
                "see that its directory can be written and that nothing else has it open."
            ) from error

    @contextmanager
    def handle(self) -> Iterator[Handle]:
        """A connection. Raises SqlError where there is none to be had."""
        try:
            connection = self._connect(self._where)
        except Exception as error:
            raise SqlError.of(error) from error
        try:
            yield Handle(connection, self._folder)
        finally:
            connection.close()

    def close(self) -> None:
        """Close the engine; every handle must be closed before."""
        self._root.close()


def _configure(path: Path) -> Path:
    """Write the engine's configuration beside its data; gives the file."""
    folder = path.with_name(path.name + ".serve")
    private_directory(folder)
    users, config = folder / "users.xml", folder / "config.xml"
    users.write_text(_USERS, encoding="utf-8")
    config.write_text(_CONFIG.format(users=_xml(str(users)), memory=limits.SERVER_BYTES), encoding="utf-8")
    return config


def _kept(write: Callable[[_T], object], piece: _T) -> None:
    """What the disk refuses is an error of the statement; what goes wrong with a client is not."""
    try:
        write(piece)
    except OSError as error:
        raise SqlError.refused(243, "NOT_ENOUGH_SPACE", f"The rows cannot be kept ({error.strerror})") from error


def _next(result: Any) -> Chunk | None:
    try:
        chunk: Chunk = next(result)
    except StopIteration:
        return None
    except Exception as error:
        raise SqlError.of(error) from error
    return chunk


def literal(text: str) -> str:
    """A string as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(text: str) -> str:
    """A name as an identifier of SQL."""
    return "`" + text.replace("\\", "\\\\").replace("`", "\\`") + "`"


def escaped(text: str) -> str:
    """A string as the value of a parameter."""
    return text.translate(_ESCAPES)


def _xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
