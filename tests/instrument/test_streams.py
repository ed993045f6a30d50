"""Every way in which a stream can end, while it is recorded and when it is replayed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from otel_agent_replay.boundary import lanes
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.instrument import concurrency
from otel_agent_replay.recording import codec
from otel_agent_replay.recording.values import End

if TYPE_CHECKING:
    from collections.abc import Iterator


def sync_client(server: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url=f"{server.url}/v1", max_retries=0)


def async_client(server: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1", max_retries=0)


def chat(client: Any, text: str) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], stream=True)


def text_of(chunk: Any) -> str:
    return chunk.choices[0].delta.content or ""


def only_attempt(session: Any) -> Any:
    (crossing,) = session.crossings
    (exchange,) = crossing.exchanges
    assert exchange.ends == 1, "an exchange is ended exactly once"
    return exchange.attempt


def test_drained_is_ended_with_one_chunk_for_each_that_came(server: Any, tape: Any) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"raw"}],"stream":true}'
    url = f"{server.url}/v1/chat/completions"
    with (
        tape.record() as session,
        httpx2.Client() as client,
        client.stream("POST", url, content=body) as response,
    ):
        raw = list(response.iter_raw())
    attempt = only_attempt(session)
    assert attempt.end is End.ENDED
    assert attempt.chunks == raw
    assert len(raw) > 4
    assert raw[-1].endswith(b"data: [DONE]\n\n")


def test_the_first_chunk_comes_while_the_server_still_holds_the_rest(server: Any, tape: Any, release: Any) -> None:
    with tape.record(), sync_client(server) as client:
        stream = chat(client, "holding lazily")
        assert text_of(next(stream)) == "answer "
        assert not release.is_set()
        release.set()
        assert len(list(stream)) > 2


async def test_the_first_chunk_comes_while_the_server_holds_async(server: Any, tape: Any, release: Any) -> None:
    with tape.record():
        async with async_client(server) as client:
            stream = await chat(client, "holding lazily")
            assert text_of(await anext(stream)) == "answer "
            release.set()
            assert len([chunk async for chunk in stream]) > 2


def test_closed_early_is_abandoned_and_reading_on_is_a_divergence(server: Any, tape: Any) -> None:
    with tape.record() as session, sync_client(server) as client:
        stream = chat(client, "leave")
        first = next(stream)
        stream.close()
    assert only_attempt(session).end is End.ABANDONED
    assert len(only_attempt(session).chunks) == 1
    with tape.replay(), sync_client(server) as client:
        stream = chat(client, "leave")
        assert next(stream) == first
        with pytest.raises(DivergenceError, match="past the end"):
            next(stream)


async def test_closed_early_async(server: Any, tape: Any) -> None:
    with tape.record() as session:
        async with async_client(server) as client:
            stream = await chat(client, "leave")
            first = await anext(stream)
            await stream.close()
    assert only_attempt(session).end is End.ABANDONED
    with tape.replay():
        async with async_client(server) as client:
            stream = await chat(client, "leave")
            assert await anext(stream) == first
            with pytest.raises(DivergenceError, match="past the end"):
                await anext(stream)


def test_a_reader_that_stops_at_the_terminal_event_is_answered_to_the_end(server: Any, tape: Any) -> None:
    """The client closes the connection after [DONE], so the body never came to its own end."""
    with tape.record() as session, sync_client(server) as client:
        live = [chunk.model_dump() for chunk in chat(client, "done")]
    assert only_attempt(session).end is End.ABANDONED
    with (
        tape.replay(),
        sync_client(server) as client,
        client.chat.completions.with_streaming_response.create(
            model="m", messages=[{"role": "user", "content": "done"}], stream=True
        ) as raw,
    ):
        lines = [line for line in raw.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == len(live) + 1


def test_a_body_read_to_its_length_but_not_to_its_end_is_whole(server: Any, tape: Any) -> None:
    with (
        tape.record() as session,
        httpx2.Client() as client,
        client.stream("GET", f"{server.url}/lines") as response,
    ):
        first = next(response.iter_raw())
    assert only_attempt(session).end is End.ABANDONED
    with tape.replay(), httpx2.Client() as client:
        assert client.get(f"{server.url}/lines").content == first


def test_an_exception_of_the_caller_abandons(server: Any, tape: Any) -> None:
    with (
        tape.record() as session,
        sync_client(server) as client,
        pytest.raises(ZeroDivisionError),
        chat(client, "caller") as stream,
    ):
        for _ in stream:
            raise ZeroDivisionError
    assert only_attempt(session).end is End.ABANDONED


@pytest.mark.parametrize("read", [0, 2])
def test_dropped_without_a_close_is_abandoned(server: Any, tape: Any, read: int) -> None:
    with tape.record() as session, sync_client(server) as client:
        stream = chat(client, "dropped")
        for _ in range(read):
            next(stream)
        del stream
        gc.collect()
        assert only_attempt(session).end is End.ABANDONED


@pytest.mark.parametrize("read", [0, 2])
async def test_dropped_without_a_close_is_abandoned_async(server: Any, tape: Any, read: int) -> None:
    with tape.record() as session:
        async with async_client(server) as client:
            stream = await chat(client, "dropped")
            for _ in range(read):
                await anext(stream)
            del stream
            gc.collect()
            await asyncio.sleep(0.01)
            assert only_attempt(session).end is End.ABANDONED


def test_a_loop_that_is_gone_leaves_nothing_open(server: Any, tape: Any) -> None:
    async def walk_away() -> None:
        client = async_client(server)
        stream = await chat(client, "gone")
        await anext(stream)

    with tape.record() as session:
        asyncio.run(walk_away())
        gc.collect()
    assert only_attempt(session).end is End.ABANDONED


async def test_cancelled_while_it_waits_for_a_chunk(server: Any, tape: Any, release: Any) -> None:
    got: list[Any] = []

    async def read() -> None:
        async with async_client(server) as client:
            async for chunk in await chat(client, "holding cancel"):
                got.append(chunk)

    with tape.record() as session:
        task = asyncio.create_task(read())
        while len(got) < 2:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    attempt = only_attempt(session)
    assert attempt.end is End.ABANDONED
    assert isinstance(session.crossings[0].exchanges[0].error, asyncio.CancelledError)


async def test_cancelled_before_a_response_came(server: Any, tape: Any, release: Any) -> None:
    with tape.record() as session:
        async with async_client(server) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(chat(client, "slow"), 0.1)
    attempt = only_attempt(session)
    assert attempt.end is End.ABANDONED
    assert attempt.head is None
    assert session.crossings[0].exchanges[0].error is None


async def test_a_parked_answer_is_waited_for_until_the_caller_is_cancelled(server: Any, tape: Any) -> None:
    with tape.record():
        async with async_client(server) as client:
            stream = await chat(client, "parked")
            await stream.close()

    class Never:
        def wait(self) -> None:
            raise AssertionError

        async def wait_async(self) -> None:
            await asyncio.Event().wait()

    with tape.replay() as session:
        find = type(session).open

        def parking(lane: Any, call: Any) -> Any:
            crossing = find(session, lane, call)
            attempt = crossing.attempt

            def parked(request: Any) -> Any:
                exchange = attempt(request)
                exchange.answer.parked = Never()
                return exchange

            crossing.attempt = parked
            return crossing

        session.open = parking
        async with async_client(server) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(chat(client, "parked"), 0.05)


async def test_a_second_iterator_drains_what_follows_the_last_event(server: Any, tape: Any) -> None:
    with tape.record() as session:
        async with async_client(server) as client:
            live = [chunk.model_dump() async for chunk in await chat(client, "drained")]
    assert only_attempt(session).end is End.ENDED, "the client's drain has read the end of the body"
    with tape.replay():
        async with async_client(server) as client:
            assert [chunk.model_dump() async for chunk in await chat(client, "drained")] == live


async def test_a_drain_that_gives_up_leaves_a_stream_that_replays(server: Any, tape: Any, release: Any) -> None:
    with tape.record() as session:
        async with async_client(server) as client:
            live = [chunk.model_dump() async for chunk in await chat(client, "lingering")]
    assert only_attempt(session).end is End.ABANDONED
    with tape.replay():
        async with async_client(server) as client:
            assert [chunk.model_dump() async for chunk in await chat(client, "lingering")] == live


def test_a_stream_may_be_read_in_another_thread(server: Any, tape: Any) -> None:
    def read(stream: Any, into: list[Any]) -> None:
        into.extend(chunk.model_dump() for chunk in stream)

    results = []
    for scope in (tape.record, tape.replay):
        got: list[Any] = []
        with scope(), sync_client(server) as client:
            thread = threading.Thread(target=read, args=(chat(client, "threaded"), got))
            thread.start()
            thread.join(10)
        results.append(got)
    assert results[0] == results[1]
    assert len(results[0]) > 2


class Turn:
    """Notes that it was waited for, before the chunk was seen."""

    def __init__(self, log: list[Any], index: int) -> None:
        self.log, self.index = log, index

    def wait(self) -> None:
        self.log.append(("turn", self.index))

    async def wait_async(self) -> None:
        await asyncio.sleep(0)
        self.log.append(("turn", self.index))


def interleaved(log: list[Any]) -> None:
    """Each chunk is preceded by its own turn, and each turn is asked for once."""
    turns = [index for what, index in log if what == "turn"]
    assert turns == list(range(len(turns)))
    assert log[0] == ("turn", 0)
    chunks = [place for place, (what, _) in enumerate(log) if what == "chunk"]
    assert all(log[place - 1] == ("turn", number) for number, place in enumerate(chunks))


@pytest.mark.parametrize("mode", ["record", "replay"])
def test_each_chunk_waits_for_its_turn(server: Any, tape: Any, mode: str) -> None:
    url, log = f"{server.url}/v1/chat/completions", []
    body = {"model": "m", "messages": "turns", "stream": True}

    def read(client: Any) -> None:
        with client.stream("POST", url, json=body) as response:
            for number, _ in enumerate(response.iter_raw()):
                log.append(("chunk", number))

    with tape.record() as session, httpx2.Client() as client:
        if mode == "record":
            session.turns = lambda crossing, index: Turn(log, index)
        read(client)
    if mode == "replay":
        log.clear()
        with tape.replay() as session, httpx2.Client() as client:
            session.turns = lambda crossing, index: Turn(log, index)
            read(client)
    assert len(log) > 8
    interleaved(log)


@pytest.mark.parametrize("mode", ["record", "replay"])
async def test_each_chunk_waits_for_its_turn_async(server: Any, tape: Any, mode: str) -> None:
    url, log = f"{server.url}/v1/chat/completions", []
    body = {"model": "m", "messages": "turns", "stream": True}

    async def read(client: Any) -> None:
        async with client.stream("POST", url, json=body) as response:
            async for chunk in response.aiter_raw():
                log.append(("chunk", chunk))

    with tape.record() as session:
        async with httpx2.AsyncClient() as client:
            if mode == "record":
                session.turns = lambda crossing, index: Turn(log, index)
            await read(client)
    if mode == "replay":
        log.clear()
        with tape.replay() as session:
            async with httpx2.AsyncClient() as client:
                session.turns = lambda crossing, index: Turn(log, index)
                await read(client)
    assert len(log) > 8
    interleaved(log)


def test_a_turn_that_can_never_come_ends_the_read(server: Any, tape: Any) -> None:
    with tape.record(), sync_client(server) as client:
        list(chat(client, "blocked"))

    class Blocked:
        def __init__(self, crossing: Any) -> None:
            self.crossing = crossing

        def wait(self) -> None:
            raise self.crossing.diverged("blocked for ever")

    with tape.replay() as session, sync_client(server) as client:
        session.turns = lambda crossing, index: Blocked(crossing) if index == 1 else None
        stream = chat(client, "blocked")
        next(stream)
        with pytest.raises(DivergenceError, match="blocked for ever"):
            next(stream)


async def test_a_reader_cancelled_at_its_turn_loses_no_chunk(server: Any, tape: Any) -> None:
    url = f"{server.url}/lines"
    with tape.record():
        async with httpx2.AsyncClient() as client:
            live = (await client.get(url)).content

    class Late:
        async def wait_async(self) -> None:
            await asyncio.sleep(0.05)

    with tape.replay() as session:
        session.turns = lambda crossing, index: Late()
        async with httpx2.AsyncClient() as client, client.stream("GET", url) as response:
            stream = response.stream
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(aiter(stream)), 0.01)
            assert b"".join([chunk async for chunk in stream]) == live


class Lingering(httpx2.AsyncByteStream):
    """The quick body ends at once and lets the slow one go on, whose chunk came first."""

    def __init__(self, path: str, error: Exception | None, first: asyncio.Event, ended: asyncio.Event) -> None:
        self.path, self.error, self.first, self.ended = path, error, first, ended

    async def __aiter__(self) -> Any:
        if self.path == "/quick":
            await self.first.wait()
        yield b"chunk"
        if self.path == "/quick":
            return
        self.first.set()
        await self.ended.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def ordered() -> Iterator[None]:
    """Each task has a lane of its own."""
    uninstall = concurrency.install()
    yield
    uninstall()


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("error", [None, httpx2.ReadError("gone"), httpx2.ReadTimeout("late")])
async def test_the_end_of_a_body_comes_in_its_turn(real_tape: Any, error: Exception | None) -> None:
    """It may come long after the last chunk, and others may come to theirs meanwhile."""

    async def program() -> list[str]:
        order: list[str] = []
        first, ended = asyncio.Event(), asyncio.Event()

        def answer(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, stream=Lingering(request.url.path, error, first, ended))

        async def read(client: Any, path: str) -> None:
            try:
                async with client.stream("GET", f"http://lingers.test{path}") as response:
                    async for _ in response.aiter_raw():
                        order.append(f"a chunk of {path}")
                order.append(f"the end of {path}")
            except httpx2.TransportError as broken:
                order.append(f"{type(broken).__name__} of {path}")
            ended.set()

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            await asyncio.gather(read(client, "/slow"), read(client, "/quick"))
        return order

    with real_tape.record():
        recorded = await program()
    assert recorded[:3] == ["a chunk of /slow", "a chunk of /quick", "the end of /quick"]
    for _ in range(2):
        with real_tape.replay():
            assert await program() == recorded


async def test_who_is_cancelled_while_it_waits_for_the_end_never_sees_it(real_tape: Any) -> None:
    """Also where all of the body was there, as its length or the last event of a model tells."""

    async def program() -> list[str]:
        seen: list[str] = []
        ended = asyncio.Event()

        class Terminal(httpx2.AsyncByteStream):
            async def __aiter__(self) -> Any:
                yield b"data: [DONE]\n\n"
                await ended.wait()

        async def read(client: Any) -> None:
            async with client.stream("GET", "http://lingers.test/") as response:
                async for _ in response.aiter_raw():
                    seen.append("a chunk")
            seen.append("the end")

        transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=Terminal()))
        async with httpx2.AsyncClient(transport=transport) as client:
            reading = asyncio.create_task(read(client))
            while not seen:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        return seen

    with real_tape.record():
        recorded = await program()
    assert recorded == ["a chunk"]
    with real_tape.replay():
        assert await program() == recorded


async def test_who_was_cancelled_before_an_answer_was_seen_never_sees_it(server: Any, real_tape: Any) -> None:
    """It had come, and was held back while others came to theirs."""
    url = f"{server.url}/v1/chat/completions"

    async def program(limit: float) -> str:
        async with httpx2.AsyncClient() as client:
            request = client.build_request("POST", url, json={"model": "m", "messages": "held", "stream": True})
            try:
                response = await asyncio.wait_for(client.send(request, stream=True), limit)
            except TimeoutError:
                return "late"
            await response.aclose()
            return "seen"

    with real_tape.record():
        assert await program(20) == "seen"
    (crossing,) = real_tape.sink.recording.crossings
    crossing.seq, crossing.attempts[0].chunks, crossing.attempts[0].seqs = None, [], []
    with real_tape.replay():
        assert await program(0.05) == "late"


async def test_who_was_cancelled_before_a_chunk_was_seen_never_sees_it(server: Any, real_tape: Any) -> None:
    """The chunk had come, and was held back while others came to theirs."""
    url = f"{server.url}/v1/chat/completions"

    async def program(limit: float) -> int:
        seen = 0
        async with httpx2.AsyncClient() as client:
            body = {"model": "m", "messages": "held", "stream": True}
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(limit), client.stream("POST", url, json=body) as response:
                    async for _ in response.aiter_raw():
                        seen += 1
        return seen

    with real_tape.record():
        assert await program(20) > 3
    (attempt,) = real_tape.sink.recording.crossings[0].attempts
    attempt.chunks, attempt.seqs = attempt.chunks[:3], attempt.seqs[:2]
    attempt.end, attempt.error = End.ABANDONED, codec.encode(asyncio.CancelledError(), strict=False)
    with real_tape.replay():
        assert await program(0.1) == 2


class Spy(httpx2.SyncByteStream):
    """A transport's stream that tells in which lane it was read and closed."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __iter__(self) -> Any:
        for part in (b"a", b"b"):
            self.seen.append(lanes.current())
            yield part
        self.seen.append(lanes.current())

    def close(self) -> None:
        self.seen.append(lanes.current())


