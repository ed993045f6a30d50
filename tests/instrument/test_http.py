"""Calls through httpx and httpx2, sync and async, that are no model calls."""

from __future__ import annotations

import asyncio
import contextvars
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording import codec
from otel_agent_replay.recording.values import End, Kind, NoteKind
from tests.instrument.tapes import written

if TYPE_CHECKING:
    from collections.abc import Callable


class Colour:
    """The same program in both families and both colours."""

    def __init__(self, module: Any, *, asynchronous: bool) -> None:
        self.module = module
        self.asynchronous = asynchronous

    def run(self, program: Callable[..., Any], **options: Any) -> Any:
        """Call `program` with a client whose methods block, whatever its colour."""
        if not self.asynchronous:
            with self.module.Client(**options) as client:
                return program(client)

        async def drive() -> Any:
            async with self.module.AsyncClient(**options) as client:
                return await asyncio.wait_for(program(client), 20)

        return asyncio.run(drive())


COLOURS = [
    pytest.param(
        Colour(module, asynchronous=asynchronous), id=f"{module.__name__}-{'async' if asynchronous else 'sync'}"
    )
    for module in (httpx, httpx2)
    for asynchronous in (False, True)
]
every_colour = pytest.mark.parametrize("colour", COLOURS)


def same(tape: Any, colour: Colour, program: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    """Run recorded and replayed; gives the result, which must be the same, and the recording."""
    with tape.record() as session:
        live = colour.run(program, **options)
    with tape.replay() as answering:
        again = colour.run(program, **options)
    assert again == live
    assert answering.waiting == []
    return live, session


def awaitable(value: Any) -> bool:
    return hasattr(value, "__await__")


def get(path: str, read: Callable[[Any], Any], method: str = "GET", **options: Any) -> Callable[[Any], Any]:
    """A program of one request."""

    def program(client: Any) -> Any:
        response = client.request(method, path, **options)
        if not awaitable(response):
            return read(response)

        async def finish() -> Any:
            return read(await response)

        return finish()

    return program


def told(response: Any) -> Any:
    return [
        response.status_code,
        response.reason_phrase,
        response.http_version,
        response.json(),
        response.elapsed is not None,
    ]


@every_colour
def test_a_call_is_one_crossing_named_by_method_and_host(server: Any, tape: Any, colour: Colour) -> None:
    live, session = same(tape, colour, get(f"{server.url}/value?q=secret-question", told))
    (record,) = session.records
    assert record.kind is Kind.HTTP
    assert record.position.key == "http:GET 127.0.0.1"
    assert record.wire
    assert record.attempts[0].end is End.ENDED
    assert record.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": server.server_port,
        "url.scheme": "http",
    }
    assert live[0] == 200


@every_colour
def test_redirects_are_attempts_of_one_crossing(server: Any, tape: Any, colour: Colour) -> None:
    def read(response: Any) -> Any:
        return [response.json(), [hop.status_code for hop in response.history], str(response.url)]

    live, session = same(tape, colour, get(f"{server.url}/redirect", read), follow_redirects=True)
    (record,) = session.records
    assert [attempt.head.status for attempt in record.attempts] == [302, 200]
    assert live[1] == [302]
    cookie = [value for name, value in written(record).attempts[1].request.headers if name.lower() == "cookie"]
    assert re.fullmatch(r"hop=masked\.cookie\.[0-9a-f]{20}", *cookie)


@every_colour
def test_an_auth_flow_is_attempts_of_one_crossing(server: Any, tape: Any, colour: Colour) -> None:
    auth = colour.module.DigestAuth("me", "secret")
    _, session = same(tape, colour, get(f"{server.url}/auth", lambda r: r.json(), auth=auth))
    (record,) = session.records
    assert [attempt.head.status for attempt in record.attempts] == [401, 200]
    sent = dict(written(record).attempts[1].request.headers)["Authorization"]
    assert re.fullmatch(r"Digest masked\.authorization\.[0-9a-f]{20}", sent)


@every_colour
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_content_codings_are_undone_and_done_again(server: Any, tape: Any, colour: Colour, coding: str) -> None:
    def read(response: Any) -> Any:
        assert int(response.headers["content-length"]) == response.num_bytes_downloaded
        return [response.json(), response.headers["content-encoding"]]

    live, session = same(tape, colour, get(f"{server.url}/{coding}", read))
    (attempt,) = session.records[0].attempts
    assert b"".join(attempt.chunks).startswith(b'{"n": ')
    assert live[1] == coding


