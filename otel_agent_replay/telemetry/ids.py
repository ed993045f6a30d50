"""The id generator that the SDK is given."""

from __future__ import annotations

import threading

from opentelemetry.sdk.trace.id_generator import IdGenerator

from otel_agent_replay.boundary import lanes
from otel_agent_replay.telemetry import entropy


class EntropyIdGenerator(IdGenerator):
    """Ids from the system's entropy.

    The SDK's own generator draws from the global `random`: it would shift what a program that seeds it draws.
    """

    def generate_span_id(self) -> int:
        """64 random bits, never 0."""
        return entropy.span_id()

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
