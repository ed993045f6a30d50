"""A loopback model server for tests of what comes into a call: it answers as slowly as a prompt asks.

    python slow_server.py

Its first line of output is its base URL. A prompt says ``before=SECONDS`` to wait before the head, ``pieces=N`` with
``stall=SECONDS`` to wait once N pieces of a stream are out, and ``refuse=N`` to be refused N times first.
"""

import itertools
import json
import re
import sys
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUMBERS = itertools.count()
REFUSED: Counter[str] = Counter()


class SlowHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args):
        pass

    def do_GET(self):
        self.answer(self.path, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.answer(body.decode(), json.loads(body))

    def answer(self, text, asked):
        said = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", text)}
        number = next(NUMBERS)
        if REFUSED[text] < said.get("refuse", 0):
            REFUSED[text] += 1
            self.reply({"error": {"message": f"refused #{number}"}}, 429)
            return
        time.sleep(said.get("before", 0.0))
        if asked.get("stream"):
            self.stream(number, int(said.get("pieces", 0)), said.get("stall", 0.0))
        elif self.path.endswith("/messages"):
            self.reply(anthropic(number))
        elif self.command == "POST":
            self.reply(openai(number))
        else:
            self.reply({"number": number})

    def stream(self, number, pieces, stall):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = anthropic_events(number) if self.path.endswith("/messages") else openai_events(number)
        for count, event in enumerate(events):
            if count == pieces:
                time.sleep(stall)
            self.chunk(event.encode())
            time.sleep(0.002)  # so that each is a read of its own
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after-ms", "2000")
        self.end_headers()
        self.wfile.write(data)


class SlowServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that walks away is no news."""


def openai(number):
    message = {"role": "assistant", "content": f"answer #{number}"}
    return {
        "id": f"c{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def openai_events(number):
    for piece in ("an", "sw", "er", " #", str(number)):
        choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def anthropic(number):
    return {
        "id": f"m{number}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": f"answer #{number}"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def anthropic_events(number):
    empty = {**anthropic(number), "content": [], "stop_reason": None}
    yield named({"type": "message_start", "message": empty})
    yield named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for piece in ("an", "sw", "er", " #", str(number)):
        yield named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
    yield named({"type": "content_block_stop", "index": 0})
    stopped = {"stop_reason": "end_turn", "stop_sequence": None}
    yield named({"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 1}})
    yield named({"type": "message_stop"})


def named(event):
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


if __name__ == "__main__":
    server = SlowServer(("127.0.0.1", 0), SlowHandler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