def raw_bytes(coding: str) -> Callable[[Any], Any]:
    def program(client: Any) -> Any:
        opened = client.stream("GET", coding)
        if hasattr(opened, "__enter__") and not hasattr(opened, "__aenter__"):
            with opened as response:
                return b"".join(response.iter_raw())

        async def finish() -> Any:
            async with opened as response:
                return b"".join([chunk async for chunk in response.aiter_raw()])

        return finish()

    return program


@every_colour
def test_raw_bytes_come_back_as_they_were(server: Any, tape: Any, colour: Colour) -> None:
    live, _ = same(tape, colour, raw_bytes(f"{server.url}/binary"))
    assert live == bytes(range(256)) * 40


def lines(url: str) -> Callable[[Any], Any]:
    def program(client: Any) -> Any:
        opened = client.stream("GET", url)
        if not hasattr(opened, "__aenter__"):
            with opened as response:
                return list(response.iter_lines())

        async def finish() -> Any:
            async with opened as response:
                return [line async for line in response.aiter_lines()]

        return finish()

    return program


@every_colour
def test_lines_of_a_stream(server: Any, tape: Any, colour: Colour) -> None:
    live, session = same(tape, colour, lines(f"{server.url}/lines"))
    assert live[1:] == ["two", "three"]
    assert session.records[0].attempts[0].end is End.ENDED


@every_colour
def test_a_head_request_has_no_body(server: Any, tape: Any, colour: Colour) -> None:
    def program(client: Any) -> Any:
        response = client.head(f"{server.url}/gzip")
        if not awaitable(response):
            return [dict(response.headers), response.content]

        async def finish() -> Any:
            done = await response
            return [dict(done.headers), done.content]

        return finish()

    live, _ = same(tape, colour, program)
    assert live[1] == b""


@every_colour
def test_a_body_that_cannot_be_decoded_fails_the_same_way(server: Any, tape: Any, colour: Colour) -> None:
    def program(client: Any) -> Any:
        if colour.asynchronous:

            async def finish() -> Any:
                with pytest.raises(colour.module.DecodingError) as caught:
                    await client.get(f"{server.url}/broken-gzip")
                return str(caught.value)

            return finish()
        with pytest.raises(colour.module.DecodingError) as caught:
            client.get(f"{server.url}/broken-gzip")
        return str(caught.value)

    _, session = same(tape, colour, program)
    (attempt,) = session.records[0].attempts
    assert attempt.end is End.RAISED


@every_colour
def test_no_response_at_all_is_the_same_error(server: Any, tape: Any, colour: Colour) -> None:
    def program(client: Any) -> Any:
        if colour.asynchronous:

            async def finish() -> Any:
                with pytest.raises(colour.module.RemoteProtocolError) as caught:
                    await client.get(f"{server.url}/close")
                return [str(caught.value), str(caught.value.request.url)]

            return finish()
        with pytest.raises(colour.module.RemoteProtocolError) as caught:
            client.get(f"{server.url}/close")
        return [str(caught.value), str(caught.value.request.url)]

    _, session = same(tape, colour, program)
    (record,) = session.records
    assert record.end is End.RAISED
    assert record.attempts[0].end is End.RAISED
    error = colour.module.RemoteProtocolError
    assert session.crossings[0].call.allowed[codec.ref(error)] is error


@every_colour
def test_cookies_keep_their_names_and_lose_their_values(server: Any, tape: Any, colour: Colour) -> None:
    def program(client: Any) -> Any:
        if colour.asynchronous:

            async def finish() -> Any:
                await client.get(f"{server.url}/cookie")
                await client.get(f"{server.url}/value")
                return sorted(client.cookies)

            return finish()
        client.get(f"{server.url}/cookie")
        client.get(f"{server.url}/value")
        return sorted(client.cookies)

    live, session = same(tape, colour, program)
    assert live == ["b", "session"]
    first, second = map(written, session.records)
    given = [value for name, value in first.attempts[0].head.headers if name.lower() == "set-cookie"]
    token = r"masked\.cookie\.[0-9a-f]{20}"
    assert re.fullmatch(rf"session={token}; Path=/; HttpOnly", given[0])
    assert re.fullmatch(rf"b={token}", given[1])
    sent = [value for name, value in second.attempts[0].request.headers if name.lower() == "cookie"]
    assert re.fullmatch(rf"(?:session|b)={token}; (?:session|b)={token}", *sent)
    assert set(re.findall(token, sent[0])) == set(re.findall(token, " ".join(given)))


