"""Which recorded crossing answers a call: by place first, confirmed by content.

A crossing is looked for in the series of its lane and key, from the place after the last one answered
there; then among those of the series that were passed over; then, as moved, in a lane of the same name
that can no longer ask for it itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from otel_agent_replay.replay.lanes import family, split

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
        self.asker: ref[Lane] | None = None
        """The running lane that this recorded lane has become."""

    def waiting(self) -> Iterator[tuple[int, CrossingRecord]]:
        """Those not answered yet: from `next` on first, then those passed over."""
        places = [*range(self.next, len(self.records)), *range(self.next)]
        return ((place, self.records[place]) for place in places if place not in self.taken)

    def take(self, place: int) -> CrossingRecord:
        self.taken.add(place)
        self.next = place + 1
        return self.records[place]

    def given_up(self, place: int) -> bool:
        """Whether the lane that this series belongs to can no longer ask for `place` itself."""
        return self.asker is not None and (self.asker() is None or place < self.next)


class Matcher:
    """The crossings of a recording, handed out once each."""

    def __init__(self, crossings: Iterable[CrossingRecord]) -> None:
        self._series: dict[tuple[str, str], Series] = {}
        self._families: dict[tuple[str, str], list[Series]] = {}
        spans: set[int] = set()
        self._records = list(crossings)
        for record in sorted(self._records, key=lambda record: record.position.ordinal):
            spans.add(record.span_id)
            lane, key = record.position.lane, record.position.key
            series = self._series.get((lane, key))
            if series is None:
                series = self._series[lane, key] = Series(lane)
                self._families.setdefault((family(lane), key), []).append(series)
            series.records.append(record)
        self._spans = spans

    def own(self, lane: Lane, path: str | None, key: str) -> Series | None:
        """The series of this running lane, which is the recorded lane `path`."""
        series = None if path is None else self._series.get((path, key))
        if series is not None and series.asker is None:
            series.asker = ref(lane)
        return series

    def find(
        self, lane: Lane, path: str | None, key: str, fits: Callable[[CrossingRecord], bool]
    ) -> tuple[CrossingRecord | None, str | None]:
        """The crossing that answers; and the recorded lane it was moved from, where it was."""
        own = self.own(lane, path, key)
        if own is not None:
            for place, record in own.waiting():
                if fits(record):
                    return own.take(place), None
        name = family(path) if path is not None else f"{lane.how}:{lane.name}"
        others = self._families.get((name, key), [])
        for series in sorted(others, key=lambda series: split(series.lane)[3] != lane.number):
            if series is own:
                continue
            for place, record in series.waiting():
                if (series.given_up(place) or self._unclaimed(series, lane, path)) and fits(record):
                    return series.take(place), series.lane
        return None, None

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
        return max(waiting[:50], key=alike, default=None)

    def left(self) -> list[CrossingRecord]:
        """Those never asked for, without what happened inside another crossing."""
        unasked = [record for series in self._series.values() for _, record in series.waiting()]
        return sorted(
            (record for record in unasked if record.parent_span_id not in self._spans),
            key=lambda record: record.started_ns,
        )

    def __len__(self) -> int:
        return len(self._records)

    def _unclaimed(self, series: Series, lane: Lane, path: str | None) -> bool:
        """Whether no running lane is this series' lane, nor will be: lower numbers are spawned first."""
        return series.asker is None and (path is None or split(series.lane)[3] < lane.number)
