"""Which draws of a generator are kept by its seed, and which by value.

As long as the lane that seeded a generator is the only one that draws from it, its seed says what it draws, at no
cost. Once another lane has drawn, or another run, who gets which value is a matter of time: from then on each draw
is a reading. How many draws the seed stands for is recorded, so that a replay changes over at the same draw, even
where the code that drew then is not run again; and a draw beyond them is new.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from otel_agent_replay.boundary import lanes, real

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.lanes import Lane

DRAWN: Final = "random:drawn:"
"""Source of the number of draws that a seed stands for; followed by the how-manyth generator of its lane and site."""

MOST_COUNTED: Final = 1000
"""Generators of one run whose draws are counted; those beyond are kept by their seed while nobody shares them."""


class Draws:
    """The draws of one generator.

    Args:
        lane: the lane that has seeded it.
        recorded: what the recording says of them, as `tell` was told; None where it does not know.
        tell: told once how many draws the seed stands for; as a negative number, less one, where others drew then.
    """

    __slots__ = ("_lane", "_limit", "_pid", "_shared", "_tell", "number")

    def __init__(self, lane: Lane, recorded: int | None = None, tell: Callable[[int], None] | None = None) -> None:
        self._lane = lane
        self._shared = recorded is not None and recorded < 0
        self._limit = sys.maxsize if recorded is None else draws_of(recorded)
        self._tell = tell
        self._pid = real.getpid()
        self.number = 0
        """So many have been made by the seed."""

    def by_seed(self) -> bool:
        """Count one more draw of the running lane; False where it is to be a reading."""
        lane = self._lane
        if self.number < self._limit and (lane is lanes.current() or lane is lanes.OUTSIDE):
            self.number += 1
            return True
        return False

    def state_by_seed(self) -> bool:
        """Whether the state that the running lane finds is what the seed has led to."""
        return (self.number < self._limit or not self._shared) and self._lane in (lanes.current(), lanes.OUTSIDE)

    def share(self) -> None:
        """Somebody else draws: from here on every draw is a reading."""
        if self._limit == sys.maxsize:
            self._limit, self._shared = self.number, True
            self.settle()

    def settle(self) -> None:
        """Tell how many draws there were; a forked child has only a copy, and nothing to tell."""
        tell, self._tell = self._tell, None
        if tell is not None and real.getpid() == self._pid:
            tell(~self.number if self._shared else self.number)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a copy of the generator that holds this is another generator


def draws_of(recorded: int) -> int:
    """How many draws the seed stands for, of what was told."""
    return ~recorded if recorded < 0 else recorded