@every_colour
def test_credentials_do_not_reach_the_recording(server: Any, tape: Any, colour: Colour) -> None:
    url = f"http://me:hunter2@127.0.0.1:{server.server_port}/value?a=1&api_key=hunter2&token=hunter2#key=x"
    secret = {
        "X-Api-Key": "hunter2",
        "api-key": "hunter2",
        "Proxy-Authorization": "hunter2",
        "X-Goog-Api-Key": "hunter2",
    }
    _, session = same(tape, colour, get(url, told, headers=secret))
    request = written(session.records[0]).attempts[0].request
    assert "hunter2" not in repr(request)
    token = dict(request.headers)["X-Api-Key"]
    assert re.fullmatch(r"masked\.[a-z-]+\.[0-9a-f]{20}", token)
    assert request.url.startswith(f"http://me:{token}@127.0.0.1:")
    assert f"a=1&api_key={token}&token={token}" in request.url
    arrived = dict(server.requests[-1][2])
    assert arrived["X-Api-Key"] == "hunter2"


@every_colour
def test_what_leaves_is_what_would_have_left(server: Any, tape: Any, colour: Colour) -> None:
    program = get(f"{server.url}/value?key=abc", told, headers={"X-MiXed": "1", "authorization": "Bearer x"})
    colour.run(program)
    bare = server.requests[-1]
    with tape.record():
        colour.run(program)
    assert server.requests[-1] == bare


def test_an_unrecorded_question_diverges_through_a_catch_all(server: Any, tape: Any) -> None:
    with tape.record(), httpx2.Client() as client:
        client.get(f"{server.url}/value")
    with tape.replay(), httpx2.Client() as client, pytest.raises(DivergenceError):
        try:
            client.get(f"{server.url}/other")
        except Exception:
            pytest.fail("a divergence must not be an Exception")


def test_the_client_of_a_module_function_is_recorded_too(server: Any, tape: Any) -> None:
    with tape.record() as session:
        live = httpx.get(f"{server.url}/value").json()
    with tape.replay():
        assert httpx.get(f"{server.url}/value").json() == live
    assert len(session.records) == 1


def test_a_mock_transport_stands_for_the_network(tape: Any) -> None:
    answers = iter([{"n": 1}, {"n": 2}])

    def handler(request: Any) -> Any:
        return httpx2.Response(200, json=next(answers))

    with tape.record() as session, httpx2.Client(transport=httpx2.MockTransport(handler)) as client:
        assert client.get("http://mock.test/x").json() == {"n": 1}
    (attempt,) = session.records[0].attempts
    assert b"".join(attempt.chunks) == b'{"n":1}'
    assert attempt.end is End.ENDED
    with tape.replay(), httpx2.Client(transport=httpx2.MockTransport(handler)) as client:
        assert client.get("http://mock.test/x").json() == {"n": 1}


