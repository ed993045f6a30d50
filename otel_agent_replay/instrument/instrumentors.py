"""The same patches as OpenTelemetry instrumentors, one for each library.

`opentelemetry-instrument` finds them by their entry points, and a program may call `instrument()` itself.
Each is silent where its library is absent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # untyped

from otel_agent_replay.boundary import lanes
from otel_agent_replay.instrument._patch import Library, install
from otel_agent_replay.instrument.libraries.anthropic import ANTHROPIC
from otel_agent_replay.instrument.libraries.httpx_family import HTTPX, HTTPX2
from otel_agent_replay.instrument.libraries.openai import OPENAI

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from otel_agent_replay.recording.values import Note

_logger = logging.getLogger("otel_agent_replay")


class _ReplayInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # its base is untyped
    """What the instrumentors share: which libraries they patch."""

    libraries: ClassVar[tuple[Library, ...]] = ()
    _uninstall: Callable[[], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: an absent library is no conflict, its patch waits for an import that never comes."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        self._uninstall = install(self.libraries, kwargs.get("report", report))

    def _uninstrument(self, **_: Any) -> None:
        if self._uninstall is not None:
            self._uninstall()
            self._uninstall = None


class OpenAIReplayInstrumentor(_ReplayInstrumentor):
    """Records and answers `openai`."""

    libraries = (HTTPX, HTTPX2, OPENAI)


class AnthropicReplayInstrumentor(_ReplayInstrumentor):
    """Records and answers `anthropic`."""

    libraries = (HTTPX, HTTPX2, ANTHROPIC)


class HttpxReplayInstrumentor(_ReplayInstrumentor):
    """Records and answers `httpx` and `httpx2`."""

    libraries = (HTTPX, HTTPX2)


def report(note: Note) -> None:
    """Add a line to the manifest of the calling run; outside a run, log it."""
    lane = lanes.current()
    if lane is not None:
        lane.session.note(note)
    else:
        _logger.warning("%s", note.what)
