"""The ClickHouse HTTP interface, as far as clickhouse-connect, clickhouse-go over http and Grafana use it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import orjson

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.wire import varint
from otel_agent_replay.server import blocks, limits, sql_settings
from otel_agent_replay.server.engine import SqlError
from otel_agent_replay.server.gate import HEAD_BYTES, split_insert
from otel_agent_replay.server.http import Handler, HttpError, Server, inflated
from otel_agent_replay.server.sql_run import Asked, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.server.blocks import Packer
    from otel_agent_replay.server.http import Access
    from otel_agent_replay.server.sql_run import Runner

HELLO = "SELECT displayName(), version(), revision(), timezone()"
"""What clickhouse-go asks first. It reads the answer in its own revision of the protocol, and all later ones in the
revision that the answer names: 0 keeps them plain Native blocks."""

_STATUS = {516: 401, 164: 403, 497: 403, 452: 403, 60: 404, 81: 404, 46: 404, 202: 503, 241: 503, 159: 408}
_BAD = frozenset({6, 27, 33, 36, 38, 40, 41, 43, 47, 48, 53, 62, 69, 70, 72, 73, 89, 115, 117, 271, 386, 457})
_TEXT = "text/plain; charset=UTF-8"


class SqlServer(Server):
    """The port for SQL."""

    def __init__(self, host: str, port: int, access: Access, runner: Runner) -> None:
        """Listen. Raises OSError."""
        self.runner = runner
        super().__init__(host, port, SqlHandler, access)


class SqlHandler(Handler):
    """One connection."""

    server: SqlServer
    most_bytes = limits.SQL_BODY_BYTES

    def answer(self) -> None:
        """Answer one request. Raises HttpError."""
        self._query = _parameters(self.path)
        self._id = self._query.get("query_id", "")[:100] or real.urandom(16).hex()
        if self.path_only == "/ping" or (self.command != "POST" and "query" not in self._query):
            self.reply(200, b"Ok.\n", _TEXT)
            return
        self._sent = False
        try:
            self._run()
        except SqlError as error:
            if self._sent:
                raise
            self.close_connection = True  # whatever is left of the body is not read
            self._fail(error)

    def _run(self) -> None:
        role = self.server.access.role(self._query.get("password") or self.token())
        if not role:
            raise SqlError.refused(
                516, "AUTHENTICATION_FAILED", "Authentication failed: give the server's token as the password"
            )
        if self.headers.get("Content-Type", "").startswith("multipart/form-data"):
            raise SqlError.refused(48, "NOT_IMPLEMENTED", "External tables and forms are not supported")
        asked = self._asked(writer=role == "writer")
        pieces = inflated(self._pieces(), self.headers.get("Content-Encoding", "").strip().lower())
        if self._query.get("decompress") == "1":
            pieces = blocks.unframe(pieces)
        query = self._query.get("query", "").encode()
        begun = _beginning(query, pieces)
        insert = split_insert(begun)
        if insert is not None:
            written = self.server.runner.insert(insert, chain((insert.body,), pieces), asked)
            self._send(Result("", iter(())), written)
            return
        sql = _statement(begun, pieces)
        if sql.strip().rstrip(";") == HELLO and "client_protocol_version" in self._query:
            self._send(Result("Native", iter([hello()])))
            return
        with self.server.runner.query(sql, asked) as result:
            self._send(result)

    def _asked(self, *, writer: bool) -> Asked:
        given = self._query
        settings = [
            (name, value)
            for name, value in given.items()
            if name not in sql_settings.RESERVED and not name.startswith("param_")
        ]
        form = given.get("default_format") or self.headers.get("X-ClickHouse-Format") or "TabSeparated"
        if not form.isidentifier():
            raise SqlError.refused(73, "UNKNOWN_FORMAT", "The format has no such name")
        return Asked(
            writer=writer,
            database=given.get("database") or self.headers.get("X-ClickHouse-Database") or "",
            form=form,
            parameters={name[6:]: value for name, value in given.items() if name.startswith("param_")},
            settings=tuple(settings),
            session=given.get("session_id", "")[:200],
        )

    def _send(self, result: Result, written: int = 0) -> None:
        """Send a result as it comes; its first part is there before anything is sent."""
        first = next(result.parts, b"")
        encoding, packer = self._packer()
        tag = real.urandom(8).hex()
        self._head(200, written)
        if result.form:
            self.send_header("X-ClickHouse-Format", result.form)
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.send_header("X-ClickHouse-Exception-Tag", tag)
        self.send_header("Content-Type", "application/octet-stream" if result.form == "Native" else _TEXT)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._sent = True
        try:
            self._chunk(packer.pack(first) if first else b"")
            for part in result.parts:
                self._chunk(packer.pack(part))
        except SqlError as error:
            # The status is gone. As the server does: the exception after the data, and no end of the body.
            self._chunk(packer.pack(_exception(error, tag)) + packer.end())
            self.close_connection = True
            return
        self._chunk(packer.end())
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        if data and self.command != "HEAD":
            self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")

    def _packer(self) -> tuple[str, Packer]:
        """How the result is compressed: the Content-Encoding, empty for none, and what does it."""
        if self._query.get("compress") == "1":
            return "", blocks.Frames()
        if self._query.get("enable_http_compression") == "1":
            accepted = {each.partition(";")[0].strip() for each in self.headers.get("Accept-Encoding", "").split(",")}
            for name, make in blocks.ENCODINGS.items():
                if name in accepted:
                    return name, make()
        return "", blocks.Plain()

    def _head(self, status: int, written: int = 0) -> None:
        self.send_response(status)
        self.send_header("X-ClickHouse-Query-Id", _printable(self._id))
        self.send_header("X-ClickHouse-Timezone", "UTC")
        self.send_header("X-ClickHouse-Server-Display-Name", "agent-replay")
        self.send_header("X-ClickHouse-Summary", orjson.dumps({"written_rows": str(written)}).decode())
        if self.close_connection:
            self.send_header("Connection", "close")

    def _fail(self, error: SqlError) -> None:
        body = f"{error}\n".encode()
        if self._query.get("compress") == "1":
            body = blocks.frame(body)
        self._head(_STATUS.get(error.code, 400 if error.code in _BAD else 500))
        self.send_header("X-ClickHouse-Exception-Code", str(error.code))
        self.send_header("Content-Type", _TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _parameters(path: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(urlsplit(path).query, keep_blank_values=True, max_num_fields=500, errors="surrogateescape")
        return {name: value.encode("utf-8", "surrogateescape").decode() for name, value in pairs}
    except ValueError:
        raise HttpError(400, "The parameters of the request cannot be read.") from None


def _beginning(query: bytes, pieces: Iterator[bytes]) -> bytes:
    """The statement, or so much of it that an INSERT is known by it; what follows stays in `pieces`."""
    begun = bytearray(query)
    for piece in pieces:
        if begun and query and len(begun) == len(query) and piece:
            begun += b"\n"
        begun += piece
        if len(begun) > len(query) + HEAD_BYTES:
            break
    return bytes(begun)


def _statement(begun: bytes, pieces: Iterator[bytes]) -> str:
    whole = bytearray(begun)
    for piece in pieces:
        whole += piece
        if len(whole) > limits.SQL_TEXT_BYTES:
            raise SqlError.refused(62, "SYNTAX_ERROR", f"A statement may take {limits.SQL_TEXT_BYTES:,} bytes")
    try:
        return whole.decode()
    except UnicodeDecodeError:
        raise SqlError.refused(62, "SYNTAX_ERROR", "A statement has to be UTF-8") from None


def hello() -> bytes:
    """The answer to HELLO: a Native block as clickhouse-go's revision of the protocol has it."""
    columns = (
        (b"displayName()", b"String", _sized(b"agent-replay")),
        (b"version()", b"String", _sized(b"26.9.0.0")),
        (b"revision()", b"UInt32", bytes(4)),
        (b"timezone()", b"String", _sized(b"UTC")),
    )
    block_info = b"\x01\x00\x02\xff\xff\xff\xff\x00"
    body = b"".join(_sized(name) + _sized(kind) + b"\0" + data for name, kind, data in columns)
    return block_info + varint(len(columns)) + varint(1) + body


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def _exception(error: SqlError, tag: str) -> bytes:
    text = f"{error}\n"
    return f"\r\n__exception__\r\n{tag}\r\n{text}{len(text.encode())} {tag}\r\n__exception__\r\n".encode()


def _printable(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)
