"""Which recorded crossing answers a call: by place first, confirmed by content.

A crossing is looked for in the series of its lane and key, from the place after the last one answered
there; then among those of the series that were passed over; then, as moved, in a lane of the same name
that can no longer ask for it itself.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING
from weakref import ref

from otel_agent_replay.replay.lanes import family, split

MOST_COMPARED = 50
"""So many crossings are looked at for the nearest one."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.values import CrossingRecord


class Series:
    """The recorded crossings of one lane and key, in order, and which of them have been answered."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.records: list[CrossingRecord] = []
        self.taken: set[int] = set()
        self.next = 0
        """The place after the last one answered."""

    def waiting(self) -> Iterator[tuple[int, CrossingRecord]]:
        """Those not answered yet: from `next` on first, then those passed over."""
        places = chain(range(self.next, len(self.records)), range(self.next))
        return ((place, self.records[place]) for place in places if place not in self.taken)

    def take(self, place: int) -> CrossingRecord:
        self.taken.add(place)
        self.next = place + 1
        return self.records[place]


class Matcher:
    """The crossings of a recording, handed out once each."""

    def __init__(self, crossings: Iterable[CrossingRecord]) -> None:
        self._series: dict[tuple[str, str], Series] = {}
        self._families: dict[tuple[str, str], list[Series]] = {}
        self._became: dict[str, ref[Lane]] = {}
        """The running lane that a recorded lane has become: the first that was answered from it."""
        self._records = list(crossings)
        for record in sorted(self._records, key=lambda record: record.position.ordinal):
            lane, key = record.position.lane, record.position.key
            series = self._series.get((lane, key))
            if series is None:
                series = self._series[lane, key] = Series(lane)
                self._families.setdefault((family(lane), key), []).append(series)
            series.records.append(record)
        self._spans = {record.span_id for record in self._records}

    def own(self, lane: Lane, path: str | None, key: str) -> Series | None:
        """The series of this running lane, which is the recorded lane `path` unless another one has become it."""
        if path is None or self._is_another(path, lane):
            return None
        return self._series.get((path, key))

    def find(
        self, lane: Lane, path: str | None, key: str, fits: Callable[[CrossingRecord], bool]
    ) -> tuple[CrossingRecord | None, str | None]:
        """The crossing that answers; and the recorded lane it was moved from, where it was."""
        own = self.own(lane, path, key)
        if own is not None:
            for place, record in own.waiting():
                if fits(record):
                    self._became.setdefault(own.lane, ref(lane))
                    return own.take(place), None
        name = family(path) if path is not None else f"{lane.how}:{lane.name}"
        others = self._families.get((name, key), [])
        for series in sorted(others, key=lambda series: split(series.lane)[3] != lane.number):
            if series is own:
                continue
            for place, record in series.waiting():
                if self._may_lend(series, place, lane, path) and fits(record):
                    if path is None or not self.has_become(lane, path):
                        self._became.setdefault(series.lane, ref(lane))
                    return series.take(place), series.lane
        return None, None

    def take(self, span_id: int) -> bool:
        """A crossing was answered by a copy of this, in a forked child. Whether it had not been answered before."""
        for series in self._series.values():
            for place, record in enumerate(series.records):
                if record.span_id == span_id:
                    new = place not in series.taken
                    series.taken.add(place)
                    return new
        return False

    def has_become(self, lane: Lane, path: str) -> bool:
        """Whether the recorded lane `path` is this running lane."""
        became = self._became.get(path)
        return became is not None and became() is lane

    def nearest(
        self, lane: Lane, path: str | None, key: str, alike: Callable[[CrossingRecord], float]
    ) -> CrossingRecord | None:
        """The unanswered crossing of this lane and key most like what was asked; else one of any lane."""
        own = self.own(lane, path, key)
        waiting = [record for _, record in own.waiting()] if own is not None else []
        if not waiting:
            waiting = [
                record for (_, other), series in self._series.items() if other == key for _, record in series.waiting()
            ]
        return max(waiting[:MOST_COMPARED], key=alike, default=None)

    def left(self) -> list[CrossingRecord]:
        """Those never asked for, without what happened inside another crossing."""
        unasked = [record for series in self._series.values() for _, record in series.waiting()]
        return sorted(
            (record for record in unasked if record.parent_span_id not in self._spans),
            key=lambda record: record.started_ns,
        )

    def __len__(self) -> int:
        return sum(1 for record in self._records if record.parent_span_id not in self._spans)

    def _is_another(self, path: str, lane: Lane) -> bool:
        """Whether a recorded lane has become another running lane than this one."""
        became = self._became.get(path)
        return became is not None and became() is not lane

    def _may_lend(self, series: Series, place: int, lane: Lane, path: str | None) -> bool:
        """Whether the lane of this series can no longer ask for `place` itself, or is not spoken for.

        A lane that nobody has become yet may be lent to one that has not been answered at all: they were
        spawned in another order. To one that has been answered only if its own turn to be spawned is past.
        """
        became = self._became.get(series.lane)
        if became is not None:
            return became() is lane or became() is None or place < series.next
        fresh = path is None or path not in self._became or self._is_another(path, lane)
        return fresh or split(series.lane)[3] < lane.number
