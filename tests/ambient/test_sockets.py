# ruff: noqa: E501 (programs as text)
"""What leaves outside of every boundary is noted while recording and refused in a replay."""

from __future__ import annotations

import asyncio
import errno
import logging.handlers
import os
import socket
import subprocess
import sys
import types
import urllib.request

import pytest
import requests

from otel_agent_replay.boundary import guard
from otel_agent_replay.boundary.guard import Decision, Who, decide
from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.errors import DivergenceError


def connect(port):
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        return sock.getpeername()[1]


def datagram(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", ("127.0.0.1", port))
        sock.sendto(b"x", 0, ("127.0.0.1", port))
        sock.sendmsg([b"x"], [], 0, ("127.0.0.1", port))


def by_asyncio(port):
    async def main():
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


def by_urllib(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as reply:
        reply.read()


def by_requests(port):
    with requests.Session() as session:
        session.get(f"http://127.0.0.1:{port}/", timeout=5).close()


WAYS = {
    connect: "socket to 127.0.0.1:{} opened by {}".format("{}", __name__),
    datagram: "datagram to 127.0.0.1:{} opened by {}".format("{}", __name__),
    by_asyncio: "socket to 127.0.0.1:{} opened by asyncio",
    by_urllib: "socket to 127.0.0.1:{} opened by urllib.request",
    by_requests: "socket to 127.0.0.1:{} opened by urllib3",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_recording_notes_it_once(way, ambient, server):
    recording = ambient()
    with recording.here():
        way(server)
        way(server)
    (note,) = recording.notes
    assert note.what.startswith(WAYS[way].format(server)) and note.incomplete
    assert note.where.startswith(__file__)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_replay_refuses_it_and_says_what_and_where(way, ambient, server, hits):
    replay = ambient(ambient())
    with replay.here(), pytest.raises(DivergenceError) as caught:
        way(server)
    assert f"127.0.0.1:{server}" in str(caught.value) and "test_sockets.py:" in str(caught.value)
    assert caught.value.divergence.kind == "incomplete" and len(replay.divergences) == 1
    assert hits() == 0
    way(server)  # outside of the replay the world is there


def test_inside_a_crossing_it_is_captured(ambient, server):
    recording = ambient()
    tool = Lane(recording, recording.root, "call", "tool:x", 0)
    deeper = tool.spawn("task", "t")
    for lane in (tool, deeper):
        token = LANE.set(lane)
        try:
            assert connect(server) == server
            subprocess.run([sys.executable, "-c", ""], check=True)
        finally:
            LANE.reset(token)
    assert recording.notes == []
    replay = ambient(recording)
    token = LANE.set(Lane(replay, replay.root, "call", "tool:x", 0))
    try:
        with pytest.raises(DivergenceError):
            connect(server)
    finally:
        LANE.reset(token)


def test_a_connection_that_was_there_before_is_refused_too(ambient, server):
    with socket.create_connection(("127.0.0.1", server), 5) as sock:
        recording = ambient()
        with recording.here():
            sock.send(b"GET / HTTP/1.0\r\n")
        with ambient(recording).here():
            for send in (sock.send, sock.sendall):
                with pytest.raises(DivergenceError, match=str(server)):
                    send(b"x")
            with socket.socket() as other, pytest.raises(OSError, match=r"pipe|connected"):
                other.send(b"x")
        sock.sendall(b"\r\n")
        assert sock.recv(8) == b"HTTP/1.0"


def test_connect_ex_and_names_of_hosts(ambient, server):
    replay = ambient(ambient())
    with replay.here():
        with socket.socket() as sock, pytest.raises(DivergenceError):
            sock.connect_ex(("127.0.0.1", server))
        for look_up in (
            lambda: socket.getaddrinfo("example.invalid", 80),
            lambda: socket.gethostbyname("example.invalid"),
            lambda: socket.gethostbyname_ex(b"example.invalid"),
        ):
            with pytest.raises(DivergenceError, match=r"example\.invalid"):
                look_up()
        assert (
            socket.getaddrinfo("127.0.0.1", server)
            and socket.getaddrinfo("localhost", 80)
            and socket.gethostbyname("127.0.0.1")
        )
        assert socket.getaddrinfo(None, 80) and socket.getaddrinfo("::1", 80, type=socket.SOCK_STREAM)
        one, two = socket.socketpair()
        one.close(), two.close()
        with pytest.raises(TypeError):
            socket.getaddrinfo()


def test_local_sockets(ambient, tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        recording = ambient()
        with recording.here(), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
        assert [note.what for note in recording.notes] == [f"socket to {path} opened by {__name__}"]
        with ambient(recording).here(), socket.socket(socket.AF_UNIX) as sock, pytest.raises(DivergenceError):
            sock.connect(path)


def test_processes_are_noted_without_their_arguments(ambient):
    recording = ambient()
    with recording.here():
        subprocess.run([sys.executable, "-c", "", "sk-secret"], check=True)
        os.system("true sk-secret")
        os.posix_spawn("/bin/true", ["true"], {})
        os.wait()
        import platform

        platform.processor()
    assert [note.what for note in recording.notes] == [
        f"process {sys.executable} started by subprocess",
        f"process true started by {__name__}",
    ]
    assert "secret" not in str(recording.notes)


def test_a_library_that_asks_what_machine_this_is_starts_nothing_of_the_programs(bench):
    """What openai says of the machine in its headers goes through `platform`, which runs `uname`."""
    program = "import openai._base_client as client\nprint(len("
    bench.record(program + "client.platform_headers('1', platform=None)))\n")
    (run,) = bench.runs()
    assert run["complete"]


class Reporting(logging.Handler):
    def __init__(self, url):
        super().__init__()
        self.url = url


def test_telemetry_is_never_recorded_and_refused_quietly(ambient, server, hits, caplog):
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    exporter = OTLPSpanExporter(f"http://127.0.0.1:{server}/v1/traces", timeout=2)
    span = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s")
    span.end()
    assert isinstance(exporter, SpanExporter)
    recording = ambient()
    with recording.here():
        assert exporter.export([span]) is SpanExportResult.SUCCESS
    assert recording.notes == [] and hits() == 1 and not recording.values
    replay = ambient(recording)
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{server}/v1/traces", timeout=0.5)
    with replay.here():
        assert exporter.export([span]) is SpanExportResult.FAILURE
    exporter.shutdown()
    assert replay.divergences == [] and hits() == 1


def test_a_syslog_handler_is_telemetry(ambient, server):
    recording = ambient()
    with recording.here():
        handler = logging.handlers.SysLogHandler(("127.0.0.1", server))
        handler.emit(logging.makeLogRecord({"msg": "x"}))
        handler.close()
    assert recording.notes == []


def load(name, text, tmp_path):
    """A module of this name, from a file of its own."""
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def test_a_function_that_a_tracer_wraps_is_the_program(ambient, server, tmp_path):
    wrapper = load(
        "langsmith._internal.wrapping",
        "def traced(f):\n    def wrapper(*a):\n        return f(*a)\n    return wrapper\n",
        tmp_path,
    )
    recording = ambient()
    with recording.here():
        wrapper.traced(connect)(server)
    assert len(recording.notes) == 1
    with ambient(recording).here(), pytest.raises(DivergenceError):
        wrapper.traced(connect)(server)


def test_what_a_reporter_sends_itself_is_its_own(ambient, server, tmp_path):
    text = "import socket\ndef send(port):\n    with socket.create_connection(('127.0.0.1', port)):\n        pass\ndef ex(port):\n    with socket.socket() as s:\n        return s.connect_ex(('127.0.0.1', port))\n"
    reporter, debugger = load("sentry_sdk.transport", text, tmp_path), load("pydevd", text, tmp_path)
    near = load("sentry_sdkish", text, tmp_path)
    recording = ambient()
    with recording.here():
        reporter.send(server), debugger.send(server)
        assert recording.notes == []
        near.send(server)
        assert len(recording.notes) == 1
    with ambient(recording).here():
        with pytest.raises(ConnectionRefusedError):
            reporter.send(server)
        assert reporter.ex(server) == errno.ECONNREFUSED
        debugger.send(server)


def test_is_telemetry_frame():
    assert not guard.is_telemetry_frame(sys._getframe()) and not guard.is_telemetry_frame(None)


def test_a_boundary_freed_by_name_reaches_the_network(ambient, server):
    with ambient(ambient()).here():
        token = guard.OPEN.set(True)
        try:
            assert connect(server) == server
        finally:
            guard.OPEN.reset(token)


def test_decisions():
    class Recording:
        replaying = False

    class Replaying:
        replaying = True

    recorded, replayed = Lane(Recording()), Lane(Replaying())
    crossing = recorded.spawn("call", "tool:x")
    expected = {
        (None, False): {Who.PROGRAM: Decision.PASS, Who.TELEMETRY: Decision.PASS},
        (None, True): {Who.PROGRAM: Decision.DIVERGE, Who.TELEMETRY: Decision.REFUSE},
        (recorded, False): {Who.PROGRAM: Decision.NOTE, Who.TELEMETRY: Decision.PASS},
        (crossing, False): {Who.PROGRAM: Decision.PASS, Who.TELEMETRY: Decision.PASS},
        (replayed, False): {Who.PROGRAM: Decision.DIVERGE, Who.TELEMETRY: Decision.REFUSE},
        (replayed, True): {Who.PROGRAM: Decision.DIVERGE, Who.TELEMETRY: Decision.REFUSE},
    }
    for (lane, closed), decisions in expected.items():
        for who in Who:
            assert decide(lane, who, local=False, closed=closed) is decisions.get(who, Decision.PASS)
    assert decide(replayed, Who.TELEMETRY, local=True, closed=False) is Decision.PASS


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (("h", 1), "h:1"),
        (("::1", 2, 0, 0), "[::1]:2"),
        ("/tmp/s", "/tmp/s"),
        (b"\0abstract", "@abstract"),
        (b"\xff", "\\xff"),
        (5, "5"),
        ((), "()"),
    ],
)
def test_addresses_as_shown(address, shown):
    assert guard.address_text(address) == shown


def test_hosts_that_need_no_lookup():
    for host in (
        None,
        "",
        "localhost",
        "127.0.0.1",
        "::1",
        "fe80::1%eth0",
        b"10.0.0.1",
        socket.gethostname(),
        "LOCALHOST",
    ):
        assert guard.needs_no_lookup(host), host
    for host in ("example.com", b"example.com", "256.1.1.1.1", "1.2.3.4.example"):
        assert not guard.needs_no_lookup(host), host
