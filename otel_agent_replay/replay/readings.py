"""Readings in a replay: each call site gets its own recorded values back, whatever else was added."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from otel_agent_replay.boundary import virtual
from otel_agent_replay.boundary.draws import DRAWN, Draws, draws_of
from otel_agent_replay.boundary.sites import SiteMap, site_of
from otel_agent_replay.boundary.spots import script_name
from otel_agent_replay.recording import codec
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.values import CREDENTIAL, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.recording.values import Json, Recording

T = TypeVar("T")

_KIND_OF = {"machine": "process", "process": ""}
"""What sources of readings begin with, where it is not the kind itself; captured commands are no readings."""

_PLAIN = frozenset((int, float, str, bool))


class Readings:
    """The readings of a recording, handed out by lane, source and call site.

    A call site that the recording does not know, or that reads more often than it did, gets the virtual now
    of its clock or a draw derived from where it is; both are reported and take nothing from the others.
    """

    def __init__(self, recording: Recording) -> None:
        self._run_id = recording.run.run_id
        self._values: dict[tuple[str, str, str], dict[int, Json]] = {}
        self._credentials: dict[str, bool] = {}
        self._variables: dict[str, Json] = {}
        self._importers: dict[tuple[str, str], str] = {}
        sites: dict[str, list[str]] = {}
        for reading in recording.readings:
            if reading.source == CREDENTIAL:
                self._credentials[reading.site] = bool(reading.values[0])
                continue
            if reading.source.startswith(VARIABLE):
                self._variables.setdefault(reading.source, reading.values[0])
            values = self._values.setdefault((reading.lane, reading.source, reading.site), {})
            values.update(enumerate(reading.values, reading.first))
            self._importers[reading.source, reading.site] = reading.lane
            known = sites.setdefault(reading.source, [])
            if reading.site not in known:
                known.append(reading.site)
        argv = recording.run.entry.get("argv")
        self._sites = SiteMap(sites, script=script_name([str(part) for part in argv]) if isinstance(argv, list) else "")
        self._asked: dict[tuple[str, str, str], int] = {}
        self._new: dict[tuple[str, str, str], int] = {}
        self._seeded: dict[tuple[str, str], int] = {}
        self._draws: list[tuple[str, str, Draws, int]] = []
        self._clock = virtual.VirtualClock(recording.run.started_ns)
        for source, value in self._variables.items():
            self._clock.seen(source, value)
        self.told: Callable[[str, str, str, int, object], None] | None = None
        """Told of each reading that the recording does not know: lane, source, site, how-manyth of it, value."""

    def read(
        self,
        lane: Lane,
        path: str | None,
        source: str,
        frame: FrameType,
        real: Callable[[], T],
        refuse: Callable[[Position, str], BaseException] | None = None,
    ) -> T:
        """The value for this reading.

        Args:
            lane: the running lane.
            path: the recorded lane that `lane` is, or None.
            source: what is read.
            frame: the code that reads.
            real: the real reading; its type is what an unknown one gets, where nothing better is known.
            refuse: makes what is raised for one that the recording does not know; None to give it a value.
        """
        site = site_of(frame)
        recorded = self._sites.resolve(source, site)
        if recorded is not None:
            key = (self._lane_of(path, source, recorded), source, recorded)
            values = self._values.get(key)
            if values is not None:
                number = self._asked.get(key, 0)
                if number in values:
                    self._asked[key] = number + 1
                    value = values[number]
                    self._clock.seen(source, value)
                    return cast("T", value if type(value) in _PLAIN else codec.decode(value, {}))
        key = (lane.path, source, site.id)
        number = self._new.get(key, 0)
        self._new[key] = number + 1
        if refuse is not None:
            raise refuse(Position(lane.path, source, number), place_of(site.id))
        derived = self._clock.derived(self._run_id, lane.path, source, site.id, number, real)
        if self.told is not None:
            self.told(lane.path, source, site.id, number, derived)
        return derived

    def seeded(self, lane: Lane, path: str | None, frame: FrameType) -> Draws:
        """How the draws of a generator are kept that the code in `frame` has seeded: as they were when recorded."""
        site = site_of(frame)
        number = self._seeded.get((lane.path, site.id), 0)
        self._seeded[lane.path, site.id] = number + 1
        source = f"{DRAWN}{number}"
        recorded = self._sites.resolve(source, site)
        if recorded is None:
            return Draws(lane)
        key = (self._lane_of(path, source, recorded), source, recorded)
        told = self._values.get(key, {}).get(0)
        if not isinstance(told, int):
            return Draws(lane)
        self._asked[key] = 1
        draws = Draws(lane, told)
        self._draws.append((key[0], recorded, draws, draws_of(told)))
        return draws

    def _lane_of(self, path: str | None, source: str, site: str) -> str:
        """The lane that recorded this site. A module's own code runs once, whichever lane imports it: any is right."""
        if (path or "", source, site) in self._values or ":<module>:" not in site.partition("^")[0]:
            return path or ""
        return self._importers.get((source, site), path or "")

    def slept(self, seconds: float) -> None:
        """Let the virtual clock pass over a sleep that took no time."""
        self._clock.advance(seconds)

    def had_credential(self, name: str) -> bool:
        """Whether this credential was set when the run was recorded."""
        return self._credentials.get(name, False)

    def variable(self, name: str) -> Json:
        """The JSON text that was recorded first of this variable of the environment; None where it was not read."""
        return self._variables.get(VARIABLE + name)

    def expects(self, path: str | None, source: str, frame: FrameType) -> bool:
        """Whether the recording has a value here that was not asked for yet."""
        recorded = self._sites.resolve(source, site_of(frame))
        if recorded is None:
            return False
        key = (self._lane_of(path, source, recorded), source, recorded)
        return self._asked.get(key, 0) in self._values.get(key, ())

    def new(self) -> Iterator[str]:
        """Readings that the recording does not know: one line for each lane, source and site."""
        for (lane, source, site), number in self._new.items():
            yield f"{lane} {source} at {place_of(site)}" + (f" ({number} times)" if number > 1 else "")

    def unread(self, freed: frozenset[str] = frozenset()) -> Iterator[str]:
        """Recorded readings that were not asked for again; not those inside a call, whose code does not run.

        Nor those of child processes, who do not say what they read, and of a kind in `freed`, which nobody answers.
        """
        kinds = {_KIND_OF.get(kind, kind) for kind in freed}
        for lane, site, draws, limit in self._draws:
            if draws.number < limit:
                yield f"{lane} {limit - draws.number} of {limit} draws of the generator seeded at {place_of(site)}"
        for key, values in self._values.items():
            if key[1].startswith(DRAWN) and values.get(0) == 0:
                continue  # a generator that drew nothing
            left = len(values) - self._asked.get(key, 0)
            lane, source, site = key
            if source.partition(":")[0] in kinds:
                continue
            if left > 0 and "/call:" not in lane and "/process:" not in lane:
                yield f"{lane} {source} at {place_of(site)}" + (
                    f" ({left} of {len(values)})" if len(values) > 1 else ""
                )


def place_of(site: str) -> str:
    """Module and function of a call site, for people; a site behind a library's line is the agent's."""
    spot = site.partition("^")[0].rpartition("|")[2]
    return ":".join(spot.split(":")[:2])
