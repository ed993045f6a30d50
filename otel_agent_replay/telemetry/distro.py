"""What `opentelemetry-instrument` loads first: our distro, and the configurator that sets the SDK up.

Without an endpoint nothing looks for a collector: an exporter that nobody asked for would print errors on every
laptop and hold up the end of the program. With one, traces go there; metrics and logs only where they are asked for.
"""

from __future__ import annotations

import os
from logging import getLogger
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.environment_variables import (
    OTEL_LOGS_EXPORTER,
    OTEL_METRICS_EXPORTER,
    OTEL_PYTHON_ID_GENERATOR,
    OTEL_TRACES_EXPORTER,
)
from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]  # a file without types
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.environment_variables import (
    OTEL_CONFIG_FILE,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from otel_agent_replay.telemetry.ids import EntropyIdGenerator, place_all

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_logger = getLogger("otel_agent_replay")

_SIGNALS = (
    (OTEL_TRACES_EXPORTER, (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)),
    (OTEL_METRICS_EXPORTER, (OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,)),
    (OTEL_LOGS_EXPORTER, (OTEL_EXPORTER_OTLP_LOGS_ENDPOINT,)),
)
"""For each signal, which variable names its exporter, and which endpoints ask for it."""


def choose_exporters(environ: MutableMapping[str, str]) -> None:
    """Name an exporter for each signal that the user has named none for: OTLP where an endpoint asks, else none."""
    for exporter, endpoints in _SIGNALS:
        asked = any(environ.get(endpoint) for endpoint in endpoints)
        environ.setdefault(exporter, "otlp" if asked else "none")


class ReplayDistro(BaseDistro):  # type: ignore[misc]
    """Settles the exporters; the configurator does the rest."""

    def _configure(self, **kwargs: Any) -> None:
        choose_exporters(os.environ)


class ReplayConfigurator(_OTelSDKConfigurator):
    """Sets the SDK up as usual, but with ids from entropy of our own.

    A setting that the SDK cannot follow (an exporter that is not installed, say) is logged, and everything but
    exporting goes on: it must not cost the recording, nor the instrumentation of the program.
    """

    def _configure(self, **kwargs: Any) -> None:
        place_all()
        choose_exporters(os.environ)  # another distro may have been chosen beside this configurator
        if OTEL_PYTHON_ID_GENERATOR not in os.environ and not os.environ.get(OTEL_CONFIG_FILE):
            kwargs.setdefault("id_generator", EntropyIdGenerator())
        try:
            super()._configure(**kwargs)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 (said in full, and the program is recorded nevertheless)
            _logger.error("OpenTelemetry could not be set up, so nothing is exported: %s", error)
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            provider = TracerProvider(id_generator=EntropyIdGenerator())
            trace.set_tracer_provider(provider)
        elif OTEL_PYTHON_ID_GENERATOR not in os.environ:
            _without_global_random(provider)


def _without_global_random(provider: object) -> None:
    """Where a configuration file has set the provider up: its ids must not come from the program's `random`."""
    if isinstance(provider, TracerProvider) and type(provider.id_generator) is RandomIdGenerator:
        provider.id_generator = EntropyIdGenerator()  # type: ignore[assignment]  # inferred too narrowly there
