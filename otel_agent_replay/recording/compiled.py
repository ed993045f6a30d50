"""The part of this package that is written in C (`native/`), where it was built.

It does what modules here do in Python, which is what runs without it; nothing else differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from otel_agent_replay.recording import _compiled
except ImportError:  # no C compiler was at hand
    _compiled = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from types import ModuleType

PART: ModuleType | None = _compiled
