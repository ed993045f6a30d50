"""Record an LLM agent with OpenTelemetry, and run that exact execution again offline from its trace id.

Most programs need none of these names: `opentelemetry-instrument` records without a change of code.

    boundary    a place that takes in what could not be predicted: decorator, context manager, call
    run         mark a function, or a block, as a run of its own
    outcome     declare how a run ended
    replay      answer a block from a recording, inside this process
    asgi, wsgi  wrap an application whose server or framework is not known
    DivergenceError, Divergence, AgentReplayError
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_agent_replay.assembly.scoped import replay
    from otel_agent_replay.door import asgi, boundary, outcome, run, wsgi
    from otel_agent_replay.errors import AgentReplayError, DivergenceError
    from otel_agent_replay.recording.divergence import Divergence

_HOMES = {
    "AgentReplayError": "errors",
    "Divergence": "recording.divergence",
    "DivergenceError": "errors",
    "asgi": "door",
    "boundary": "door",
    "outcome": "door",
    "replay": "assembly.scoped",
    "run": "door",
    "wsgi": "door",
}
"""Where each public name stands; it is imported when it is first asked for."""

__all__ = [
    "AgentReplayError",
    "Divergence",
    "DivergenceError",
    "asgi",
    "boundary",
    "outcome",
    "replay",
    "run",
    "wsgi",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The names `boundary` and `replay` are the public functions, though packages below have them too.

    Importing such a package binds it here under its own name, before or after anybody asks for the function;
    it is found in `sys.modules` without that.
    """

    @property
    def boundary(self) -> object:
        """The public function, imported when it is first asked for."""
        return import_module(f"{__name__}.door").boundary

    @boundary.setter
    def boundary(self, package: object) -> None:
        """The import system binds the package: leave the name to the function."""

    @property
    def replay(self) -> object:
        """The public function, imported when it is first asked for."""
        return import_module(f"{__name__}.assembly.scoped").replay

    @replay.setter
    def replay(self, package: object) -> None:
        """The import system binds the package: leave the name to the function."""


sys.modules[__name__].__class__ = _Package
"""The public names are what they say, in whatever order the package's parts are imported."""
