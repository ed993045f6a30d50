"""A model server on loopback that answers from recorded exchanges.

A request is matched by method, path, query and JSON body; identical requests get their recorded replies in turn.
Event streams leave in pieces of odd sizes that cut through characters and through `data:`, the same pieces
every time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import threading
import time
import zlib
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tests.cassettes.calls import request_key, sent_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.cassettes.corpus import Exchange, Reply

PIECES = 40
"""About how many pieces an event stream is cut into, whatever its length."""

PAUSE_S = 0.0003
"""Seconds between two pieces, so that a client sees them one by one."""

UNMATCHED = 590
"""Status of the reply to a request that was never recorded; no SDK takes it for an answer."""

IDLE_S = 30.0
"""Seconds after which a connection without a request is closed."""


class CassetteServer:
    """Serves `exchanges` until closed; a context manager. After `retire` every connection is counted and dropped."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self.unmatched: list[str] = []
        self.served: list[str] = []
        self.visits_after_retirement = 0
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Exchange]] = defaultdict(deque)
        for one in exchanges:
            self._waiting[request_key(one.method, one.path, one.query, sent_body(one))].append(one)
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._retired = False
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def left(self) -> list[str]:
        """Sources of the exchanges that nobody asked for."""
        with self._lock:
            return [one.source for queue in self._waiting.values() for one in queue]

    def __enter__(self) -> CassetteServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join(timeout=10)
        self._hang_up()
        self._http.server_close()

    def retire(self) -> None:
        """Answer nothing from here on: whoever still connects is counted."""
        self._retired = True
        self._hang_up()

    def admit(self, connection: socket.socket) -> bool:
        with self._lock:
            if self._retired:
                self.visits_after_retirement += 1
                return False
            self._connections.add(connection)
            return True

    def dismiss(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def take(self, method: str, target: str, body: bytes) -> Exchange | None:
        """The next reply to this request, in recorded order."""
        url = urlsplit(target)
        try:
            asked: Any = json.loads(body) if body else None
        except ValueError:
            asked = repr(body)
        key = request_key(method, url.path, tuple(parse_qsl(url.query, keep_blank_values=True)), asked)
        with self._lock:
            queue = self._waiting.get(key)
            if not queue:
                self.unmatched.append(key)
                return None
            one = queue.popleft()
            self.served.append(one.source)
            return one

    def _hang_up(self) -> None:
        with self._lock:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # The client was first.


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    owner: CassetteServer

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.owner.admit(request)

    def shutdown_request(self, request: Any) -> None:
        self.owner.dismiss(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is not worth a traceback on the terminal; what it missed shows in its output."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_S
    server: _Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        one = self.server.owner.take(self.command, self.path, body)
        if one is None:
            self._unmatched()
        else:
            self._answer(one)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _unmatched(self) -> None:
        body = json.dumps({"error": {"message": f"never recorded: {self.command} {self.path}"}}).encode()
        self.send_response_only(UNMATCHED)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, one: Exchange) -> None:
        reply = one.reply
        pieces, encoding = parcels(one.source, reply)
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        if encoding:
            self.send_header("content-encoding", encoding)
        if reply.status == 204:
            self.end_headers()
        elif reply.chunked or reply.streams:
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in pieces:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                time.sleep(PAUSE_S)
            self.wfile.write(b"0\r\n\r\n")
        else:
            body = b"".join(pieces)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


def parcels(source: str, reply: Reply) -> tuple[list[bytes], str]:
    """The bytes of a reply in the pieces in which they leave, and their content encoding.

    Every eighth stream is compressed though it was recorded plain: the cassettes hold no compressed stream.
    """
    if not reply.streams:
        body = gzip_compress(reply.body) if reply.encoding == "gzip" else reply.body
        body = zlib.compress(body) if reply.encoding == "deflate" else body
        return [piece for piece in (body[:700], body[700:]) if piece], reply.encoding
    pieces = list(cut(reply.body, source))
    if reply.encoding or hashlib.sha256(source.encode()).digest()[0] % 8 == 0:
        return list(_compressed(pieces)), "gzip"
    return pieces, ""


def gzip_compress(body: bytes) -> bytes:
    """Gzip without the time of day in its header."""
    return gzip.compress(body, compresslevel=1, mtime=0)


def _compressed(pieces: list[bytes]) -> Iterator[bytes]:
    """Each piece compressed so that a client can read it before the next one comes."""
    press = zlib.compressobj(level=1, wbits=31)
    for piece in pieces:
        yield press.compress(piece) + press.flush(zlib.Z_SYNC_FLUSH)
    yield press.flush()


def cut(body: bytes, seed: str) -> Iterator[bytes]:
    """Pieces of odd sizes, none empty, equal for equal seeds; every other cut falls where it hurts."""
    longest = max(1, 2 * len(body) // PIECES)
    start = number = 0
    while start < len(body):
        drawn = int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4])
        end = start + 1 + drawn % longest
        if number % 2:
            end = _worse(body, end, start)
        yield body[start:end]
        start, number = end, number + 1


def _worse(body: bytes, end: int, start: int) -> int:
    """A place near `end` inside a character of several bytes or inside `data:`, if there is one."""
    near = range(end, min(len(body), end + 200))
    inside = next((place for place in near if body[place] & 0xC0 == 0x80 and place > start), None)
    if inside is not None:
        return inside
    field = body.find(b"data:", end, end + 200)
    return end if field < 0 else field + 2
