"""The resource of this process: what OpenTelemetry calls the thing that telemetry comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Json


def attributes(*, forked: bool = False) -> dict[str, Json]:
    """Those of the SDK's resource; where there is no SDK, of the one that it would make from the environment.

    Args:
        forked: this is a forked child, whose resource the SDK has made again; where there is no SDK there are none,
            because to make one takes threads, which would be the program's here.
    """
    resource = getattr(trace.get_tracer_provider(), "resource", None)
    if resource is None:
        if forked:
            return {}
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (only where no SDK is set up)

        resource = Resource.create()
    return {str(name): _plain(value) for name, value in resource.attributes.items()}


def _plain(value: object) -> Json:
    if isinstance(value, str | bool | int | float):
        return value
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)
