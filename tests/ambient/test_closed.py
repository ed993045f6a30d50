"""A process that is a replay as a whole reaches nothing, whatever the context; a debugger works in it."""

from __future__ import annotations

import json

CLOSED = """
import _socket, contextvars, json, os, socket, sys, threading, urllib.request
port = int(os.environ["PORT"])
seen = {}

def attempt(name, call):
    try:
        call()
        seen[name] = "open"
    except BaseException as error:
        seen[name] = type(error).__name__

def raw():
    s = _socket.socket()
    try:
        s.connect(("127.0.0.1", port))
    finally:
        s.close()

attempt("raw", raw)
attempt("plain", lambda: socket.create_connection(("127.0.0.1", port)))
attempt("urllib", lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/"))
attempt("name", lambda: socket.getaddrinfo("example.invalid", 80))
thread = threading.Thread(target=lambda: contextvars.Context().run(attempt, "thread", raw))
thread.start()
thread.join()
listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.close()
from multiprocessing import Pool
if os.environ.get("DEBUGPY"):
    import debugpy
    attempt("debugger", lambda: debugpy.listen(("127.0.0.1", 0)))
print(json.dumps(seen))
"""


def test_a_process_that_is_a_replay_reaches_nothing(process, server, hits):
    _, tape, _ = process.run("pass")
    out, replayed, _ = process.run(CLOSED, tape, env={"PORT": str(server)})
    assert json.loads(out) == dict.fromkeys(["raw", "plain", "urllib", "name", "thread"], "DivergenceError")
    assert hits() == 0
    assert len(replayed["divergences"]) == 5


def test_a_debugger_works_in_it(process, server):
    _, tape, _ = process.run("pass")
    out, _, _ = process.run(CLOSED, tape, env={"PORT": str(server), "DEBUGPY": "1"})
    assert json.loads(out)["debugger"] == "open" and json.loads(out)["raw"] == "DivergenceError"


def test_a_recording_process_notes_by_itself(process, server):
    text = "import socket, os\nsocket.create_connection(('127.0.0.1', int(os.environ['PORT']))).close()\n"
    _, tape, _ = process.run(text, env={"PORT": str(server)})
    assert [what for _, what, _ in tape["notes"]] == [f"socket to 127.0.0.1:{server} opened by __main__"]
