"""What the handlers of signals raise: told by its traceback, wherever it comes out.

The handler of a signal is called through `hand_over`, whose frame says which signal it was. An error that came out of
one may be wrapped by whatever it came into: a library takes the TimeoutError of a handler for one of its socket's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

UNPLACED = -1
"""Stands for the place of a signal that has none in the order of its run."""


def hand_over(
    handler: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None, place: int
) -> object:
    """Call a handler; `place` is that of its signal in the order of the run."""
    return handler(number, frame)


def raised_by(error: BaseException | None, since: int = UNPLACED - 1) -> int | None:
    """The place of the signal whose handler raised this, or what it was made of; None for none after `since`."""
    for part in chain(error):
        trace = part.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is hand_over.__code__:
                place = trace.tb_frame.f_locals["place"]
                return place if isinstance(place, int) and place > since else None
            trace = trace.tb_next
    return None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it was made of, latest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def told(recorded: BaseException | None, raised: BaseException) -> BaseException:
    """What a call raises into which a handler has raised: the recorded error, where that was made of such a one."""
    below = list(chain(recorded))[1:]
    if recorded is None or type(raised) is type(recorded) or not any(type(part) is type(raised) for part in below):
        return raised
    return recorded
