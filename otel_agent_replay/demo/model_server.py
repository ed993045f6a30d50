"""A loopback stand-in for an OpenAI-compatible model server, for the demo.

    python model_server.py [PORT]

It takes a random time to answer and never gives the same answer twice, so an answer that is seen again can
only have come from a recording. With port 0, the default, the system picks a free one; the first line of
output says where it listens.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NUMBERS = itertools.count(random.randrange(1000, 9000))
"""Each answer carries one; `next` of a counter is atomic."""
LONGEST_WAIT = 0.12
"""Seconds before an answer; each waits a random part of it."""
OPINIONS = ("Yes: it came broken.", "Yes, and soon.", "A clear case for a refund.", "It is covered by the policy.")


class ModelHandler(BaseHTTPRequestHandler):
    """Answers ``POST /v1/chat/completions``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        asked = json.loads(self.rfile.read(length) or b"{}")
        number = next(NUMBERS)
        time.sleep(random.random() * LONGEST_WAIT)
        if asked.get("stream"):
            self.stream(asked, number)
        else:
            self.complete(asked, number)

    def complete(self, asked: dict[str, Any], number: int) -> None:
        """Answer in one piece."""
        calls = tool_calls(asked, number)
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
        if not calls:
            message = {"role": "assistant", "content": f"{random.choice(OPINIONS)} (thought {number})"}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        asked_tokens, given_tokens = len(json.dumps(asked)) // 4, len(json.dumps(message)) // 4
        usage = {
            "prompt_tokens": asked_tokens,
            "completion_tokens": given_tokens,
            "total_tokens": asked_tokens + given_tokens,
        }
        self.reply(envelope(asked, number, "chat.completion") | {"choices": [choice], "usage": usage})

    def reply(self, value: object) -> None:
        """Send JSON."""
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, asked: dict[str, Any], number: int) -> None:
        """Answer word by word, as server-sent events."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        text = f"Dear Kim, sorry for the trouble; your money is on its way. (letter {number})"
        head = envelope(asked, number, "chat.completion.chunk")
        for word in re.findall(r"\S+\s*", text):
            time.sleep(random.random() * 0.02)
            self.event(head | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
        self.event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, value: object) -> None:
        """Send one event."""
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        """Send one chunk of a chunked body."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def envelope(asked: dict[str, Any], number: int, kind: str) -> dict[str, Any]:
    """What stands around every answer."""
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": asked.get("model")}


def tool_calls(asked: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The calls that the demo's conversation leads to: the offered tools, with arguments from what was said."""
    said = json.dumps(asked.get("messages", []))
    order = re.search(r"[A-Z]-\d+", said)
    paid = re.search(r"paid[^\d]+([\d.]+)", said)
    known = {
        "order": order[0] if order else "",
        "question": "Broken on arrival",
        # The customer writes from where decimals have a comma, and so does the model.
        "amount": paid[1].replace(".", ",") if paid else "0",
    }
    calls = []
    for tool in asked.get("tools", []):
        function = tool["function"]
        arguments = {name: known.get(name, "") for name in function["parameters"]["properties"]}
        name = function["name"]
        called = {"name": name, "arguments": json.dumps(arguments)}
        calls.append({"id": f"call_{number}_{name}", "type": "function", "function": called})
    return calls


def main() -> None:
    """Serve until killed."""
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), ModelHandler)
    server.daemon_threads = True
    print(f"listening on http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
