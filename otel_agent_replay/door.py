"""The public door: what is not patched is one line.

@boundary("tool", "search_policy")
def search_policy(question: str) -> str: ...

price = boundary("database", "prices.get", {"sku": sku}).call(prices.get, sku)

with boundary("human", "approve", {"order": order}) as crossing:
    crossing.value = crossing.recorded if crossing.answered else ask_a_person(order)

@run("refund-agent")
async def handle(ticket): ...

outcome(status="refunded", amount=12)

with replay(run_id) as replayed:
    my_agent()
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from otel_agent_replay.boundary import runs
from otel_agent_replay.boundary import session as sessions
from otel_agent_replay.boundary.items import cross_items, cross_items_async
from otel_agent_replay.boundary.lanes import LANE, current
from otel_agent_replay.boundary.session import Call, Crossing
from otel_agent_replay.recording import codec
from otel_agent_replay.recording.changed import OWN
from otel_agent_replay.recording.trees import is_value
from otel_agent_replay.recording.values import Kind, Raised, Returned

if TYPE_CHECKING:
    from types import TracebackType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.values import Outcome

F = TypeVar("F", bound=Callable[..., Any])

_NOT_GIVEN = object()


class Boundary:
    """A place where a run takes in a value that it could not have predicted; see `boundary`.

    As a decorator its input is what the function is called with; a method's `self` is left out.
    """

    def __init__(self, kind: str, key: str, input: object = _NOT_GIVEN, types: tuple[type, ...] = ()) -> None:
        try:
            self._kind = Kind(kind)
        except ValueError:
            raise ValueError(f"{kind!r} is no kind of boundary; use one of {', '.join(Kind)}.") from None
        self._key = f"{kind}:{key}"
        self._input = None if input is _NOT_GIVEN else input
        self._types = types
        self._crossing: Crossing | None = None
        self._lane: Lane | None = None
        self._token: Any = None
        self._leave: Callable[[], None] | None = None
        self._value: object = None
        self.answered = False
        """As a context manager: whether the recording gave a value, so that the body is not to make the call."""
        self.recorded: object = None
        """As a context manager: the recorded value, where `answered`."""

    def __call__(self, function: F) -> F:
        """Decorate a function, a coroutine function, a generator or an asynchronous generator."""
        allowed = codec.allowed_from(function, self._types)
        signature = inspect.signature(function)
        first = next(iter(signature.parameters), "")
        bound_to_self, has_self = first in ("self", "cls"), first == "self"

        def call(args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
            given = args[1:] if bound_to_self else args
            asked = {"args": list(given), "kwargs": kwargs}
            lent = _lent(asked, args[:1] if has_self else ())
            return Call(self._kind, self._key, asked, lent=lent, wrapping=1, allowed=allowed)

        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            def items_async(*args: Any, **kwargs: Any) -> Any:
                return cross_items_async(call(args, kwargs), lambda: function(*args, **kwargs))

            return cast("F", items_async)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def items(*args: Any, **kwargs: Any) -> Any:
                return cross_items(call(args, kwargs), lambda: function(*args, **kwargs))

            return cast("F", items)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def crossed_async(*args: Any, **kwargs: Any) -> Any:
                return await _cross_async(call(args, kwargs), lambda: function(*args, **kwargs))

            return cast("F", crossed_async)

        @functools.wraps(function)
        def crossed(*args: Any, **kwargs: Any) -> Any:
            return _cross(call(args, kwargs), lambda: function(*args, **kwargs))

        return cast("F", crossed)

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make one call through this boundary; awaitable where `function` is a coroutine function.

        The input is the boundary's own, where it was given one, else the arguments.
        """
        handed = {"args": list(args), "kwargs": kwargs}
        given = handed if self._input is None else self._input
        lent = _lent(handed, (function.__self__,) if inspect.ismethod(function) else ())
        if given is not handed and not is_value(given):
            lent = {**(handed if lent is None else lent), "input": [given]}
        allowed = codec.allowed_from(function, self._types)
        call = Call(self._kind, self._key, given, lent=lent, wrapping=1, allowed=allowed)
        if inspect.iscoroutinefunction(function):
            return _cross_async(call, lambda: function(*args, **kwargs))
        return _cross(call, lambda: function(*args, **kwargs))

    @property
    def value(self) -> object:
        """As a context manager: what the call gave; set it before the body ends."""
        return self._value

    @value.setter
    def value(self, value: object) -> None:
        self._value = value

    def __enter__(self) -> Self:
        lane = current()
        if lane is None or lane.beneath is not None:
            return self
        call = Call(self._kind, self._key, self._input, lent=self._input, types=self._types)
        self._crossing = lane.session.open(lane, call)
        answer = self._crossing.answer
        if isinstance(answer, Raised):
            self._end(answer)
            raise answer.error
        if isinstance(answer, Returned):
            self.answered, self.recorded, self._value = True, answer.value, answer.value
        self._token = LANE.set(self._crossing.lane)
        self._leave = self._crossing.lane.enter() if self._crossing.lane.enter is not None else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._crossing is not None:
            LANE.reset(self._token)
            if self._leave is not None:
                self._leave()
            self._end(Returned(self._value) if error is None else Raised(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        crossing, self._crossing = self._crossing, None
        if crossing is None:
            return
        LANE.reset(self._token)
        if self._leave is not None:
            self._leave()
        outcome: Outcome = Returned(self._value) if error is None else Raised(error)
        turn = crossing.turn(outcome)
        if turn is not None:
            await turn.wait_async()
        self._close(crossing, outcome)

    def _end(self, outcome: Outcome) -> None:
        crossing, self._crossing = self._crossing, None
        if crossing is not None:
            turn = crossing.turn(outcome)
            if turn is not None:
                turn.wait()
            self._close(crossing, outcome)

    def _close(self, crossing: Crossing, outcome: Outcome) -> None:
        outcome = crossing.restored(outcome)
        if isinstance(outcome, Returned):
            self._value = outcome.value
        crossing.close(outcome)


def boundary(
    kind: str,
    key: str,
    input: object = _NOT_GIVEN,
    *,
    types: tuple[type, ...] = (),
) -> Boundary:
    """A boundary of the program's own: a decorator, a context manager, or `.call(function, *args)`.

    Args:
        kind: model, tool, retrieval, embedding, http, database, clock, random, process, filesystem,
            environment or human.
        key: what it is called, such as ``search_policy``; never data.
        input: what it is asked with, where that is not the arguments of a function; plain data, dates,
            dataclasses, pydantic models, numpy arrays and so on.
        types: classes that a recorded value may come back as, beside those that the function's module,
            annotations and closure name. Any other class comes back as plain data.

    Raises:
        ValueError: `kind` is none of the above.
        DivergenceError: in a replay, where the recording has no such call.
    """
    return Boundary(kind, key, input, types)


def _lent(asked: dict[str, Any], owner: tuple[object, ...]) -> dict[str, Any] | None:
    """What a function may change: its arguments, and the object whose method it is. None where all are mere values."""
    if owner and not isinstance(owner[0], type | ModuleType):
        return {**asked, OWN: list(owner)}
    return None if all(map(is_value, [*asked["args"], *asked["kwargs"].values()])) else asked


def _cross(call: Call, perform: Callable[[], object]) -> object:
    lane = current()
    if lane is None or lane.beneath is not None:
        return perform()
    script = sessions.cross(lane.session.open(lane, call))
    return sessions.settle(sessions.run(script, perform))


async def _cross_async(call: Call, perform: Callable[[], Awaitable[object]]) -> object:
    lane = current()
    if lane is None or lane.beneath is not None:
        return await perform()
    script = sessions.cross(lane.session.open(lane, call))
    return sessions.settle(await sessions.run_async(script, perform))


class Run:
    """An execution of one entry; see `run`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._scope: Any = None

    def __call__(self, function: F) -> F:
        """Mark a function or coroutine function: each call of it is a run, with its arguments as its input."""
        where: dict[str, Any] = {"kind": "function", "module": function.__module__, "qualname": function.__qualname__}
        if function.__module__ == "__main__":
            where["file"] = str(getattr(sys.modules["__main__"], "__file__", ""))

        def entry(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
            return {**where, "input": codec.encode({"args": list(args), "kwargs": kwargs}, strict=False)}

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def ran_async(*args: Any, **kwargs: Any) -> Any:
                with runs.begun(self._name, entry(args, kwargs)):
                    return await function(*args, **kwargs)

            return cast("F", ran_async)

        @functools.wraps(function)
        def ran(*args: Any, **kwargs: Any) -> Any:
            with runs.begun(self._name, entry(args, kwargs)):
                return function(*args, **kwargs)

        return cast("F", ran)

    def __enter__(self) -> Self:
        self._scope = runs.begun(self._name, {"kind": "block"})
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.__exit__(kind, error, trace)


def run(name: str) -> Run:
    """One run: a decorator for the function that is its entry, or a context manager around a block.

    A run has a trace id of its own and its own lanes; several at once never mix. A decorated function can be
    replayed by itself, with its recorded arguments; a block only with the process that it ran in.
    """
    return Run(name)


def outcome(**values: object) -> None:
    """Declare how this run ended, in the words of the task; compared in a replay in place of standard output."""
    lane = current()
    if lane is not None:
        lane.session.declare({name: codec.encode(value, strict=False) for name, value in values.items()})


def asgi(application: Any) -> Any:
    """Wrap an ASGI 3 application: each HTTP request that it serves is a run.

    Needed only where neither the server nor the framework is one that is known (uvicorn; Starlette, FastAPI).
    """
    from otel_agent_replay.instrument.libraries.asgi import serve  # noqa: PLC0415 (only where asked for)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await serve(application, scope, receive, send)

    return served


def wsgi(application: Any) -> Any:
    """Wrap a WSGI application: each request that it serves is a run.

    Needed only where neither the server nor the framework is one that is known (wsgiref; Flask).
    """
    from otel_agent_replay.instrument.libraries.wsgi import serve  # noqa: PLC0415 (only where asked for)

    def served(environ: Any, start_response: Any) -> Any:
        return serve(application, environ, start_response)

    return served
