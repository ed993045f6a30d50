"""Model clients whose calls run in a given lane, for code that has lost its context.

A client is the SDK's own class, with retries, streams, `with_options` and all. It needs no patch and no key:
a call opens its crossing in the lane it was made for, and its HTTP client hands every request to that
crossing, so that in a replay it answers from the recording and from nowhere else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.lanes import LANE
from otel_agent_replay.instrument import wire
from otel_agent_replay.instrument.libraries import anthropic as anthropic_library
from otel_agent_replay.instrument.libraries import openai as openai_library

if TYPE_CHECKING:
    import openai

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.instrument.wire import Describe

PLACEHOLDER_KEY = "recorded"
"""The API key of a client that is given none; it never leaves the process."""


def openai_client(lane: Lane, **options: Any) -> openai.OpenAI:
    """An `openai.OpenAI` whose calls run in `lane`, or in the caller's own lane of the same session.

    Args:
        lane: where calls without a lane belong.
        options: as for `openai.OpenAI`; an `http_client` of your own is used as it is.
    """
    return _client("openai", "OpenAI", openai_library.describe, lane, options)  # type: ignore[no-any-return]


def async_openai_client(lane: Lane, **options: Any) -> openai.AsyncOpenAI:
    """The same as an `openai.AsyncOpenAI`."""
    return _client("openai", "AsyncOpenAI", openai_library.describe, lane, options)  # type: ignore[no-any-return]


def anthropic_client(lane: Lane, **options: Any) -> Any:
    """An `anthropic.Anthropic` whose calls run in `lane`, or in the caller's own lane of the same session."""
    return _client("anthropic", "Anthropic", anthropic_library.describe, lane, options)


def async_anthropic_client(lane: Lane, **options: Any) -> Any:
    """The same as an `anthropic.AsyncAnthropic`."""
    return _client("anthropic", "AsyncAnthropic", anthropic_library.describe, lane, options)


def _client(library: str, name: str, describe: Describe, lane: Lane, options: dict[str, Any]) -> Any:
    sdk = importlib.import_module(library)
    base = getattr(sdk, name)
    # A subclass, because `with_options` makes further clients of the same class.
    kind = type(name, (base,), {"request": in_lane(wire.marker(describe)(base.request), lane), "__module__": library})
    options.setdefault("api_key", PLACEHOLDER_KEY)
    if "http_client" not in options:
        httpx2 = importlib.import_module("httpx2")
        asynchronous = inspect.iscoroutinefunction(base.request)
        default = sdk.DefaultAsyncHttpxClient if asynchronous else sdk.DefaultHttpxClient
        transport = httpx2.AsyncHTTPTransport() if asynchronous else httpx2.HTTPTransport()
        options["http_client"] = default(transport=wire.WireTransport(transport, "httpx2"))
    return kind(**options)


def in_lane(function: Any, lane: Lane) -> Any:
    """`function`, run in `lane` wherever its caller has no lane of the same session."""

    def entered() -> Lane:
        own = lanes.current()
        return own if own is not None and own.session is lane.session else lane

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            token = LANE.set(entered())
            try:
                return await function(*args, **kwargs)
            finally:
                LANE.reset(token)

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        token = LANE.set(entered())
        try:
            return function(*args, **kwargs)
        finally:
            LANE.reset(token)

    return run
