"""Response bodies: tapped while they are recorded, played while they are replayed.

What is decided about a chunk is decided once, in `Tap` and `Played`; the classes that iterate are as lazy
as the streams they stand for, in both colours. A stream may have more than one live iterator (the openai
client drains what follows ``[DONE]`` with a second one), so what was read belongs to the stream.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import wrapt

from otel_agent_replay.boundary.handlers import raised_by
from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.instrument import _coding, genai
from otel_agent_replay.instrument._failures import RAISED
from otel_agent_replay.recording.values import End, Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from contextvars import Token

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.session import Answer, Crossing, Exchange, Turn
    from otel_agent_replay.instrument.genai import Reading
    from otel_agent_replay.recording.values import WireHead

_TERMINAL = re.compile(
    rb"^(?:data: ?\[DONE\]"
    rb"|event: ?(?:message_stop|response\.(?:completed|failed|incomplete))[ \r]*$"
    rb'|data: ?\{[^\n]*?"type": ?"(?:message_stop|response\.(?:completed|failed|incomplete))")',
    re.MULTILINE,
)
"""The event after which a model sends nothing more. Text of a model cannot hold it: JSON has no line ends."""


class Tap:
    """A body while it is recorded. Nothing here raises into the program."""

    __slots__ = (
        "_count",
        "_crossing",
        "_done",
        "_exchange",
        "_garbled",
        "_head",
        "_kept",
        "_lane",
        "_order",
        "_reading",
        "_since",
        "_undo",
    )

    def __init__(
        self, crossing: Crossing, exchange: Exchange, head: WireHead, undo: _coding.Undo | None, reading: Reading | None
    ) -> None:
        self._lane = crossing.lane
        self._order = getattr(crossing.lane.session, "order", None)
        self._crossing = crossing
        self._exchange = exchange
        self._head = head
        self._undo = undo
        self._reading = reading
        self._kept: list[bytes] = []
        self._count = 0
        self._done = False
        self._garbled = False
        self._since = getattr(self._order, "last", -1)
        """Place of what the main lane saw last before the body."""

    def away(self, *, blocks: bool) -> Token[Lane | None]:
        """The transport's own code is about to run: its timers and locks are none of the program's.

        Args:
            blocks: whether the thread waits meanwhile, and not only its task.
        """
        token = LANE.set(self._lane)
        if self._order is not None:
            self._order.away(self._lane, blocks=blocks)
        return token

    def back(self, token: Token[Lane | None], *, blocks: bool) -> None:
        """It has run."""
        if self._order is not None:
            self._order.back(self._lane, blocks=blocks)
        try:
            LANE.reset(token)
        except ValueError:
            return  # an asynchronous stream that is collected while it waits is closed in another context

    def took(self, raw: bytes) -> Turn | None:
        """The transport gave a chunk. Returns what to wait for before the program gets it."""
        index = self._count
        self._count += 1
        if self._undo is None:
            self._chunk(raw if type(raw) is bytes else bytes(raw))
        elif not self._done:
            try:
                self._chunk(self._undo.chunk(bytes(raw)))
            except Exception as error:  # noqa: BLE001 (whatever the decoder raises, the program's own raises too)
                self._garbled = True
                self.finish(End.RAISED, error)
        elif self._garbled:
            note = Note(NoteKind.UNCAPTURED, "a body whose content coding is broken was read undecoded")
            self._crossing.lane.session.note(note)
        return self._exchange.chunk_turn(index)

    def last(self, error: BaseException | None = None) -> Turn | None:
        """What to wait for before the program sees that no more comes, or why.

        The end of a body, and a connection that breaks, may come long after the last chunk. What the handler of a
        signal raises has a place already: that of the signal.
        """
        if self._done or raised_by(error, self._since) is not None:
            return None
        return self._exchange.chunk_turn(self._count)

    def ended(self) -> None:
        """The transport has no more."""
        if self._undo is not None and not self._done:
            try:
                tail = self._undo.flush()
            except Exception as error:  # noqa: BLE001 (the program's own decoder raises it too)
                self.finish(End.RAISED, error)
                return
            if tail:
                self._chunk(tail)
        self.finish(End.ENDED)

    def broke(self, error: BaseException) -> None:
        """The transport raised, or the reader was interrupted while it waited."""
        if isinstance(error, RAISED):
            self.finish(End.RAISED, error)
        elif not isinstance(error, GeneratorExit):
            # A closed iterator is not the end of its stream; a cancellation is, and is told from a close.
            self.finish(End.ABANDONED, error if isinstance(error, asyncio.CancelledError) else None)

    def finish(self, how: End, error: BaseException | None = None) -> None:
        """The body is finished, broken or left; only the first time counts."""
        if self._done:
            return
        self._done = True
        try:
            learned = genai.http_response(self._head)
            if self._reading is not None:
                learned.update(self._reading(self._head, b"".join(self._kept)))
            self._crossing.describe(learned)
        except Exception as failure:  # noqa: BLE001 (recording never hurts the agent)
            fault("reading a response", failure, self._crossing.lane.session.note)
        self._exchange.end(how, error)

    def _chunk(self, data: bytes) -> None:
        if self._reading is not None:
            self._kept.append(data)
        self._exchange.chunk(data)


class SyncTap(wrapt.BaseObjectProxy[Any]):
    """A synchronous response stream, tapped; else it is what it wraps."""

    def __init__(self, stream: Any, tap: Tap) -> None:
        super().__init__(stream)
        self._self_tap = tap

    def __iter__(self) -> Iterator[bytes]:
        tap = self._self_tap
        chunks = iter(self.__wrapped__)
        try:
            while True:
                failure: BaseException | None = None
                token = tap.away(blocks=True)
                try:
                    raw = next(chunks, None)
                except RAISED as raised:
                    raw, failure = None, raised
                finally:
                    tap.back(token, blocks=True)
                turn = tap.last(failure) if raw is None else tap.took(raw)
                if turn is not None:
                    turn.wait()
                if failure is not None:
                    raise failure
                if raw is None:
                    break
                yield raw
        except BaseException as error:
            tap.broke(error)
            raise
        tap.ended()

    def close(self) -> None:
        token = self._self_tap.away(blocks=False)
        try:
            self.__wrapped__.close()
        finally:
            self._self_tap.back(token, blocks=False)
            self._self_tap.finish(End.ABANDONED)

    def __del__(self) -> None:
        self._self_tap.finish(End.ABANDONED)


class AsyncTap(wrapt.BaseObjectProxy[Any]):
    """An asynchronous response stream, tapped; else it is what it wraps."""

    def __init__(self, stream: Any, tap: Tap) -> None:
        super().__init__(stream)
        self._self_tap = tap

    async def __aiter__(self) -> AsyncIterator[bytes]:
        tap = self._self_tap
        chunks = self.__wrapped__.__aiter__()
        try:
            while True:
                failure: BaseException | None = None
                token = tap.away(blocks=False)
                try:
                    raw = await anext(chunks, None)
                except RAISED as raised:
                    raw, failure = None, raised
                finally:
                    tap.back(token, blocks=False)
                turn = tap.last(failure) if raw is None else tap.took(raw)
                if turn is not None:
                    await turn.wait_async()
                if failure is not None:
                    raise failure
                if raw is None:
                    break
                yield raw
        except BaseException as error:
            tap.broke(error)
            raise
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
        tap.ended()

    async def aclose(self) -> None:
        token = self._self_tap.away(blocks=False)
        try:
            await self.__wrapped__.aclose()
        finally:
            self._self_tap.back(token, blocks=False)
            self._self_tap.finish(End.ABANDONED)

    def __del__(self) -> None:
        self._self_tap.finish(End.ABANDONED)


class Played:
    """A recorded body, as far as the program has read it.

    Args:
        chunks: the body as it is served, content coding done again; one for each recorded chunk.
    """

    def __init__(self, crossing: Crossing, exchange: Exchange, answer: Answer, chunks: Sequence[bytes]) -> None:
        self._crossing = crossing
        self._exchange = exchange
        self._answer = answer
        self._chunks = chunks
        self._next = 0
        self._over = False

    def turn(self) -> Turn | None:
        """What to wait for before `take`."""
        return None if self._over else self._exchange.chunk_turn(self._next)

    def take(self) -> bytes | None:
        """The next chunk; None at the end. Raises what the recorded reader was given, or a divergence."""
        if self._next < len(self._chunks):
            chunk = self._chunks[self._next]
            self._next += 1
            self._exchange.chunk(chunk)
            return chunk
        if self._cut_short():
            raise self._crossing.past_end()
        self._over = True
        error = None if self._answer.left else self._answer.error
        self.finish(End.ENDED if error is None else End.RAISED, error)
        if error is not None:
            raise error
        return None

    def broke(self, error: BaseException) -> None:
        """Waiting for the turn raised."""
        if self._next >= len(self._chunks) and self._answer.error is not None and not self._answer.left:
            self.finish(End.RAISED, error)

    def finish(self, how: End, error: BaseException | None = None) -> None:
        self._exchange.end(how, error)

    def _cut_short(self) -> bool:
        """Whether the recorded reader stopped where more could have come."""
        return self._answer.left and not is_whole(self._answer)


def is_whole(answer: Answer) -> bool:
    """Whether a body that was left holds all that there was to read."""
    if answer.head is None:
        return False
    if answer.head.status in (204, 304):
        return True
    lengths = [value for name, value in answer.head.headers if name.lower() == _coding.CONTENT_LENGTH]
    if lengths and not _coding.codings(answer.head.headers):
        return lengths[0] == str(sum(map(len, answer.chunks)))
    return _TERMINAL.search(b"".join(answer.chunks)) is not None


class SyncPlayed:
    """A recorded body as a synchronous stream; `Family` joins it to the library's own stream class."""

    def __init__(self, played: Played) -> None:
        self._played = played

    def __iter__(self) -> Iterator[bytes]:
        while True:
            turn = self._played.turn()
            if turn is not None:
                try:
                    turn.wait()
                except BaseException as error:
                    self._played.broke(error)
                    raise
            chunk = self._played.take()
            if chunk is None:
                return
            yield chunk

    def close(self) -> None:
        self._played.finish(End.ABANDONED)


class AsyncPlayed:
    """A recorded body as an asynchronous stream; `Family` joins it to the library's own stream class."""

    def __init__(self, played: Played) -> None:
        self._played = played

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            turn = self._played.turn()
            if turn is not None:
                await turn.wait_async()
            chunk = self._played.take()
            if chunk is None:
                return
            yield chunk

    async def aclose(self) -> None:
        self._played.finish(End.ABANDONED)
