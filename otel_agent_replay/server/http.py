"""What both HTTP ports share: bounded connections and bodies, who may come in, and short answers.

On loopback a page in a browser could reach the server by a name of its own that leads here (DNS rebinding), or send
a form to it: a Host or an Origin that is not of this machine is refused. Elsewhere every request needs a token.
"""

from __future__ import annotations

import hmac
import socket
import zlib
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import BoundedSemaphore, Condition
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from otel_agent_replay.boundary import real
from otel_agent_replay.server import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 1 << 20
"""Bytes that are read, or decompressed, at a time."""

TRAILERS = 100
"""Lines that may stand after a body in chunks."""


class HttpError(Exception):
    """A request is answered with this status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


class Access:
    """Who may come in.

    Attributes:
        open: whether the server listens on loopback only, so that spans and reading SQL need no token.
    """

    def __init__(self, host: str, writer: str, reader: str = "") -> None:
        self.open = is_loopback(host)
        self._writer = writer
        self._reader = reader

    def role(self, token: str) -> str:
        """`writer`, `reader`, or empty for nobody."""
        given = token.encode()
        if given and hmac.compare_digest(given, self._writer.encode()):
            return "writer"
        if given and self._reader and hmac.compare_digest(given, self._reader.encode()):
            return "reader"
        return "reader" if self.open and not given else ""

    def may_send(self, token: str) -> bool:
        """Whether spans may be sent: by the writer, and on loopback by whoever has no token at all."""
        role = self.role(token)
        return role == "writer" or (self.open and role == "reader")


class Server(ThreadingHTTPServer):
    """An HTTP server with so many connections and no more, that ends when what it does is done."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, host: str, port: int, handler: type[Handler], access: Access) -> None:
        """Listen. Raises OSError."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.access = access
        self._places = BoundedSemaphore(limits.CONNECTIONS)
        self._busy = self._held = 0
        self._changed = Condition()
        super().__init__((host.strip("[]"), port), handler)

    @property
    def port(self) -> int:
        """The port, chosen by the system where 0 was asked for."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "agent-replay", self.port

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Give the connection a thread, or turn it away."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Serve a connection, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: Any) -> None:
        """A connection that breaks is its client's business."""

    def hold(self, size: int) -> None:
        """Count bytes of a request that is held. Raises HttpError where too much is held already."""
        with self._changed:
            if self._held + size > limits.HELD_BYTES:
                raise HttpError(429, "The server is busy with other requests; come again.")
            self._held += size

    def drop(self, size: int) -> None:
        """They are not held any more."""
        with self._changed:
            self._held -= size

    def begin(self) -> None:
        """A request is being answered."""
        with self._changed:
            self._busy += 1

    def end(self) -> None:
        """It has been."""
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def settle(self, seconds: float) -> None:
        """Wait until nothing is being answered, at most so long."""
        deadline = real.monotonic() + seconds
        with self._changed:
            while self._busy and (left := deadline - real.monotonic()) > 0:
                self._changed.wait(left)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "agent-replay"
    sys_version = ""
    timeout = limits.IDLE_SECONDS
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: Server
    most_bytes: ClassVar[int] = limits.BODY_BYTES
    """Bytes of a request, decompressed."""

    def answer(self) -> None:
        """Answer one request. May raise HttpError."""
        raise NotImplementedError

    def refuse(self, error: HttpError) -> None:
        """Answer a request that is refused."""
        self.reply(error.status, f"{error}\n".encode(), "text/plain; charset=utf-8")

    def do_GET(self) -> None:
        """Every method comes here."""
        self.server.begin()
        self._held = 0
        try:
            self._admit()
            self.answer()
        except HttpError as error:
            self.close_connection = True  # whatever is left of the body is not read
            self.refuse(error)
        finally:
            self.server.drop(self._held)
            self.server.end()

    do_POST = do_GET  # noqa: N815 (as the base class has it)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what is asked of the server is nobody else's business."""

    @property
    def path_only(self) -> str:
        """The path, without its query."""
        return urlsplit(self.path).path

    def token(self) -> str:
        """The token that came with the request, in whichever of the usual ways; empty where none did."""
        scheme, _, rest = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return rest.strip()
        if scheme.lower() == "basic":
            try:
                return b64decode(rest.strip(), validate=True).decode().partition(":")[2]
            except ValueError:
                return "?"
        return self.headers.get("X-ClickHouse-Key", "")

    def body(self) -> bytes:
        """The request's body, decompressed. Raises HttpError where it is too large or broken."""
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        pieces = inflated(self._pieces(), encoding)
        whole, size = [], 0
        for piece in pieces:
            size += len(piece)
            if size > self.most_bytes:
                raise HttpError(413, f"A request may take {self.most_bytes:,} bytes; send less at a time.")
            self.server.hold(len(piece))
            self._held += len(piece)
            whole.append(piece)
        return b"".join(whole)

    def reply(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _admit(self) -> None:
        """Refuse what a browser sends for somebody else."""
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise HttpError(403, "Requests that other pages make are refused.")
        origin = self.headers.get("Origin")
        if not self.server.access.open:
            if origin is not None and urlsplit(origin).netloc != self.headers.get("Host"):
                raise HttpError(403, "Requests from other origins are refused.")
            return
        host = self.headers.get("Host", "localhost")
        if not is_loopback(urlsplit(f"//{host}").hostname or "") or (
            origin is not None and not is_loopback(urlsplit(origin).hostname or "")
        ):
            raise HttpError(403, "This server answers requests to and from this machine only; name it localhost.")

    def _pieces(self) -> Iterator[bytes]:
        """The body as it came. Raises HttpError."""
        self._deadline = real.monotonic() + limits.BODY_SECONDS
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := self._chunk_size():
                yield from self._read(size)
                self.rfile.readline(8)
            for _ in range(TRAILERS):
                if not self.rfile.readline(8192).strip():
                    return
            raise HttpError(400, "The body has too many trailers.")
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 18:
            raise HttpError(400, "Content-Length is no number.")
        if int(length) > self.most_bytes:
            raise HttpError(413, f"A request may take {self.most_bytes:,} bytes; send less at a time.")
        yield from self._read(int(length))

    def _chunk_size(self) -> int:
        line = self.rfile.readline(1024).partition(b";")[0].strip()
        if not line.isalnum() or len(line) > 15:
            raise HttpError(400, "A chunk has no size.")
        try:
            return int(line, 16)
        except ValueError:
            raise HttpError(400, "A chunk has no size.") from None

    def _read(self, size: int) -> Iterator[bytes]:
        while size > 0:
            piece = self.rfile.read1(min(size, READ_BYTES))
            if real.monotonic() > self._deadline:
                raise HttpError(408, "The body comes too slowly.")
            if not piece:
                raise HttpError(400, "The body is shorter than it says.")
            size -= len(piece)
            yield piece


def inflated(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """A body without its Content-Encoding, a bounded part at a time. Raises HttpError."""
    if encoding in ("", "identity"):
        yield from pieces
    elif encoding in ("gzip", "deflate"):
        yield from _unzip(pieces, 31 if encoding == "gzip" else 15)
    elif encoding in ("zstd", "lz4"):
        from otel_agent_replay.server.blocks import unpack  # noqa: PLC0415 (libraries that not every request needs)

        try:
            yield from unpack(pieces, encoding)
        except ValueError as error:
            raise HttpError(400, f"The body is no {encoding}: {error}.") from None
    else:
        raise HttpError(415, f"The encoding {encoding[:40]!r} is unknown; use gzip.")


def _unzip(pieces: Iterator[bytes], bits: int) -> Iterator[bytes]:
    engine, begun = zlib.decompressobj(bits), False
    try:
        for piece in pieces:
            data = piece
            while data:
                begun = True
                yield engine.decompress(data, READ_BYTES)
                data = engine.unconsumed_tail
                if engine.eof:
                    data, engine, begun = engine.unused_data, zlib.decompressobj(bits), False
        yield engine.flush()
    except zlib.error as error:
        raise HttpError(400, f"The body is no gzip: {error}.") from None
    if begun and not engine.eof:
        raise HttpError(400, "The body is no gzip: it ends too early.")
