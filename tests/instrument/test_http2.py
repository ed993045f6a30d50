"""HTTP/2, where it is installed: several streams on one connection."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import openai
import pytest

from otel_agent_replay.recording.values import End

if TYPE_CHECKING:
    from collections.abc import Iterator

h2_connection = pytest.importorskip("h2.connection")
h2_config = pytest.importorskip("h2.config")
h2_events = pytest.importorskip("h2.events")


class Http2Server:
    """Answers every request with the chunks of a chat stream; speaks HTTP/2 from the first byte."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.numbers = itertools.count(1_000_000)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        h2 = h2_connection.H2Connection(h2_config.H2Configuration(client_side=False))
        h2.initiate_connection()
        connection.sendall(h2.data_to_send())
        with connection:
            while data := connection.recv(65536):
                for event in h2.receive_data(data):
                    if isinstance(event, h2_events.StreamEnded):
                        self.answer(h2, event.stream_id)
                connection.sendall(h2.data_to_send())

    def answer(self, h2: Any, stream: int) -> None:
        number = next(self.numbers)
        h2.send_headers(stream, [(":status", "200"), ("content-type", "text/event-stream"), ("x-n", str(number))])
        for word in ("a", "b", str(number)):
            delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            event = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [delta]}
            h2.send_data(stream, f"data: {json.dumps(event)}\n\n".encode())
        h2.send_data(stream, b"data: [DONE]\n\n", end_stream=True)


@pytest.fixture
def http2_server() -> Iterator[Http2Server]:
    server = Http2Server()
    yield server
    server.socket.close()


@pytest.mark.parametrize("module", [httpx, httpx2], ids=lambda module: module.__name__)
def test_the_version_and_the_missing_reason_are_kept(http2_server: Any, tape: Any, module: Any) -> None:
    def program() -> Any:
        with module.Client(http1=False, http2=True) as client:
            response = client.post(http2_server.url, content=b"x")
            return [response.http_version, response.reason_phrase, response.headers["x-n"], response.text]

    with tape.record() as session:
        live = program()
    assert live[:2] == ["HTTP/2", "OK"]
    assert session.records[0].attempts[0].end is End.ENDED
    with tape.replay():
        assert program() == live


async def test_concurrent_streams_of_a_model(http2_server: Any, tape: Any) -> None:
    async def program() -> Any:
        async with (
            httpx2.AsyncClient(http1=False, http2=True) as http,
            openai.AsyncOpenAI(api_key="k", base_url=http2_server.url, http_client=http) as client,
        ):

            async def ask(text: str) -> Any:
                said: Any = [{"role": "user", "content": text}]
                stream = await client.chat.completions.create(model="m", messages=said, stream=True)
                return [chunk.choices[0].delta.content async for chunk in stream]

            return await asyncio.gather(*[ask(f"q{number}") for number in range(5)])

    with tape.record() as session:
        live = await asyncio.wait_for(program(), 20)
    assert len({answer[-1] for answer in live}) == 5
    assert all(exchange.ends == 1 for crossing in session.crossings for exchange in crossing.exchanges)
    with tape.replay():
        assert await asyncio.wait_for(program(), 20) == live
