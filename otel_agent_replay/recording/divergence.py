"""Where a program departs from its recording, as a value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Json


class DivergenceClass(StrEnum):
    """What kind of departure; the table in the design says what each means."""

    STALE = "stale"
    DIVERGED = "diverged"
    EXHAUSTED = "exhausted"
    UNCONSUMED = "unconsumed"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Position:
    """Where in a run: the how-manyth crossing of a key in a lane, from 0."""

    lane: str
    key: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.lane} {self.key} #{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which what was asked differs from what was recorded."""

    where: str
    """A path into the request, such as ``body.messages[1].content``."""
    recorded: str
    asked: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """One departure from the recording."""

    kind: DivergenceClass
    asked: Position | None
    """Where the program was; None where it no longer asks (unconsumed)."""
    nearest: Position | None
    """The recorded crossing most like it, if there is any."""
    summary: str
    """One sentence without the position."""
    differences: tuple[Difference, ...] = ()
    remedy: str = ""
    details: tuple[str, ...] = field(default=())
    """Further lines, such as the stack of each blocked lane."""

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.summary}"]
        if self.asked is not None:
            lines.append(f"  at        {self.asked}")
        if self.nearest is not None and self.nearest != self.asked:
            lines.append(f"  nearest   {self.nearest}")
        for difference in self.differences:
            lines.append(f"  {difference.where}")
            lines.append(f"    recorded  {difference.recorded}")
            lines.append(f"    asked     {difference.asked}")
        lines.extend(f"  {line}" for line in self.details)
        if self.remedy:
            lines.append(f"  {self.remedy}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Json]:
        """The same as plain data, for ``--report``."""
        return {**asdict(self), "kind": str(self.kind), "text": str(self)}
