"""Runs that are held: retention leaves them, and what they need, alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.store.rows import binary_row

if TYPE_CHECKING:
    from otel_agent_replay.store.clickhouse import Engine


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a run is held, and since when."""

    run_id: str
    reason: str
    since_ns: int
    """Nanoseconds since the epoch."""


def hold(engine: Engine, run_id: str, reason: str = "") -> None:
    """Keep a run until it is released. Raises StoreError."""
    _say(engine, run_id, held=True, reason=reason)


def release(engine: Engine, run_id: str) -> bool:
    """Let retention have a run again; False where it was not held. Raises StoreError."""
    if run_id not in held_runs(engine):
        return False
    _say(engine, run_id, held=False, reason="")
    return True


def held_runs(engine: Engine) -> dict[str, Hold]:
    """The runs that are held, by id, the one that was held last coming first."""
    sql = "SELECT run_id, reason, toUnixTimestamp64Micro(since) FROM holds FINAL WHERE held ORDER BY since DESC, run_id"
    return {str(row[0]): Hold(str(row[0]), str(row[1]), int(row[2]) * 1000) for row in engine.rows(sql)}


def _say(engine: Engine, run_id: str, *, held: bool, reason: str) -> None:
    row = binary_row(run_id, held, reason, real.time_ns() // 1000)
    engine.insert("holds", ("run_id", "held", "reason", "since"), row)
