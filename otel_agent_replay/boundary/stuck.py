"""What is said where a replay cannot go on: which lanes wait for what, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import stall
from otel_agent_replay.recording.divergence import Divergence, DivergenceClass, Position

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator

    from otel_agent_replay.boundary.completions import Completion
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.parties import Party

TASKS: WeakKeyDictionary[asyncio.Future[Any], Lane] = WeakKeyDictionary()
"""Lane of each task of a run."""

MOST_LANES = 50
"""Stacks that are shown."""


def incomplete(waiting: Iterable[Completion], parties: Iterable[Party], skipped: list[int]) -> Divergence:
    """The divergence of a program in which nothing can progress any more."""
    asked = list(waiting)
    details = [f"waits     {completion.lane.path} {completion.key} #{completion.ordinal}" for completion in asked]
    parties = list(parties)
    for lane, stack in _stacks(parties):
        details.append(f"{lane}")
        details.extend(f"  {line}" for line in stack)
    if skipped:
        details.append(f"never asked for: {len(skipped)} recorded completions, the first in place {skipped[0]}")
    first = asked[0] if asked else None
    return Divergence(
        DivergenceClass.INCOMPLETE,
        None if first is None else Position(first.lane.path, first.key, first.ordinal),
        None,
        "every lane waits, and nothing that was recorded is left to come",
        remedy="The recording ends here, or the program waits for something that it did not wait for then.",
        details=tuple(details),
    )


def _stacks(parties: list[Party]) -> Iterator[tuple[str, list[str]]]:
    shown = 0
    for party in parties:
        name = "a thread" if party.lane is None else party.lane.path
        yield f"{name} (thread {party.ident})", stall.describe(party.ident)
        if party.watch is None or not party.watch.running:
            continue
        for task in _tasks_of(party.watch.loop):
            if shown < MOST_LANES:
                shown += 1
                yield TASKS[task].path, [stall.place(frame) for frame in task.get_stack()]


def _tasks_of(loop: object) -> list[Any]:
    tasks = [task for task in list(TASKS) if not task.done() and task.get_loop() is loop]
    return sorted(tasks, key=lambda task: TASKS[task].serial)
