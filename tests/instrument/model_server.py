"""A model server on loopback that speaks the endpoints of both providers.

Each answer holds a number that it never gives again, so what comes back equal in a replay can only have come
from the recording.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import socket
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ModelServer(ThreadingHTTPServer):
    """Speaks the endpoints of both providers; what a prompt says decides how it answers."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.numbers = itertools.count(1_000_000)
        self.failures: dict[str, int] = {}
        self.requests: list[tuple[str, str, list[tuple[str, str]], bytes]] = []
        """Method, path, headers and body of each request as it arrived."""
        self.coders: dict[str, Callable[[bytes], bytes]] = {}
        """Further content codings, by name, which is their path too."""
        self.release = threading.Event()
        """Lets a stream that holds its last chunks go on."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.release.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that walks away is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def json(self, value: Any, status: int = 200, *headers: tuple[str, str], coding: str = "") -> None:
        body = json.dumps(value).encode()
        given = [("content-type", "application/json"), ("x-request-id", f"req_{next(self.server.numbers)}"), *headers]
        if coding == "gzip":
            body = gzip.compress(body)
        elif coding == "deflate":
            body = zlib.compress(body)
        if coding:
            given.append(("content-encoding", coding))
        self.send(status, body, *given)

    def events(self, events: list[Any], *, named: bool = False, cut: int | None = None, coding: str = "") -> None:
        """Server-sent events, one HTTP chunk each; broken off before event `cut`."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-request-id", f"req_{next(self.server.numbers)}")
        self.send_header("transfer-encoding", "chunked")
        if coding:
            self.send_header("content-encoding", coding)
        self.end_headers()
        coder = zlib.compressobj(wbits=31)
        for place, event in enumerate(events):
            if place == cut:
                self.close_connection = True
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if event == "hold":
                self.server.release.wait(20)
                continue
            data = event if isinstance(event, str) else json.dumps(event)
            chunk = (f"event: {event['type']}\n" if named else "").encode() + f"data: {data}\n\n".encode()
            self.chunk(coder.compress(chunk) + coder.flush(zlib.Z_SYNC_FLUSH) if coding else chunk)
        if coding:
            self.chunk(coder.flush())
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
        time.sleep(0.002)  # so that each is a read of its own

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"|".join(parts)  # the framing is part of what was sent

    def do_GET(self) -> None:
        body = self.body()
        self.server.requests.append((self.command, self.path, list(self.headers.items()), body))
        number = next(self.server.numbers)
        path = self.path.partition("?")[0]
        if path == "/redirect":
            self.send(302, b"", ("location", "/value"), ("set-cookie", f"hop=s{number}; Path=/"))
        elif path == "/cookie":
            self.json({"n": number}, 200, ("set-cookie", f"session=s{number}; Path=/; HttpOnly"), ("set-cookie", "b=2"))
        elif path == "/auth":
            if "authorization" in self.headers:
                self.json({"n": number})
            else:
                self.send(401, b"who", ("www-authenticate", 'Digest realm="r", nonce="abc", qop="auth"'))
        elif path == "/lines":
            self.send(200, f"one {number}\ntwo\nthree".encode(), ("content-type", "text/plain"))
        elif path == "/binary":
            self.send(200, bytes(range(256)) * 40, ("content-type", "application/octet-stream"))
        elif path == "/broken-gzip":
            self.send(200, gzip.compress(b"x" * 100)[:20] + b"garbage!!", ("content-encoding", "gzip"))
        elif path[1:] in self.server.coders:
            packed = self.server.coders[path[1:]](json.dumps({"n": number}).encode())
            self.send(200, packed, ("content-type", "application/json"), ("content-encoding", path[1:]))
        elif path in ("/gzip", "/deflate"):
            self.json({"n": number}, coding=path[1:])
        elif path == "/close":
            self.close_connection = True
        else:
            self.json({"n": number, "method": self.command, "got": len(body)})

    do_HEAD = do_GET  # noqa: N815 (the server looks for this name)

    def do_POST(self) -> None:
        body = self.body()
        self.server.requests.append((self.command, self.path, list(self.headers.items()), body))
        number = next(self.server.numbers)
        if self.path.startswith("/echo"):
            self.json({"n": number, "got": body.decode("latin-1")})
            return
        if self.path == "/moved":
            self.send(307, b"", ("location", "/echo"))
            return
        try:
            asked = json.loads(body)
        except ValueError:
            asked = {}
        prompt = json.dumps(asked.get("messages", asked.get("input", asked.get("prompt", ""))))
        if not self.fails(prompt, number):
            self.answer(self.path.partition("?")[0], asked, prompt, number)

    def fails(self, prompt: str, number: int) -> bool:
        """Answer as an error where the prompt asks for one."""
        if "slow" in prompt:
            self.server.release.wait(20)
        if "flaky" in prompt:
            count = self.server.failures[prompt] = self.server.failures.get(prompt, 0) + 1
            if count % 3:
                error = {"message": f"slow down {number}", "type": "rate", "code": "limit"}
                self.json({"error": error}, 429, ("retry-after-ms", "5"))
                return True
        elif "always429" in prompt:
            error = {"message": f"no quota {number}", "type": "rate", "code": "quota"}
            self.json({"error": error}, 429, ("x-ratelimit-remaining", "0"), ("retry-after-ms", "5"))
            return True
        elif "bad400" in prompt:
            error = {"message": f"bad {number}", "type": "invalid_request_error", "param": "x", "code": "c"}
            self.json({"error": error}, 400)
            return True
        return False

    def answer(self, path: str, asked: dict[str, Any], prompt: str, number: int) -> None:
        text = f"answer {number} é中 tail"
        coding = "gzip" if "gzipped" in prompt else ""
        cut = 2 if "cutme" in prompt else None
        if path.endswith("/chat/completions"):
            if asked.get("stream"):
                self.events(chat_events(asked, prompt, text, number), cut=cut, coding=coding)
            else:
                self.json(chat_message(asked, text, number), coding=coding)
        elif path.endswith("/completions"):
            choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
            usage = {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
            plain = {"id": f"cmpl-{number}", "object": "text_completion", "created": 0, "model": "gpt-i"}
            self.json({**plain, "choices": [choice], "usage": usage})
        elif path.endswith("/responses"):
            message = responses_message(asked, text, number)
            if asked.get("stream"):
                self.events(responses_events(message, text), named=True, cut=cut)
            else:
                self.json(message)
        elif path.endswith("/embeddings"):
            self.json(embeddings(asked, number), coding="gzip")
        elif path.endswith("/files"):
            kept = {"id": f"file-{number}", "object": "file", "bytes": 1, "created_at": 1, "filename": "a.txt"}
            self.json({**kept, "purpose": "assistants", "status": "processed"})
        elif path.endswith("/messages"):
            message = anthropic_message(text, number)
            if asked.get("stream"):
                self.events(anthropic_events(message, text), named=True, cut=cut)
            else:
                self.json(message)
        else:
            self.json({"error": {"message": "nothing here"}}, 404)


CHAT_USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def chat_message(asked: dict[str, Any], text: str, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    reason = "stop"
    if asked.get("response_format"):
        message["content"] = json.dumps({"city": f"c{number}", "n": number})
    if asked.get("tools"):
        call = {"name": "get", "arguments": json.dumps({"x": number})}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": call}]
        reason = "tool_calls"
    choices = [{"index": i, "message": message, "finish_reason": reason} for i in range(asked.get("n") or 1)]
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "model": "gpt-x-0613"}
    return {**head, "choices": choices, "usage": CHAT_USAGE, "system_fingerprint": "fp_1", "service_tier": "default"}


def chat_events(asked: dict[str, Any], prompt: str, text: str, number: int) -> list[Any]:
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 0, "model": "gpt-x-0613"}

    def event(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    if asked.get("tools"):
        function = {"name": "get", "arguments": ""}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        events: list[Any] = [event({"role": "assistant", "tool_calls": [call]})]
        for part in ('{"x"', f": {number}}}"):
            events.append(event({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}))
    else:
        events = [event({"content": word + " "}) for word in text.split(" ")]
    if "holding" in prompt:
        events.insert(2, "hold")
    events.append(event({}, "tool_calls" if asked.get("tools") else "stop"))
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": CHAT_USAGE})
    events.append("[DONE]")
    if "lingering" in prompt:
        events.append("hold")
    return events


def responses_message(asked: dict[str, Any], text: str, number: int) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": "gpt-x-0613",
        "status": "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1,
        "top_p": 1,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [{"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content}],
        "usage": {
            "input_tokens": 21,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 30,
        },
    }


def responses_events(message: dict[str, Any], text: str) -> list[Any]:
    begun = {**message, "status": "in_progress", "output": [], "usage": None}
    events: list[Any] = [{"type": "response.created", "sequence_number": 0, "response": begun}]
    where = {"item_id": "m1", "output_index": 0, "content_index": 0, "logprobs": []}
    item = {**message["output"][0], "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    events.append({"type": "response.output_item.added", "sequence_number": 0, "output_index": 0, "item": item})
    events.append({"type": "response.content_part.added", "sequence_number": 0, "part": part, **where})
    for place, word in enumerate(text.split(), 1):
        events.append({"type": "response.output_text.delta", "sequence_number": place, "delta": word, **where})
    events.append({"type": "response.completed", "sequence_number": 99, "response": message})
    return events


def embeddings(asked: dict[str, Any], number: int) -> dict[str, Any]:
    coded = base64.b64encode(b"\0\0\x80?" * 4).decode()
    vector = coded if asked.get("encoding_format") == "base64" else [1.0, float(number)]
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    return {
        "object": "list",
        "model": f"embed-{number}",
        "data": data,
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }


def anthropic_message(text: str, number: int) -> dict[str, Any]:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 100, "output_tokens": 2}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-x-1"}
    content = [{"type": "text", "text": text}]
    return {**head, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


def anthropic_events(message: dict[str, Any], text: str) -> list[Any]:
    start = {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word + " "}}
        for word in text.split()
    ]
    last = {"stop_reason": "end_turn", "stop_sequence": None}
    end = [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": last, "usage": {"output_tokens": 15}},
        {"type": "message_stop"},
    ]
    return [start, block, *deltas, *end]
