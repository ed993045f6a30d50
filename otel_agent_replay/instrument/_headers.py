"""Headers as they are written down. Credentials are masked where they are written, not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_agent_replay.recording.values import Headers


def texts(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """In order, with duplicates, decoded as Latin-1."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]