class AsyncSpy(httpx2.AsyncByteStream):
    def __init__(self, seen: list[Any]) -> None:
        self.spy = Spy(seen)

    async def __aiter__(self) -> Any:
        for part in self.spy:
            yield part

    async def aclose(self) -> None:
        self.spy.close()


def test_the_transport_works_beneath_the_crossing(tape: Any) -> None:
    """Its timers and clock readings are none of the program's, whose own lane stands where it stood."""
    seen: list[Any] = []
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=Spy(seen)))
    with tape.record() as session, httpx2.Client(transport=transport) as client:
        with client.stream("GET", "http://spy.test/") as response:
            for _ in response.iter_raw():
                assert lanes.current() is session.root
        assert lanes.current() is session.root
    assert len(seen) == 4
    assert set(seen) == {session.crossings[0].lane}


async def test_the_transport_works_beneath_the_crossing_async(tape: Any) -> None:
    seen: list[Any] = []
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=AsyncSpy(seen)))
    with tape.record() as session:
        async with (
            httpx2.AsyncClient(transport=transport) as client,
            client.stream("GET", "http://spy.test/") as response,
        ):
            async for _ in response.aiter_raw():
                assert lanes.current() is session.root
        assert lanes.current() is session.root
    assert len(seen) == 4
    assert set(seen) == {session.crossings[0].lane}
