"""A loopback model server for tests: ``answer<PROMPT>#N`` with an N that it never gives twice.

    python echo_server.py

Its first line of output is its base URL; ``GET /hits`` tells how many calls it has had. A call with a header
``x-status`` is refused with that status.
"""

import itertools
import json
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUMBERS = itertools.count()
HITS = itertools.count()


class EchoHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args):
        pass

    def do_GET(self):
        self.reply({"hits": next(HITS), "path": self.path, "number": next(NUMBERS)})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        number = next(NUMBERS)
        time.sleep(random.random() * float(self.headers.get("x-delay", "0.02")))
        if "x-status" in self.headers:
            self.reply({"error": {"message": f"refused #{number}"}}, int(self.headers["x-status"]))
            return
        content = asked["messages"][-1]["content"]
        prompt = content if isinstance(content, str) else f"{len(json.dumps(content))} characters"
        text = f"answer<{prompt[:200]}>#{number}"
        if asked.get("stream"):
            self.stream(text)
            return
        message = {"role": "assistant", "content": text}
        self.reply(
            {
                "id": f"c{number}",
                "object": "chat.completion",
                "created": 1,
                "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
            }
        )

    def stream(self, text):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in (text[at : at + 5] for at in range(0, len(text), 5)):
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            self.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()
