"""A loopback server: models whose answers hold credentials, an echo, and a receiver of OTLP over HTTP."""

from __future__ import annotations

import gzip
import json
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers with `secrets`; keeps what comes in by OTLP, uncompressed."""

    daemon_threads = True

    def __init__(self, secrets: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secrets = secrets
        self.exported: dict[str, list[bytes]] = {"/v1/traces": [], "/v1/logs": []}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that walks away is no news."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        if path in self.server.exported:
            self.server.exported[path].append(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            self.reply(b"", "application/x-protobuf")
        elif path == "/v1/chat/completions":
            self.chat(json.loads(body))
        elif path == "/v1/messages":
            self.claude(json.loads(body))
        else:
            self.json({"echo": body.decode(), "access_token": self.server.secrets["granted"]}, coding="gzip")

    def chat(self, asked: dict[str, Any]) -> None:
        secret = self.server.secrets
        if not asked.get("stream"):
            message = {"role": "assistant", "content": f"It is {secret['answer']}, or {secret['answer']}."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.json({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
            return
        arguments = json.dumps({"command": f'say "{secret["argument"]}"', "password": secret["split"]})
        events = [{"content": piece} for piece in _pieces(f"so {secret['streamed']}.", 3)]
        for piece in _pieces(arguments, 4):
            function = {"name": "run", "arguments": piece}
            events.append({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})
        self.events(
            json.dumps(
                {
                    "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
                }
            )
            for delta in events
        )  # fmt: skip

    def claude(self, asked: dict[str, Any]) -> None:
        text = f"The secret is {self.server.secrets['streamed']} indeed"
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "usage": usage}
        if not asked.get("stream"):
            content = [{"type": "text", "text": text}]
            self.json({**message, "content": content, "stop_reason": "end_turn", "stop_sequence": None})
            return
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ]
        for piece in _pieces(text, 5):
            events.append({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
        events += [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        self.events((json.dumps(event) for event in events), named=[event["type"] for event in events])

    def reply(self, body: bytes, kind: str, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (("content-type", kind), ("content-length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, value: Any, coding: str = "") -> None:
        body = json.dumps(value).encode()
        headers = [
            ("set-cookie", f"sid={self.server.secrets['given']}; Path=/"),
            ("x-note", self.server.secrets["note"]),
        ]
        if coding:
            body = gzip.compress(body)
            headers.append(("content-encoding", coding))
        self.reply(body, "application/json", *headers)

    def events(self, events: Any, named: list[str] | None = None) -> None:
        """Compressed, and in chunks that cut through events."""
        lines = []
        for number, event in enumerate(events):
            lines.append((f"event: {named[number]}\n" if named else "") + f"data: {event}\n\n")
        if not named:
            lines.append("data: [DONE]\n\n")
        data = "".join(lines).encode()
        self.send_response(200)
        for name, value in (
            ("content-type", "text/event-stream"),
            ("transfer-encoding", "chunked"),
            ("content-encoding", "gzip"),
        ):
            self.send_header(name, value)
        self.end_headers()
        coder = zlib.compressobj(wbits=31)
        for at in range(0, len(data), 37):
            self.chunk(coder.compress(data[at : at + 37]) + coder.flush(zlib.Z_SYNC_FLUSH))
        self.chunk(coder.flush())
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
        time.sleep(0.0005)


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
