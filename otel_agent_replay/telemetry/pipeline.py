"""What other instrumentations send through our SDK is masked too: spans when they end, log records when they come.

The provider's own list of processors is replaced by one that masks first, so that processors which the program adds
later get masked spans as well. They see a span as it is while it lasts; an exporter only sees ended ones.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry._logs import get_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs._internal import SynchronousMultiLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.trace import Link, Status

from otel_agent_replay.boundary.shield import fault

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadWriteLogRecord

    from otel_agent_replay.recording.masking import Masker


def install(masker: Masker) -> None:
    """Mask what leaves through the providers of this process, whoever set them up."""
    masking = _Masking(masker)
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider) and type(provider._active_span_processor) is SynchronousMultiSpanProcessor:  # noqa: SLF001
        spans = _Spans(masking)
        spans._span_processors = provider._active_span_processor._span_processors  # noqa: SLF001 (no public way)
        provider._active_span_processor = spans  # noqa: SLF001
    logger_provider: Any = get_logger_provider()
    if isinstance(logger_provider, LoggerProvider):
        before = logger_provider._multi_log_record_processor  # noqa: SLF001
        if type(before) is SynchronousMultiLogRecordProcessor:
            records = _Records(masking)
            records._log_record_processors = before._log_record_processors  # noqa: SLF001
            logger_provider._multi_log_record_processor = records  # noqa: SLF001
            for logger in list(getattr(logger_provider, "_active_loggers", ())):
                logger._multi_log_record_processor = records  # noqa: SLF001 (made before this)


class _Masking:
    """Masks what the SDK's objects hold; each is given back as it is where nothing is masked."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._resources: dict[int, tuple[Resource, Resource]] = {}

    def span(self, span: ReadableSpan) -> ReadableSpan:
        masker = self._masker
        attributes = masker.attributes(span.attributes or {})
        events = [self._event(event) for event in span.events]
        links = [self._link(link) for link in span.links]
        name = masker.text(span.name)
        description = span.status.description
        status = span.status
        if description and (masked := masker.text(description)) != description:
            status = Status(status.status_code, masked)
        resource = self.resource(span.resource)
        if (
            attributes is None
            and name == span.name
            and status is span.status
            and resource is span.resource
            and all(one is other for one, other in zip(events, span.events, strict=True))
            and all(one is other for one, other in zip(links, span.links, strict=True))
        ):
            return span
        return _Masked(
            name=name,
            context=span.get_span_context(),
            parent=span.parent,
            resource=resource,
            attributes=span.attributes if attributes is None else attributes,
            events=events,
            links=links,
            kind=span.kind,
            status=status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        ).with_counts_of(span)

    def record(self, record: ReadWriteLogRecord) -> ReadWriteLogRecord:
        """A log record with masked parts; a new one, as the program may hold the other."""
        masker, held = self._masker, record.log_record
        body = masker.attribute("", held.body)
        attributes = masker.attributes(held.attributes or {})
        resource = record.resource if record.resource is None else self.resource(record.resource)
        if body is held.body and attributes is None and resource is record.resource:
            return record
        made = copy(record)
        made.log_record = copy(held)
        made.log_record.body = body
        if attributes is not None:
            made.log_record.attributes = attributes
        made.resource = resource
        return made

    def resource(self, resource: Resource) -> Resource:
        known = self._resources.get(id(resource))
        if known is not None and known[0] is resource:
            return known[1]
        attributes = self._masker.attributes(resource.attributes)
        made = resource if attributes is None else Resource(attributes, resource.schema_url)
        if len(self._resources) > 100:
            self._resources.clear()
        self._resources[id(resource)] = (resource, made)
        return made

    def _event(self, event: Event) -> Event:
        attributes = self._masker.attributes(event.attributes or {})
        name = self._masker.text(event.name)
        if attributes is None and name == event.name:
            return event
        return Event(name, event.attributes if attributes is None else attributes, event.timestamp)

    def _link(self, link: Link) -> Link:
        attributes = self._masker.attributes(link.attributes or {})
        return link if attributes is None else Link(link.context, attributes)


class _Masked(ReadableSpan):
    """A span with masked parts, and the counts of what the SDK had dropped of it."""

    _dropped = (0, 0, 0)

    def with_counts_of(self, span: ReadableSpan) -> _Masked:
        self._dropped = (span.dropped_attributes, span.dropped_events, span.dropped_links)
        return self

    @property
    def dropped_attributes(self) -> int:
        return self._dropped[0]

    @property
    def dropped_events(self) -> int:
        return self._dropped[1]

    @property
    def dropped_links(self) -> int:
        return self._dropped[2]


class _Spans(SynchronousMultiSpanProcessor):
    """The processors of a provider, each given masked spans."""

    def __init__(self, masking: _Masking) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._masking = masking

    def on_end(self, span: ReadableSpan) -> None:
        if not self._span_processors:
            return
        try:
            masked = self._masking.span(span)
        except Exception as error:  # noqa: BLE001 (what cannot be masked does not leave)
            fault("masking a span", error)
            return
        super().on_end(masked)


class _Records(SynchronousMultiLogRecordProcessor):
    """The processors of a logger provider, each given masked records."""

    def __init__(self, masking: _Masking) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._masking = masking

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        if not self._log_record_processors:
            return
        try:
            masked = self._masking.record(log_record)
        except Exception as error:  # noqa: BLE001 (what cannot be masked does not leave)
            fault("masking a log record", error)
            return
        super().on_emit(masked)
