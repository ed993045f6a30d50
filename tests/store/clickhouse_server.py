"""A ClickHouse server for tests: its HTTP interface, as far as clickhouse-connect uses it, over the embedded engine.

    python clickhouse_server.py PATH

prints its port. Every request has a connection of its own, as a server gives one a session.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

import chdb
import lz4.frame
from backports import zstd

PATH = sys.argv[1]
ROOT = chdb.connect(PATH)
LOCK = Lock()
INSERT = re.compile(r"^\s*(INSERT\s+INTO\s+.*?)\s+FORMAT\s+(\w+)\s*$", re.DOTALL | re.IGNORECASE)
FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
NO_SETTINGS = {"query", "database", "default_format", "query_id", "session_id", "client_protocol_version", "compress"}
NO_SETTINGS |= {"enable_http_compression", "http_headers_progress_interval_ms", "send_progress_in_http_headers"}
NO_SETTINGS |= {"wait_end_of_query", "cancel_http_readonly_queries_on_client_close", "date_time_input_format"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        asked = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        try:
            with LOCK:
                answer, form = self.run(asked, self.body())
            self.reply(200, answer, form)
        except Exception as error:
            text = str(error)
            code = re.search(r"Code: (\d+)", text)
            text = text[max(text.find("Code:"), 0) :]
            self.reply(404 if code and code[1] in ("60", "81") else 500, text.encode(), "", code[1] if code else "0")

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            data = b"".join(parts)
        else:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
        undo = {"gzip": gzip.decompress, "lz4": lz4.frame.decompress, "zstd": zstd.decompress}
        coding = self.headers.get("content-encoding")
        return undo[coding](data) if coding else data

    def run(self, asked: dict[str, str], body: bytes) -> tuple[bytes, str]:
        connection = chdb.connect(PATH)
        try:
            if asked.get("database"):
                connection.query(f"USE `{asked['database']}`")
            for name, value in asked.items():
                if name not in NO_SETTINGS and not name.startswith("param_"):
                    connection.query(f"SET {name} = '{value}'")
            parameters = {name[6:]: value for name, value in asked.items() if name.startswith("param_")}
            sql = asked.get("query", "")
            if not sql:
                line, _, rest = body.partition(b"\n")
                binary = INSERT.match(line.decode("utf-8", "replace"))
                sql, body = (line.decode(), rest) if binary else (body.decode(), b"")
            if (insert := INSERT.match(sql)) and insert[2].lower() != "values":
                with tempfile.NamedTemporaryFile() as file:
                    file.write(body)
                    file.flush()
                    connection.query(f"{insert[1]} FROM INFILE '{file.name}' FORMAT {insert[2]}")
                return b"", ""
            if body:
                sql = f"{sql}\n{body.decode()}"
            found = FORMAT.search(sql)
            form = found[1] if found else asked.get("default_format", "TabSeparated")
            result = connection.query(FORMAT.sub("", sql), form, params=parameters)
            return (result.bytes() or b"") if result is not None else b"", form
        finally:
            connection.close()

    def reply(self, status: int, data: bytes, form: str, code: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if form:
            self.send_header("X-ClickHouse-Format", form)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.end_headers()
        self.wfile.write(data)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
