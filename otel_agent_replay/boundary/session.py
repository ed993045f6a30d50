"""What a boundary asks, and the two short drivers that carry a crossing out.

What happens at a crossing is decided once, by the generator `cross`; it does no input or output. It yields
the steps that need some, and a synchronous or an asynchronous driver performs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

from otel_agent_replay.boundary.handlers import raised_by
from otel_agent_replay.boundary.lanes import LANE, Lane
from otel_agent_replay.recording.values import Attribute, Ended, Kind, Outcome, Raised, Returned

if TYPE_CHECKING:
    from types import FrameType

    from otel_agent_replay.boundary.draws import Draws
    from otel_agent_replay.recording.values import End, Json, Note, WireHead, WireRequest

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """A call through a boundary, as the program makes it."""

    kind: Kind
    key: str
    """What the boundary is called, such as ``tool:search_policy``; never holds data."""
    input: object = None
    """What it was called with; the session encodes it."""
    lent: object = None
    """What the call may change, to be looked at again when it has ended; None for nothing."""
    wrapping: int = -1
    """Levels of `lent` below the top that nobody but us knows."""
    wire: bool = False
    """Answered at the wire: the code beneath runs in a replay too, and its HTTP attempts are served."""
    name: str = ""
    """Span name; the key where empty."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """Semantic attributes known before the call."""
    types: tuple[type, ...] = ()
    """Classes that a recorded value may come back as."""
    allowed: Mapping[str, type] | None = None
    """The same by name (`codec.ref`), looked up when asked for; it includes `types` then."""
    otherwise: Callable[[], Outcome | None] | None = None
    """In a replay whose recording has no such call: the outcome, where it is known without the world; None for not."""


class Turn(Protocol):
    """A completion that waits for its place in the order that the program observes."""

    def wait(self) -> None:
        """Block this thread until it is its turn. Raises DivergenceError where that can never be."""

    async def wait_async(self) -> None:
        """The same for a coroutine; may raise CancelledError as any await may."""


class Exchange(Protocol):
    """One HTTP attempt beneath a wire crossing."""

    answer: Answer | None
    """What to serve instead of going live; None while recording."""

    def head(self, head: WireHead) -> None:
        """Recording: the response has begun."""

    def chunk(self, data: bytes) -> None:
        """This much of the body came: recording, from the transport, content coding undone; replaying, as served."""

    def end(self, how: End, error: BaseException | None = None) -> None:
        """The body is finished, left or broken, or no response came. Later calls change nothing.

        `error` is what it broke with; with ABANDONED, the cancellation that came while a chunk was waited for.
        May be called by the garbage collector, in any thread.
        """

    def chunk_turn(self, index: int) -> Turn | None:
        """What to wait for before chunk `index` is handed on; None for nothing.

        Replaying, a reader that goes past the last chunk of a body that was left asks for the turn of the
        chunk that never came; the recorded reader may have been cancelled while it waited for it.
        """


@dataclass(slots=True)
class Answer:
    """A recorded response to serve."""

    head: WireHead | None
    """None where no response came: `error` is to be raised."""
    chunks: list[bytes]
    error: BaseException | None
    """Raised after the last chunk, or instead of a response."""
    left: bool = False
    """The recorded reader stopped before the end: reading on is a divergence, which `past_end` raises."""
    parked: Turn | None = None
    """To be waited for before anything else: the recorded caller was cancelled before a response came, or the handler
    of a signal raised, so this is never granted and ends only with that."""


class Crossing(Protocol):
    """One call through a boundary, while it lasts."""

    answer: Outcome | None
    """The recorded outcome; None where the call is to be performed."""

    @property
    def lane(self) -> Lane:
        """The lane of the code beneath; its name is the call's key."""

    def attempt(self, request: WireRequest) -> Exchange:
        """A wire crossing sends this. Raises DivergenceError where the recording has no such request."""

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """Add semantic attributes, payload-free, learned from the response."""

    def turn(self, outcome: Outcome) -> Turn | None:
        """What to wait for before the program sees `outcome`; None for nothing."""

    def interrupted(self, outcome: Outcome, error: BaseException) -> tuple[Outcome, Turn | None]:
        """While `outcome` waited for its turn, the handler of a signal raised `error`.

        Gives what the program is to see, and what that has to wait for; None for nothing.
        """

    def pause(self) -> Turn | None:
        """Replaying: what a sleep of the code beneath has to wait for, as a signal ended it; None for nothing."""

    def restored(self, outcome: Outcome) -> Outcome:
        """Replaying: what the call changed of what it was handed is put back now. Gives what the program is to see.

        Raises DivergenceError where it cannot be put back.
        """

    def close(self, outcome: Outcome) -> None:
        """The program sees `outcome` now. A stream of a wire crossing may still be open."""

    def item_turn(self) -> Turn | None:
        """What to wait for before the program is given the next item, the end or the error of a generator."""

    def item(self, outcome: Outcome) -> None:
        """A generator behind this crossing gave an item, ended, raised, or was left."""

    def stream_items(self) -> None:
        """What this crossing returns is a generator: `close` does not end it, the last `item` does."""

    def recorded_items(self) -> list[Outcome]:
        """Replaying: what the generator gave, its end or error last."""

    def past_end(self) -> BaseException:
        """The divergence of reading a stream past the point where the recorded reader left it."""