async def test_an_application_called_in_process_is_no_boundary(server: Any, tape: Any) -> None:
    """What that code asks for is: its own calls are crossings."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async with httpx2.AsyncClient() as inner:
            body = (await inner.get(f"{server.url}/value")).content
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def ask() -> Any:
        transport = httpx2.ASGITransport(app=application)
        async with httpx2.AsyncClient(transport=transport) as client:
            return (await client.get("http://app.test/")).json()

    with tape.record() as session:
        live = await ask()
    assert [record.position.key for record in session.records] == ["http:GET 127.0.0.1"]
    with tape.replay():
        assert await ask() == live


def test_a_transport_built_on_another_client_is_one_attempt(server: Any, tape: Any) -> None:
    class Bridge(httpx2.BaseTransport):
        def __init__(self) -> None:
            self.client = httpx.Client()

        def handle_request(self, request: Any) -> Any:
            inner = self.client.request(request.method, str(request.url))
            return httpx2.Response(inner.status_code, content=inner.content)

        def close(self) -> None:
            self.client.close()

    with tape.record() as session, httpx2.Client(transport=Bridge()) as client:
        live = client.get(f"{server.url}/value").json()
    assert [len(record.attempts) for record in session.records] == [1]
    with tape.replay(), httpx2.Client(transport=Bridge()) as client:
        assert client.get(f"{server.url}/value").json() == live


@every_colour
def test_telemetry_is_not_recorded_and_does_not_leave_a_replay(server: Any, tape: Any, colour: Colour) -> None:
    url = f"{server.url}/v1/traces"
    with tape.record() as session:
        assert colour.run(get(url, lambda r: r.status_code, "POST")) == 404  # reached: the server has no such path
    assert session.records == []
    with tape.replay() as session, pytest.raises(colour.module.ConnectError, match="telemetry"):
        colour.run(get(url, lambda r: r.status_code, "POST"))
    assert session.crossings == []


@every_colour
def test_reading_traces_from_a_backend_is_no_telemetry(server: Any, tape: Any, colour: Colour) -> None:
    with tape.record() as session:
        colour.run(get(f"{server.url}/v1/traces/123", lambda r: r.status_code))
    assert len(session.records) == 1


def test_what_opentelemetry_suppresses_is_recorded_all_the_same(server: Any, tape: Any) -> None:
    """A program without spans for a call still depends on what the call gave."""
    with tape.record() as session, httpx.Client() as client, suppress_instrumentation():
        client.get(f"{server.url}/value")
    assert len(session.records) == 1


def test_an_upgraded_connection_is_noted(server: Any, tape: Any) -> None:
    with tape.record() as session, httpx2.Client() as client:
        client.get(f"{server.url}/value", headers={"connection": "upgrade", "upgrade": "websocket"})
    assert session.records == []
    (note,) = [note for note in session.notes if "upgraded" in note.what]  # beside it: the open socket, if watched
    assert note.kind is NoteKind.UNCAPTURED
    assert "websocket" in note.what


def test_outside_a_run_nothing_is_seen(server: Any, tape: Any) -> None:
    with httpx2.Client() as client:
        response = client.get(f"{server.url}/value")
        assert type(client._transport_for_url(response.url)) is httpx2.HTTPTransport
    assert tape.recording.records == []


@every_colour
def test_a_forward_proxy_is_a_transport_like_another(server: Any, tape: Any, colour: Colour) -> None:
    """The proxy is asked for the whole URL; the crossing is named by where the request was to go."""
    _, session = same(tape, colour, get("http://far.test/value", lambda r: r.json()), proxy=server.url)
    assert session.records[0].position.key == "http:GET far.test"
    assert server.requests[-1][1] == "http://far.test/value"


@pytest.mark.parametrize(("coding", "coder"), [("zstd", "backports.zstd"), ("br", "brotli")])
def test_a_coding_that_cannot_be_done_again_is_served_plain(server: Any, tape: Any, coding: str, coder: str) -> None:
    compress = pytest.importorskip(coder).compress
    server.coders[coding] = compress

    def program() -> Any:
        with httpx2.Client() as client:
            response = client.get(f"{server.url}/{coding}")
            assert int(response.headers["content-length"]) == response.num_bytes_downloaded
            return response.json(), "content-encoding" in response.headers

    with tape.record():
        live = program()
    with tape.replay():
        assert program() == (live[0], False)
    assert live[1]


def test_one_client_in_many_threads(server: Any, tape: Any) -> None:
    def program() -> Any:
        with httpx2.Client() as client, ThreadPoolExecutor(8) as pool:

            def ask(number: int) -> Any:
                return client.post(f"{server.url}/echo", content=f"q{number}").json()

            contexts = [contextvars.copy_context() for _ in range(40)]
            done = [pool.submit(one.run, ask, number) for number, one in enumerate(contexts)]
            return [future.result(20) for future in done]

    with tape.record() as session:
        live = program()
    assert [answer["got"] for answer in live] == [f"q{number}" for number in range(40)]
    assert all(exchange.ends == 1 for crossing in session.crossings for exchange in crossing.exchanges)
    with tape.replay() as session:
        assert program() == live
    assert session.waiting == []
