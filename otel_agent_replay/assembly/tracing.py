"""The OpenTelemetry SDK in a replay, for a program that asks for it.

A recorded program has had a provider whose spans record, with the run's trace id: it may have added processors to it,
or shown the ids of its spans. A replay has one too. It exports nothing by itself, what the program lets it export is
refused as all telemetry is, and it is only loaded when the program asks for it.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, cast

import wrapt
from opentelemetry import trace

from otel_agent_replay.boundary.lanes import LANE, OUTSIDE

if TYPE_CHECKING:
    from types import ModuleType

    from opentelemetry.sdk.trace import TracerProvider


def install() -> None:
    """Give this process its provider."""
    trace.set_tracer_provider(cast("TracerProvider", wrapt.LazyObjectProxy(_outside)))
    wrapt.register_post_import_hook(lambda _: _ids().place_all(), "opentelemetry.sdk.trace.id_generator")


def _outside() -> TracerProvider:
    """The provider, made without a trace in the run: its threads and readings are not the program's."""
    context = copy_context()
    context.run(LANE.set, OUTSIDE)
    return context.run(_provider)


def _provider() -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 (25 ms, which few replays need)

    return TracerProvider(id_generator=_ids().EntropyIdGenerator())


def _ids() -> ModuleType:
    from otel_agent_replay.telemetry import ids  # noqa: PLC0415 (it loads the SDK)

    return ids
