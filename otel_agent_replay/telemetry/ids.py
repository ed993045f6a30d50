"""The id generator that the SDK is given.

A program may show the ids of its own spans, in an answer, a log or a link. They are made from where in the run the
span is started, so that a replay of the run, which knows no span of the recording, gives the same ones.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import lru_cache, wraps
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from otel_agent_replay.boundary import lanes
from otel_agent_replay.recording.tracebacks import INSTRUMENTATIONS
from otel_agent_replay.telemetry import entropy

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_WHOSE: Final = (
    *((folder, "instrumentation") for folder in INSTRUMENTATIONS),
    (f"{os.sep}opentelemetry{os.sep}", "api"),
    (f"{os.sep}contextlib.py", "api"),
)
"""Whose code it is, by what its file's path holds; the first that fits. Else it is whoever starts the span."""


class EntropyIdGenerator(IdGenerator):
    """Ids from the system's entropy, but for spans that a run's program starts itself.

    The SDK's own generator draws from the global `random`: it would shift what a program that seeds it draws.
    """

    def generate_span_id(self) -> int:
        """64 bits, never 0: random ones, or in a run those of the place where the program starts the span."""
        return _placed("span", 8, sys._getframe(1)) or entropy.span_id()  # noqa: SLF001 (its public name)

    def generate_trace_id(self) -> int:
        """The trace id of the run that the calling code belongs to, else a new one.

        The SDK asks only where a span has no parent; in a thread or a pool that took no context along, such a
        span still belongs to the run's trace.
        """
        lane = lanes.current()
        running = getattr(lane.session, "trace_id", 0) if lane is not None else 0
        return running if isinstance(running, int) and running else entropy.trace_id()

    def new_trace_id(self) -> int:
        """128 random bits, never 0, for a run that begins."""
        return entropy.trace_id()

    def is_trace_id_random(self) -> bool:
        return True


class GivenIds(EntropyIdGenerator):
    """The same, but the next span of this thread can be given its ids: a run's, which are known before its span is."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, trace_id: int, span_id: int) -> None:
        """Ids of the next span that this thread starts."""
        self._given.trace_id = trace_id
        self._given.span_id = span_id

    def take_back(self) -> None:
        """Forget ids that no span took."""
        self._given.__dict__.clear()

    def generate_span_id(self) -> int:
        given: int = self._given.__dict__.pop("span_id", 0)
        return given or super().generate_span_id()

    def generate_trace_id(self) -> int:
        given: int = self._given.__dict__.pop("trace_id", 0)
        return given or super().generate_trace_id()


GIVEN = GivenIds()
"""What the tracer of our own spans draws from; every run of the process has the same tracer."""


def place_all() -> None:
    """Place the ids of a provider that the program makes for itself too, which has the SDK's own generator."""
    for what, size in (("span", 8), ("trace", 16)):
        name = f"generate_{what}_id"
        original = vars(RandomIdGenerator)[name]
        if not hasattr(original, "__wrapped__"):
            setattr(RandomIdGenerator, name, _placing(original, what, size))


def _placing(original: Callable[[RandomIdGenerator], int], what: str, size: int) -> Callable[[RandomIdGenerator], int]:
    @wraps(original)
    def generate(self: RandomIdGenerator) -> int:
        return _placed(what, size, sys._getframe(1)) or original(self)  # noqa: SLF001 (its public name)

    return generate


def _placed(what: str, size: int, frame: FrameType | None) -> int:
    """An id by the run, the lane and how many this function has had there; 0 where the program does not start the span.

    Other instrumentations are not loaded in a replay: what they start is not counted.
    """
    lane = lanes.current()
    run_id = getattr(lane.session, "run_id", "") if lane is not None else ""
    if lane is None or not run_id:
        return 0
    while frame is not None:
        whose = _whose(frame.f_code.co_filename)
        if whose == "instrumentation":
            return 0
        if whose != "api":
            site = f"{what} {frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}"
            place = f"{run_id} {lane.path} {site} {lane.ordinal(site)}"
            return int.from_bytes(blake2b(place.encode("utf-8", "surrogatepass"), digest_size=size).digest())
        frame = frame.f_back
    return 0


@lru_cache(1024)
def _whose(filename: str) -> str:
    return next((whose for folder, whose in _WHOSE if folder in filename), "")
