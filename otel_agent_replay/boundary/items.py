"""Calls whose answer is a generator: each item, the end and an error are completions of their own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import session as sessions
from otel_agent_replay.boundary.lanes import LANE, current
from otel_agent_replay.recording.values import Ended, Raised, Returned

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from otel_agent_replay.boundary.session import Call, Crossing, Turn


def cross_items(call: Call, perform: Callable[[], Iterator[object]]) -> Iterator[object]:
    """Go through a boundary that gives items, as far as the program asks for them; not before it asks."""
    lane = current()
    if lane is None or lane.beneath is not None:
        yield from perform()
        return
    crossing = lane.session.open(lane, call)
    yield from _replayed(crossing) if lane.session.replaying else _live(crossing, perform)


async def cross_items_async(call: Call, perform: Callable[[], AsyncIterator[object]]) -> AsyncIterator[object]:
    """The same for an asynchronous generator."""
    lane = current()
    if lane is None or lane.beneath is not None:
        async for item in perform():
            yield item
        return
    crossing = lane.session.open(lane, call)
    async with aclosing(
        _replayed_async(crossing) if lane.session.replaying else _live_async(crossing, perform)
    ) as items:
        async for item in items:
            yield item


def _live(crossing: Crossing, perform: Callable[[], Iterator[object]]) -> Iterator[object]:
    crossing.stream_items()
    crossing.close(Returned(None))
    closing: GeneratorExit | None = None
    source = perform()
    try:
        while True:
            token = LANE.set(crossing.lane)
            try:
                outcome = sessions.attempt(lambda: next(source))
            finally:
                LANE.reset(token)
            turn = crossing.item_turn()
            if turn is not None:
                waited = sessions.attempt(turn.wait)
                outcome = waited if isinstance(waited, Raised) else outcome
            crossing.item(outcome)
            if isinstance(outcome, Ended):
                return
            try:
                yield sessions.settle(outcome)
            except GeneratorExit as left:
                closing = left
                raise
    finally:
        try:
            close = getattr(source, "close", None)
            if close is not None:
                close()
        finally:
            if closing is not None:
                crossing.item(Raised(closing))  # with what the source did when it was closed


async def _live_async(crossing: Crossing, perform: Callable[[], AsyncIterator[object]]) -> AsyncGenerator[object, None]:
    crossing.stream_items()
    crossing.close(Returned(None))
    closing: GeneratorExit | None = None
    source = perform()
    try:
        while True:
            token = LANE.set(crossing.lane)
            try:
                outcome = await sessions.attempt_async(lambda: anext(source))
            finally:
                LANE.reset(token)
            turn = None if sessions.was_cancelled(outcome) else crossing.item_turn()
            if turn is not None:
                waited = await sessions.attempt_async(turn.wait_async)
                outcome = waited if isinstance(waited, Raised) else outcome
            crossing.item(outcome)
            if isinstance(outcome, Ended):
                return
            try:
                yield sessions.settle(outcome)
            except GeneratorExit as left:
                closing = left
                raise
    finally:
        try:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()
        finally:
            if closing is not None:
                crossing.item(Raised(closing))  # with what the source did when it was closed


def _replayed(crossing: Crossing) -> Iterator[object]:
    for step in _recorded(crossing):
        try:
            if isinstance(step, Returned | Raised):
                yield sessions.settle(step)
            else:
                step.wait()
        except GeneratorExit as left:
            crossing.item(Raised(left))
            raise


async def _replayed_async(crossing: Crossing) -> AsyncGenerator[object, None]:
    for step in _recorded(crossing):
        try:
            if isinstance(step, Returned | Raised):
                yield sessions.settle(step)
            else:
                await step.wait_async()
        except (GeneratorExit, asyncio.CancelledError) as left:
            crossing.item(Raised(left))
            raise


def _recorded(crossing: Crossing) -> Iterator[Turn | Returned | Raised]:
    """Give the recorded items, before each what to wait for; past where the recorded reader left is a divergence."""
    for outcome in crossing.recorded_items():
        turn = crossing.item_turn()
        if turn is not None:
            yield turn
        crossing.item(outcome)
        if isinstance(outcome, Ended):
            return
        yield outcome
    turn = crossing.item_turn()
    if turn is not None:
        yield turn
    raise crossing.past_end()
