"""Whether strings are hashed as they were: it decides the order of a set of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_agent_replay.recording.values import Json


def seed_of(given: str | None) -> str:
    """A hash seed that is fixed, as `PYTHONHASHSEED` takes it; empty for one that is drawn."""
    return given if given is not None and given.isdecimal() else ""


def check() -> str:
    """How this process hashes strings: the same wherever it does so in the same way."""
    return f"{hash('otel-agent-replay') & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def differs(world: Mapping[str, Json]) -> str | None:
    """What to say where strings are hashed in another way than in the recorded process; else None.

    Args:
        world: what the recorded run found around it.
    """
    if world.get("hash_check") in (None, check()):
        return None
    seed = world.get("hash_seed")
    remedy = (
        f"replay it with PYTHONHASHSEED={seed} and the recorded version of Python"
        if seed
        else "record it with PYTHONHASHSEED set, as opentelemetry-instrument does"
    )
    return f"sets of strings may have another order than when recorded: {remedy}"
