"""Request bodies are written down before they leave, and leave as they would have: once, and in the same pieces."""

from __future__ import annotations

import io
import socket
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

families = pytest.mark.parametrize("module", [httpx, httpx2], ids=lambda module: module.__name__)
PARTS = [b"first ", b"", b"second ", b"third"]


def generator(log: list[bytes] | None = None) -> Iterator[bytes]:
    for part in PARTS:
        if log is not None:
            log.append(part)
        yield part


async def async_generator() -> AsyncIterator[bytes]:
    for part in PARTS:
        yield part


@families
def test_a_generator_is_sent_once_and_in_its_own_pieces(server: Any, tape: Any, module: Any) -> None:
    def program() -> Any:
        log: list[bytes] = []
        with module.Client() as client:
            return [client.post(f"{server.url}/echo", content=generator(log)).json(), log]

    program()
    bare = server.requests[-1]
    with tape.record() as session:
        live = program()
    assert server.requests[-1] == bare
    assert bare[3] == b"first |second |third"
    assert session.records[0].attempts[0].request.body == b"first second third"
    assert live[1] == PARTS
    with tape.replay():
        assert program() == live


@families
async def test_an_async_generator(server: Any, tape: Any, module: Any) -> None:
    async def program() -> Any:
        async with module.AsyncClient() as client:
            return (await client.post(f"{server.url}/echo", content=async_generator())).json()

    await program()
    bare = server.requests[-1]
    with tape.record() as session:
        live = await program()
    assert server.requests[-1] == bare
    assert session.records[0].attempts[0].request.body == b"first second third"
    with tape.replay():
        assert await program() == live


@families
def test_a_generator_that_fails_fails_the_call(server: Any, tape: Any, module: Any) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    for scope in (tape.record, tape.replay):
        with scope(), module.Client() as client, pytest.raises(ZeroDivisionError):
            client.post(f"{server.url}/echo", content=failing())


@families
def test_a_redirect_of_a_spent_generator_is_what_it_was(server: Any, tape: Any, module: Any) -> None:
    """The library refuses to read a generator twice; having read it for the record does not change that."""
    for scope in (tape.record, tape.replay):
        with scope(), module.Client(follow_redirects=True) as client, pytest.raises(module.StreamConsumed):
            client.post(f"{server.url}/moved", content=generator())


@families
def test_a_redirect_of_a_file_is_what_it_was(server: Any, tape: Any, module: Any) -> None:
    def program() -> Any:
        with module.Client(follow_redirects=True) as client:
            return client.post(f"{server.url}/moved", content=[b"a", b"b"]).json()["got"]

    bare = program()
    with tape.record():
        assert program() == bare
    with tape.replay():
        assert program() == bare


@families
def test_multipart_with_a_file(server: Any, tape: Any, module: Any) -> None:
    boundary = {"content-type": "multipart/form-data; boundary=fixed"}

    def program() -> Any:
        files = {"file": ("a.bin", io.BytesIO(bytes(range(256)) * 300), "application/octet-stream")}
        with module.Client() as client:
            return client.post(f"{server.url}/echo", files=files, data={"x": "1"}, headers=boundary).json()

    program()
    bare = server.requests[-1]
    with tape.record() as session:
        live = program()
    assert server.requests[-1] == bare
    assert session.records[0].attempts[0].request.body == bare[3]
    with tape.replay():
        assert program() == live


def dead_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@families
@pytest.mark.parametrize("kind", ["generator", "file"])
def test_what_was_not_sent_can_be_sent_again(server: Any, tape: Any, module: Any, kind: str) -> None:
    """No connection came about, so the program may use its iterator or file again: nothing of it was taken."""
    nowhere = f"http://127.0.0.1:{dead_port()}/echo"

    def program() -> Any:
        body: Any = generator() if kind == "generator" else io.BytesIO(b"first second third")
        with module.Client() as client:
            with pytest.raises(module.ConnectError):
                client.post(nowhere, content=body)
            return client.post(f"{server.url}/echo", content=body).json()["got"].replace("|", "")

    assert program() == "first second third"
    with tape.record():
        assert program() == "first second third"
    with tape.replay():
        assert program() == "first second third"


@families
async def test_what_was_not_sent_can_be_sent_again_async(server: Any, tape: Any, module: Any) -> None:
    nowhere = f"http://127.0.0.1:{dead_port()}/echo"

    async def program() -> Any:
        body = async_generator()
        async with module.AsyncClient() as client:
            with pytest.raises(module.ConnectError):
                await client.post(nowhere, content=body)
            return (await client.post(f"{server.url}/echo", content=body)).json()["got"].replace("|", "")

    assert await program() == "first second third"
    with tape.record():
        assert await program() == "first second third"
    with tape.replay():
        assert await program() == "first second third"


def test_a_model_call_leaves_as_it_would_have(server: Any, tape: Any) -> None:
    """No header of ours, no header lost, the same bytes; one connection, so that even the port is the same."""

    def ask() -> Any:
        with openai.OpenAI(api_key="k", base_url=f"{server.url}/v1") as client:
            message: Any = {"role": "user", "content": "bytes é\udce9".encode("utf-8", "replace").decode()}
            client.chat.completions.create(model="m", messages=[message], temperature=0.5, extra_body={"x": [1]})

    ask()
    bare = server.requests[-1]
    with tape.record():
        ask()
    assert server.requests[-1] == bare


def test_a_large_body_is_whole(server: Any, tape: Any) -> None:
    big = b"x" * 3_000_000
    with tape.record() as session, httpx2.Client() as client:
        client.post(f"{server.url}/echo", content=big)
    assert session.records[0].attempts[0].request.body == big