class Session(Protocol):
    """Decides what happens at each boundary: record it, or answer it."""

    replaying: bool
    captured: frozenset[str]
    """What this run captures beside calls: ``process``, ``filesystem``, ``human``, ``machine``, ``environment``. A
    run that was recorded by an earlier version captured none of it: then a replay leaves all of it to the machine, as
    it did then."""

    apart: bool
    """Whether it answers a part of a process that goes on beside it: then the environment of that process is the
    world's, whoever has set it."""

    @property
    def world(self) -> Mapping[str, Json]:
        """What the run found around it; see `telemetry.world`."""

    @property
    def order(self) -> Order:
        """The order of this run's completions."""

    def open(self, lane: Lane, call: Call) -> Crossing:
        """Begin a crossing. Raises DivergenceError where it can have no answer."""

    def read(self, lane: Lane, source: str, frame: FrameType, real: Callable[[], T]) -> T:
        """A cheap reading of the world (clock, entropy, pid), made by the code in `frame`.

        `source` names what is read, such as ``clock:time.time``; the value is an int, float, str or bytes.
        """

    def seeded(self, lane: Lane, frame: FrameType) -> Draws:
        """The code in `frame` has seeded a generator: how its draws are kept from now on."""

    def environment(self, name: str, value: str | None) -> str | None:
        """An environment variable is read: what the program is to get. `value` is what is really there."""

    def slept(self, lane: Lane, seconds: float) -> None:
        """Replaying: let the virtual clock of this lane pass over a sleep that took no time."""

    def interrupted(self, lane: Lane, place: int) -> None:
        """The handler of the signal in this place of the order has raised into what runs in `lane`."""

    def declare(self, values: dict[str, Json]) -> None:
        """Add to the declared outcome of the run."""

    def note(self, note: Note) -> None:
        """Add a line to the capture manifest."""


class Order(Protocol):
    """The order in which completions reach the program. Implemented in `boundary.order`."""

    def turn(self, lane: Lane, key: str, ordinal: int) -> Turn | None:
        """What a completion of this lane, key and ordinal has to wait for."""

    def away(self, lane: Lane, *, blocks: bool) -> None:
        """A call is being performed in `lane`; `blocks` its thread, so that nobody need wait for it."""

    def back(self, lane: Lane, *, blocks: bool) -> None:
        """The call that `away` told of has ended."""


@dataclass(frozen=True, slots=True)
class Perform:
    """Step: carry out the call, in this lane."""

    lane: Lane


Step: TypeAlias = Perform | Turn
Script: TypeAlias = Generator[Step, Outcome, Outcome]


def captured(world: Mapping[str, Json]) -> frozenset[str]:
    """What a run captures beside calls, as its world says."""
    named = world.get("captured")
    return frozenset(str(one) for one in named) if isinstance(named, list) else frozenset()


def cross(crossing: Crossing) -> Script:
    """One crossing, decided once for both colours."""
    outcome = crossing.answer
    if outcome is None:
        outcome = yield Perform(crossing.lane)
    turn = crossing.turn(outcome)
    while turn is not None:
        waited = yield turn
        turn = None
        if isinstance(waited, Raised):
            if raised_by(waited.error) is None:
                outcome = waited
            else:
                outcome, turn = crossing.interrupted(outcome, waited.error)
    outcome = crossing.restored(outcome)
    crossing.close(outcome)
    return outcome


def run(script: Script, perform: Callable[[], object]) -> Outcome:
    """Drive a script with a synchronous call."""
    try:
        step = next(script)
        while True:
            if isinstance(step, Perform):
                token = LANE.set(step.lane)
                leave = step.lane.enter() if step.lane.enter is not None else None
                order = getattr(step.lane.session, "order", None)
                if order is not None:
                    order.away(step.lane, blocks=True)
                try:
                    outcome = attempt(perform)
                finally:
                    if order is not None:
                        order.back(step.lane, blocks=True)
                    LANE.reset(token)
                    if leave is not None:
                        leave()
            else:
                outcome = attempt(step.wait)
            step = script.send(outcome)
    except StopIteration as finished:
        return cast("Outcome", finished.value)


async def run_async(script: Script, perform: Callable[[], Awaitable[object]]) -> Outcome:
    """Drive a script with an awaitable call."""
    try:
        step = next(script)
        while True:
            if isinstance(step, Perform):
                token = LANE.set(step.lane)
                leave = step.lane.enter() if step.lane.enter is not None else None
                order = getattr(step.lane.session, "order", None)
                if order is not None:
                    order.away(step.lane, blocks=False)
                try:
                    outcome = await attempt_async(perform)
                finally:
                    if order is not None:
                        order.back(step.lane, blocks=False)
                    LANE.reset(token)
                    if leave is not None:
                        leave()
            else:
                outcome = await attempt_async(step.wait_async)
            step = script.send(outcome)
    except StopIteration as finished:
        return cast("Outcome", finished.value)


def attempt(perform: Callable[[], object]) -> Outcome:
    """Call, and turn whatever happens into a value. Everything is caught: `settle` raises it again."""
    try:
        return Returned(perform())
    except StopIteration:
        return Ended()
    except BaseException as error:  # noqa: BLE001 (an outcome is a value)
        return Raised(error)


async def attempt_async(perform: Callable[[], Awaitable[object]]) -> Outcome:
    """The same for an awaitable; a cancellation is an outcome too."""
    try:
        return Returned(await perform())
    except StopAsyncIteration:
        return Ended()
    except BaseException as error:  # noqa: BLE001 (an outcome is a value)
        return Raised(error)


def settle(outcome: Outcome, end: type[Exception] = StopIteration) -> object:
    """Return or raise, as the outcome says."""
    if isinstance(outcome, Returned):
        return outcome.value
    if isinstance(outcome, Raised):
        try:
            raise outcome.error
        finally:
            del outcome  # no reference cycle through the traceback
    raise end


def was_cancelled(outcome: Outcome) -> bool:
    """Whether the caller was cancelled while the call lasted."""
    return isinstance(outcome, Raised) and isinstance(outcome.error, asyncio.CancelledError)
