"""Live spans: what any other OpenTelemetry backend sees of a run, without payload.

A span of the SDK costs some 25 us, which is spent only while something listens: with no span processor (and
with no SDK at all) a crossing gets a span that records nothing, whose context is as valid for whatever is
called beneath it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_agent_replay.recording import names
from otel_agent_replay.recording.frames import crossing_span_kind, run_span_kind
from otel_agent_replay.recording.values import Kind
from otel_agent_replay.telemetry import entropy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import Span, Tracer, TracerProvider

    from otel_agent_replay.recording.values import Attribute, CrossingRecord, RunRecord
    from otel_agent_replay.telemetry.ids import GivenIds

LIVE_KINDS = frozenset({Kind.MODEL, Kind.EMBEDDING, Kind.TOOL, Kind.HTTP, Kind.RETRIEVAL, Kind.DATABASE, Kind.HUMAN})
"""Boundaries whose crossings are spans for others too; a reading of the clock is none."""

_SPAN_KINDS = {1: SpanKind.INTERNAL, 2: SpanKind.SERVER, 3: SpanKind.CLIENT}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_ROOT = Context()


class LiveTracer:
    """Starts the live spans of one run, with the tracer that is current at the time."""

    def __init__(self) -> None:
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None
        self._ids: GivenIds | None = None
        self._listeners: object = None
        self._run = SpanContext(0, 0, is_remote=False)

    @property
    def run_context(self) -> SpanContext:
        """Context of the run's own span."""
        return self._run

    def start_run(self, run: RunRecord) -> Span:
        """The span of a run, with the run's ids. Where an SDK is there it gets one, whoever listens by its end."""
        self._run = SpanContext(run.trace_id, run.span_id, is_remote=False, trace_flags=_SAMPLED)
        tracer = self._current(always=True)
        if tracer is None or self._ids is None:
            return NonRecordingSpan(self._run)
        self._ids.give(run.trace_id, run.span_id)
        try:
            span = tracer.start_span(
                run.name,
                _caller(run),
                kind=_SPAN_KINDS[run_span_kind(run)],
                attributes={names.RUN_SPAN: f"{run.span_id:016x}"},
                start_time=run.started_ns,
            )
        finally:
            self._ids.take_back()
        context = span.get_span_context()
        if (context.trace_id, context.span_id) != (run.trace_id, run.span_id):
            span = NonRecordingSpan(self._run)
        self._run = span.get_span_context()
        return span

    def start(self, record: CrossingRecord) -> Span | None:
        """The span of a crossing, whose ids are set; None where nothing listens.

        It takes the place of the current span if that belongs to the run: the enclosing crossing's, or one
        that the program itself has started beneath it. Else its parent is the enclosing crossing, or the run.
        """
        tracer = self._current()
        if tracer is None:
            record.span_id = entropy.span_id()
            return None
        current = trace.get_current_span().get_span_context()
        if current.trace_id == self._run.trace_id:
            parent, context = current, None
        else:
            parent = self.context_of(record.parent_span_id)
            context = trace.set_span_in_context(NonRecordingSpan(parent), _ROOT)
        span = tracer.start_span(
            record.name or record.position.key,
            context,
            kind=_SPAN_KINDS[crossing_span_kind(record.kind)],
            attributes=record.attributes,
            start_time=record.started_ns,
        )
        found = span.get_span_context()
        if found.trace_id != self._run.trace_id or found.span_id in (0, parent.span_id):
            record.span_id = entropy.span_id()  # a tracer that is switched off hands its parent on
            return None
        record.span_id = found.span_id
        return span

    def context_of(self, span_id: int) -> SpanContext:
        """Context of a span of this run."""
        return SpanContext(self._run.trace_id, span_id, is_remote=False, trace_flags=self._run.trace_flags)

    def _current(self, *, always: bool = False) -> Tracer | None:
        """The tracer, where spans have a listener (`always`: where there is an SDK at all)."""
        provider = trace.get_tracer_provider()
        if provider is not self._provider:
            self._adopt(provider)
        if self._listeners is None:
            return self._tracer
        return self._tracer if always or getattr(self._listeners, "_span_processors", True) else None

    def _adopt(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._ids = None
        self._listeners = getattr(provider, "_active_span_processor", None)
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            self._tracer = None
            return
        self._tracer = provider.get_tracer(names.SCOPE)
        if hasattr(self._tracer, "id_generator"):  # the SDK's; this tracer is ours alone, so is what it draws from
            from otel_agent_replay.telemetry.ids import GIVEN  # noqa: PLC0415 (needs the SDK, which is here then)

            self._ids = self._tracer.id_generator = GIVEN


def _caller(run: RunRecord) -> Context:
    """The context that a run's span starts in: its caller in another service, or none."""
    if not run.parent_span_id:
        return _ROOT
    current = trace.get_current_span().get_span_context()
    if (current.trace_id, current.span_id) == (run.trace_id, run.parent_span_id):
        return otel_context.get_current()
    caller = SpanContext(run.trace_id, run.parent_span_id, is_remote=True, trace_flags=_SAMPLED)
    return trace.set_span_in_context(NonRecordingSpan(caller), _ROOT)


def entering(span: Span) -> Callable[[], Callable[[], None]]:
    """What makes a span current; it gives what undoes that. Both are called in the same context."""

    def enter() -> Callable[[], None]:
        token = otel_context.attach(trace.set_span_in_context(span))
        return lambda: otel_context.detach(token)

    return enter


def describe(span: Span, attributes: Mapping[str, Attribute]) -> None:
    """Add semantic attributes."""
    span.set_attributes(cast("Mapping[str, str]", attributes))


def end(span: Span, ended_ns: int, *, error: str = "") -> None:
    """End a span; `error` is the type of what was raised."""
    if error:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(ended_ns or None)
