"""Lanes: one strand of control each, named by where it was spawned and not by when it ran."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextvars import ContextVar
from hashlib import blake2b
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from otel_agent_replay.boundary.session import Crossing, Session

ROOT = "main"
"""Path of a run's first lane."""

LONGEST_PATH = 400
"""A longer path, in characters, has its beginning replaced by a digest, so that lanes that spawn lanes
for ever keep names of a bounded length."""

FARTHEST = 1 << 16
"""No instruction of code that is remembered in `Lane.sites` is farther from its beginning, in bytes."""

OFFSETS: dict[str, int] = {}
"""What is added to an instruction to tell sources apart, by source; `offset_of` fills it."""

_serials = count()


class Memo(dict[int, list[object]]):
    """Where the values of the call sites of one frame wait to be written, by instruction and source.

    It is kept as the trace function of the frame, the one place where something can stand that goes with it: a
    frame that is held would keep its variables alive. A tracer that finds it there replaces it, or calls it for
    nothing; a debugger takes it for none.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __call__(self, *_: object) -> None:
        return None


class Mark(Memo):
    """What stands in the place of a memo."""

    __slots__ = ()


ONCE = Mark()
"""Stands in a frame that has read once, and may never again: most have no need of a memo."""
NEVER = Mark()
"""Stands in a frame that may go on in another lane, or be called from somewhere else: it has none."""


def offset_of(source: str) -> int:
    """What is added to an instruction, no farther than `FARTHEST`, where this source is read."""
    return OFFSETS.setdefault(source, len(OFFSETS) * FARTHEST)


class Lane:
    """One strand of control in a run: a task, a thread, a pool item, the inside of a crossing.

    Counters belong to the lane, so what one lane does never shifts the ordinals of another.
    """

    __slots__ = (
        "__weakref__",
        "_ordinals",
        "_spawned",
        "beneath",
        "enter",
        "how",
        "mark",
        "name",
        "number",
        "parent",
        "path",
        "serial",
        "session",
        "sites",
    )

    def __init__(
        self, session: Session, parent: Lane | None = None, how: str = "", name: str = ROOT, number: int = 0
    ) -> None:
        self.session = session
        self.parent = parent
        self.how = how
        """task, thread, pool, call or process; empty for the root."""
        self.name = name
        """Qualified name of what was spawned."""
        self.number = number
        """How-manyth of this how and name under the parent."""
        self.path: str = ROOT if parent is None else child_path(parent.path, how, name, number)
        self.serial = next(_serials)
        """How-manyth lane of this process: lanes are spawned in the program's order, so it sorts what runs them."""
        self.beneath: Crossing | None = None if parent is None else parent.beneath
        """The wire crossing that this lane runs beneath: nothing here is a crossing of its own."""
        self.enter: Callable[[], Callable[[], None]] | None = None
        """Makes the telemetry of this lane current, and gives what undoes it; None for nothing to do."""
        self.mark: object = None
        """Free for the session."""
        self.sites: dict[int, tuple[CodeType, CodeType, str, list[object]]] = {}
        """What is read here often, by the instruction of the code that reads, times `FARTHEST`, and that of the code
        that called it: both codes, the source, and where values wait to be written. The session forgets it as it
        takes them."""
        self._ordinals: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._spawned: defaultdict[tuple[str, str], Iterator[int]] = defaultdict(count)

    def ordinal(self, key: str) -> int:
        """How-manyth crossing of this key in this lane, from 0; each call counts."""
        return next(self._ordinals[key])

    def spawn(self, how: str, name: str) -> Lane:
        """A new lane below this one. Called when the parent spawns, not when the child starts."""
        return Lane(self.session, self, how, name, next(self._spawned[how, name]))

    def __repr__(self) -> str:
        return f"<Lane {self.path}>"


def child_path(parent: str, how: str, name: str, number: int) -> str:
    """Path of the lane that the lane `parent` spawns as the `number`-th of this how and name."""
    name = name.replace("/", "%2f")
    path = f"{parent}/{how}:{name}#{number}"
    if len(path) <= LONGEST_PATH:
        return path
    return f"~{blake2b(parent.encode('utf-8', 'replace'), digest_size=12).hexdigest()}/{how}:{name[:200]}#{number}"


LANE: ContextVar[Lane | None] = ContextVar("otel_agent_replay_lane", default=None)
"""The lane of the running code; None where there is none in this context."""

OUTSIDE = Lane(cast("Session", None), None, "", "outside")
"""Stands in LANE for code that belongs to no run, whatever the process does: worker threads between two
items, telemetry exporters, our own callbacks. It has no session; `current` never gives it."""

GROUND: dict[int, Lane] = {}
"""By ident: the lane that a thread was given to run. A context that was copied elsewhere and entered here, as
`executor.submit(copy_context().run, work)` does, brings the lane of whoever copied it; the work is still this one's."""

process_root: Lane | None = None
"""The lane of code that has no context: the whole process is one run, recorded or replayed."""

_root_thread = 0


def here() -> Lane | None:
    """What stands in LANE, but for a copied context."""
    lane = LANE.get()
    return grounded(lane) if GROUND else lane


def grounded(lane: Lane | None) -> Lane | None:
    """The lane that this thread runs, where `lane` is one that it was spawned from."""
    ground = GROUND.get(get_ident())
    if ground is None or lane is ground or lane is OUTSIDE or asyncio._get_running_loop() is not None:  # noqa: SLF001
        return lane
    above = process_root if lane is None else lane
    outer = ground.parent
    while outer is not None and above is not None and outer is not above:
        outer = outer.parent
    return lane if outer is None else ground


def current() -> Lane | None:
    """The lane of the calling code, or None where it belongs to no run."""
    lane = here()
    if lane is None:
        return process_root
    return None if lane is OUTSIDE else lane


def strand() -> Lane | None:
    """The lane whose control the calling code is.

    Unlike `current`, a thread that no lane started has none: what such a thread asks of the world may
    belong to the run, but when it sleeps or wakes is no concern of the run.
    """
    lane = here()
    if lane is None:
        return process_root if process_root is not None and get_ident() == _root_thread else None
    return None if lane is OUTSIDE else lane


def root_thread() -> int:
    """Ident of the thread that runs the process's root lane; 0 for none."""
    return _root_thread


def set_process_root(lane: Lane | None) -> None:
    """Make the whole process belong to the run of `lane`, or to none. Called in the thread that runs it."""
    global process_root, _root_thread
    process_root, _root_thread = lane, get_ident()
