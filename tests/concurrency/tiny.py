"""A session as small as can be, for tests of lanes and order: it records into lists and answers from them."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

from otel_agent_replay.boundary import lanes, real
from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.boundary.order import FREE, NEVER, Gate, ReplayGate, sleep_turn
from otel_agent_replay.boundary.session import Call, cross, run, run_async, settle, was_cancelled
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass, Position
from otel_agent_replay.recording.values import Kind, Note, Returned

CHANCE = random.SystemRandom()
"""Never the same twice, recorded or replayed."""


class Recorder:
    """Records."""

    replaying = False

    def __init__(self, *, strict: bool = True) -> None:
        self.crossings: list[dict[str, Any]] = []
        self.events: list[tuple[str, str, int, int]] = []
        self.notes: list[str] = []
        self.readings: dict[str, list[Any]] = {}
        self.order = Gate(strict, self.numbered, lambda note: self.notes.append(note.what))
        self.root = Lane(self)

    def numbered(self, lane: str, key: str, ordinal: int, seq: int) -> None:
        self.events.append((lane, key, ordinal, seq))

    def read(self, lane: Lane, source: str, frame: Any, live: Any) -> Any:
        self.readings.setdefault(lane.path, []).append(value := live())
        return value

    def open(self, lane: Lane, call: Call) -> Recorded:
        return Recorded(self, lane, call)

    def note(self, note: Note) -> None:
        self.notes.append(note.what)

    def tape(self) -> dict[str, Any]:
        return {"crossings": self.crossings, "events": self.events, "readings": self.readings}


class Recorded:
    """A crossing being recorded."""

    answer = None

    def __init__(self, session: Recorder, lane: Lane, call: Call) -> None:
        self.session, self.caller, self.key = session, lane, call.key
        self.ordinal = lane.ordinal(call.key)
        self.lane = Lane(session, lane, "call", call.key, self.ordinal)
        if call.wire:
            self.lane.beneath = self
        self.record: dict[str, Any] = {
            "lane": lane.path,
            "key": call.key,
            "ordinal": self.ordinal,
            "value": None,
            "chunks": [],
        }
        session.crossings.append(self.record)

    def turn(self, outcome: Any) -> Any:
        return None if was_cancelled(outcome) else self.session.order.turn(self.caller, self.key, self.ordinal)

    def chunk_turn(self, index: int) -> Any:
        return self.session.order.turn(self.lane, "chunk", index)

    def restored(self, outcome: Any) -> Any:
        return outcome

    def close(self, outcome: Any) -> None:
        if isinstance(outcome, Returned):
            self.record["value"] = outcome.value


class Replayer:
    """Answers."""

    replaying = True

    def __init__(self, tape: dict[str, Any]) -> None:
        self.crossings = {(c["lane"], c["key"], c["ordinal"]): c for c in tape["crossings"]}
        self.places = {(lane, key, ordinal): seq for lane, key, ordinal, seq in tape["events"]}
        self.readings = {lane: iter(values) for lane, values in tape["readings"].items()}
        self.now = 0.0
        self.divergences: list[Divergence] = []
        self.new: list[str] = []
        self.asked: set[tuple[str, str, int]] = set()
        self.stuck = threading.Event()
        self.order = ReplayGate(
            self.due, stuck=self.stuck.set, diverge=self.diverge, departed=lambda: bool(self.divergences)
        )
        self.root = Lane(self)

    def due(self, lane: Lane, key: str, ordinal: int) -> Any:
        where = (lane.path, key, ordinal)
        place = self.places.get(where)
        if place is not None:
            return place
        if where in self.crossings:
            return NEVER
        self.new.append(f"{lane.path} {key} #{ordinal}")
        return FREE

    def diverge(self, divergence: Divergence) -> DivergenceError:
        self.divergences.append(divergence)
        return DivergenceError(divergence)

    def read(self, lane: Lane, source: str, frame: Any, live: Any) -> Any:
        self.now = max(self.now, next(self.readings.get(lane.path, iter(())), self.now + 1e-6))
        return self.now

    def slept(self, lane: Lane, seconds: float) -> None:
        self.now += seconds

    def open(self, lane: Lane, call: Call) -> Replayed:
        where = (lane.path, call.key, lane.ordinal(call.key))
        self.asked.add(where)
        if where not in self.crossings:
            raise self.diverge(Divergence(DivergenceClass.EXHAUSTED, Position(*where), None, "a new call"))
        return Replayed(self, lane, call, self.crossings[where])


class Replayed:
    """A crossing being answered."""

    def __init__(self, session: Replayer, lane: Lane, call: Call, record: dict[str, Any]) -> None:
        self.session, self.caller, self.record = session, lane, record
        self.lane = Lane(session, lane, "call", call.key, record["ordinal"])
        self.answer: Any = None if call.wire else Returned(record["value"])
        if call.wire:
            self.lane.beneath = self

    def turn(self, outcome: Any) -> Any:
        if was_cancelled(outcome):
            return None
        return self.session.order.turn(self.caller, self.record["key"], self.record["ordinal"])

    def chunk_turn(self, index: int) -> Any:
        return self.session.order.turn(self.lane, "chunk", index)

    def restored(self, outcome: Any) -> Any:
        return outcome

    def close(self, outcome: Any) -> None:
        """Nothing to keep."""


def _opened(key: str, *, wire: bool) -> Any:
    lane = lanes.current()
    assert lane is not None
    return lane.session.open(lane, Call(Kind.TOOL, key, wire=wire))


def tool(key: str, *, wire: bool = False, longest: float = 0.01, value: str = "") -> Any:
    """A blocking tool with a latency and a result that nobody can foresee."""
    crossing = _opened(key, wire=wire)

    def live() -> Any:
        real.sleep(CHANCE.random() * longest)
        return crossing.record["value"] if crossing.session.replaying else value or f"{key}={CHANCE.randrange(10**6)}"

    return settle(run(cross(crossing), live))


async def atool(key: str, *, wire: bool = False, longest: float = 0.01, value: str = "") -> Any:
    """The same for a coroutine."""
    crossing = _opened(key, wire=wire)

    async def live() -> Any:
        await pause(CHANCE.random() * longest)
        return crossing.record["value"] if crossing.session.replaying else value or f"{key}={CHANCE.randrange(10**6)}"

    return settle(await run_async(cross(crossing), live))


async def stream(key: str, longest: float = 0.004) -> Any:
    """Gives three chunks, each with a place in the order."""
    crossing = _opened(key, wire=True)

    async def live() -> Any:
        return await pause(CHANCE.random() * longest)

    settle(await run_async(cross(crossing), live))
    for index in range(3):
        await pause(CHANCE.random() * longest)
        if not crossing.session.replaying:
            crossing.record["chunks"].append(f"{key}.{CHANCE.randrange(10**6)}")
        await crossing.chunk_turn(index).wait_async()
        yield crossing.record["chunks"][index]


async def pause(seconds: float) -> None:
    """Pass real time, as the world does: no timer of the program's."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    token = LANE.set(lanes.OUTSIDE)
    try:
        loop.call_later(seconds, lambda: future.done() or future.set_result(None))
    finally:
        LANE.reset(token)
    await future


def sleep(seconds: float) -> None:
    """time.sleep, as the patches of the clock make it."""
    lane = lanes.current()
    turn = None if lane is None else sleep_turn(lane)
    if lane is None or not lane.session.replaying:
        real.sleep(seconds)
    if turn is not None:
        turn.wait()
