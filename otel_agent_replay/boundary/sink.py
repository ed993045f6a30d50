"""Where a recording session writes what it sees. The telemetry layer implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_agent_replay.recording.values import (
        Attribute,
        CrossingRecord,
        Note,
        OrderEvent,
        ReadingRecord,
        RunRecord,
    )


class Sink(Protocol):
    """Writes frames of one run, first on disk. No method raises: a fault is counted and noted."""

    def run_started(self, run: RunRecord) -> Callable[[], Callable[[], None]] | None:
        """The run began; its ids are set. Gives what makes its live span current (for `Lane.enter`), or None."""

    def run_ended(self, run: RunRecord) -> None:
        """The run ended; `end`, `ended_ns` and `outcome` are set."""

    def opened(
        self, crossing: CrossingRecord, parent: CrossingRecord | None
    ) -> Callable[[], Callable[[], None]] | None:
        """A crossing is about to be made: sets its span ids and writes its input.

        Gives what makes its live span current (for `Lane.enter`), or None. For a wire crossing, whose
        input is not known yet, the frame is written by `asked`.
        """

    def asked(self, crossing: CrossingRecord) -> None:
        """A wire crossing is about to send an attempt: writes its input, before a byte leaves."""

    def described(self, crossing: CrossingRecord, attributes: Mapping[str, Attribute]) -> None:
        """Semantic attributes for the live span and the record."""

    def finished(self, crossing: CrossingRecord) -> None:
        """A crossing ended: writes it whole and ends its live span."""

    def flush(self) -> None:
        """Write what `packed` was told, now."""

    def packed(self, readings: list[ReadingRecord], order: list[OrderEvent], notes: list[Note]) -> None:
        """Readings, order events and notes since the last call."""


class ReplaySink(Protocol):
    """Writes what a replay is recorded as. No method raises."""

    lost: int
    """Frames that could not be written."""

    def run_started(self, run: RunRecord) -> Callable[[], Callable[[], None]] | None:
        """As of `Sink`."""

    def run_ended(self, run: RunRecord) -> None:
        """As of `Sink`."""

    def begun(self, crossing: CrossingRecord, parent: CrossingRecord | None) -> None:
        """A crossing of a replay is made: sets its span ids."""

    def replayed(self, crossing: CrossingRecord) -> None:
        """It has ended: writes it whole, for the first and the last time."""

    def packed(self, readings: list[ReadingRecord], order: list[OrderEvent], notes: list[Note]) -> None:
        """As of `Sink`."""
