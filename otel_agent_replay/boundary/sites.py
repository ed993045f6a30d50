"""Where a reading is made, and where the recording knows that place.

`site_of` names the code in a frame; `SiteMap` finds the recorded site that a site of an edited program stands for,
so that one more reading in new code takes no value that belongs to another.

A reading in a small function that many places call is told apart by the place that called it: a site names the
nearest line of the agent's own code and the line that called that one, and the library's line where one is in
between.
"""

from __future__ import annotations

import linecache
import re
from contextlib import suppress
from itertools import islice, product
from typing import TYPE_CHECKING, Final

from otel_agent_replay.boundary.alignment import Program
from otel_agent_replay.boundary.callers import AGENT, BASE, DISPATCH, KINDS, caller, forgetting, frames, kind_of
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.boundary.spots import CALLED_BY, INLINED, Line, Site, Spot, lines_of, module_name, two

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType

    from otel_agent_replay.boundary.alignment import Function

_REACH: Final = 24
"""So many frames are looked at for the agent's code behind a library's."""

_MOST_SITES: Final = 100_000
"""Sites beyond this are named each time: only a program that makes code without end has so many."""


_STOP: Final = 1
"""While walking outwards: a strand of control begins here, and whatever is further out may differ."""
_SEARCH: Final = 2
"""Look further."""
_AGENT: Final = 3
"""This is the agent's; so is the next."""
_AGENT_INLINED: Final = 4
"""And the frame around it is part of the same spot."""

_paces: dict[int, int] = {}
"""By code object. `callers` keeps every code object named here and below, so that no id is used again."""
_spots: dict[tuple[int, int], Spot] = {}
"""By code object and instruction."""
_sites: dict[tuple[int, ...], Site] = {}
"""By the code objects and instructions of the frames that name it."""

forgetting.extend((_paces.clear, _spots.clear, _sites.clear))


def site_of(frame: FrameType) -> Site:
    """Where the code in `frame` is. Never raises; a fault of ours gives a site that is good for this code only."""
    code = frame.f_code
    key: tuple[int, ...] = (id(code), frame.f_lasti)
    pace = _paces.get(id(code)) or _pace(frame)
    found = pace >= _AGENT
    outer = frame.f_back
    if pace == _AGENT_INLINED and outer is not None:
        outer = outer.f_back
    reach = _REACH
    while outer is not None and reach:
        code = outer.f_code
        pace = _paces.get(id(code)) or _pace(outer)
        if pace >= _AGENT:
            key += (id(code), outer.f_lasti)
            if found:
                break
            found = True
        elif pace == _STOP:
            break
        if pace == _AGENT_INLINED and outer.f_back is not None:
            outer = outer.f_back
        outer = outer.f_back
        reach -= 1
    return _sites.get(key) or _site(frame, key)


def is_near(frame: FrameType) -> bool:
    """Whether `frame` and the frame that called it tell its site, whatever is further out."""
    if _pace(frame) != _AGENT:
        return False
    outer = frame.f_back
    return outer is None or _pace(outer) in (_AGENT, _STOP)


def _pace(frame: FrameType) -> int:
    kind = kind_of(frame)
    inlined = frame.f_code.co_name in INLINED
    pace = _STOP if kind in (DISPATCH, BASE) else _SEARCH
    if kind == AGENT:
        pace = _AGENT_INLINED if inlined else _AGENT
    if id(frame.f_code) in KINDS:
        _paces[id(frame.f_code)] = pace
    return pace


def _site(frame: FrameType, key: tuple[int, ...]) -> Site:
    """Name a site that was not met before."""
    try:
        site = _named(frame)
    except Exception as error:  # noqa: BLE001 (naming a place must not break the program)
        fault("naming a call site", error)
        site = Site.make([_bare(frame)], None)
    if len(_sites) < _MOST_SITES and all(code in KINDS for code in key[::2]):
        _sites[key] = site
    return site


def _named(frame: FrameType) -> Site:
    spots = [_spot(frame)]
    pace = _pace(frame)
    agents = int(pace >= _AGENT)
    outer = _caller(frame)
    for _ in range(_REACH):
        if outer is None:
            break
        pace = _pace(outer)
        if pace == _STOP:
            break
        if pace != _SEARCH:
            spots.append(_spot(outer))
            agents += 1
            if agents == 2:
                return Site.make(spots[:-1], spots[-1])
        outer = _caller(outer)
    return Site.make(spots, None)


def _caller(frame: FrameType) -> FrameType | None:
    outer = frame.f_back
    if outer is not None and frame.f_code.co_name in INLINED:
        return outer.f_back  # the function around it is part of the same spot
    return outer


def _spot(frame: FrameType) -> Spot:
    key = (id(frame.f_code), frame.f_lasti)
    spot = _spots.get(key)
    if spot is None:
        spot = _find(frame)
        if len(_spots) < _MOST_SITES and key[0] in KINDS:
            _spots[key] = spot
    return spot


def _find(frame: FrameType) -> Spot:
    """Name the call that `frame` is making. A comprehension belongs to the function around it."""
    code = home = frame.f_code
    if code.co_name in INLINED and frame.f_back is not None:
        home = frame.f_back.f_code
    source = linecache.getlines(code.co_filename, frame.f_globals)
    line = lines_of(home, source).get(frame.f_lineno) if source else None
    if line is None:
        return _bare(frame)
    return Spot(module_name(frame.f_globals), home.co_qualname, line, _call(frame, source[frame.f_lineno - 1]))


def _bare(frame: FrameType) -> Spot:
    code = frame.f_code
    return Spot(module_name(frame.f_globals), code.co_qualname, Line(f"@{frame.f_lasti // 2}", 0, ""), "")


def _call(frame: FrameType, text: str) -> str:
    """Which call on its line: the name that is called, and how many calls of that name stand before it."""
    where = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if where is None or where[2] is None or where[3] is None:
        return f"{two('')}{frame.f_lasti // 2}"  # Python was told to keep no columns
    line = text.encode()
    callee = _callee(line[where[2] : where[3] if where[1] == where[0] else None].decode("utf-8", "replace"))
    named = re.search(r"\w+$", callee)
    name = named[0] if named else ""
    before = line[: where[2]].decode("utf-8", "replace") + callee.removesuffix(name)
    nth = len(re.findall(rf"(?<!\w){name}\s*[(]", before))
    return f"{two(name)}{nth}"


def _callee(call: str) -> str:
    """What stands before the last pair of brackets of a call; where it has no end here, before the first."""
    if not call.endswith(")"):
        return call.partition("(")[0].strip()
    depth = 0
    for index in range(len(call) - 1, -1, -1):
        depth += (call[index] == ")") - (call[index] == "(")
        if depth == 0:
            return call[:index].strip()
    return call.partition("(")[0].strip()


class SiteMap:
    """Finds the recorded site that a site of the present program stands for.

    A site that is unchanged is itself. One in changed code is found line by line, its context too; where the
    line that called its function is gone, or did not belong to the recorded run, by what is left of it. Each
    recorded site stands once for each source.

    Args:
        recorded: the ids of the sites seen in the recording, by source, in order.
        entry: the code that enters the replay, whose callers were no part of the recorded run; as a rule the
            code that makes this map.
        script: what the recorded program was called, as `script_name` has it.
    """

    def __init__(self, recorded: Mapping[str, Iterable[str]], entry: FrameType | None = None, script: str = "") -> None:
        self._known: dict[str, dict[str, Site]] = {}
        self._functions: dict[Function, dict[Line, list[str]]] = {}
        for source, ids in recorded.items():
            known = self._known[source] = _parsed(ids)
            for site in known.values():
                for spot in site.spots:
                    calls = self._functions.setdefault(spot.function, {}).setdefault(spot.line, [])
                    if spot.call not in calls:
                        calls.append(spot.call)
        self._program = Program(self._functions, script)
        self._entry = {
            (module_name(frame.f_globals), frame.f_code.co_qualname)
            for frame in frames(entry if entry is not None else caller())
            if kind_of(frame) == AGENT
        }
        self._found: dict[tuple[str, str], str | None] = {}
        self._taken: dict[tuple[str, str], str] = {}

    def resolve(self, source: str, site: Site) -> str | None:
        """The id of the recorded site, whose readings `site` is to get; None where the recording has none."""
        key = (source, site.id)
        if key not in self._found:
            found = self._found[key] = self._find(self._known.get(source, {}), source, site)
            if found is not None:
                self._taken[source, found] = site.id
        return self._found[key]

    def _find(self, known: Mapping[str, Site], source: str, site: Site) -> str | None:
        if not known:
            return None
        if site.id in known:
            return site.id
        inners = [Site.make(spots, None).id for spots in product(*map(self._recorded, site.inner))]
        contexts = [None] if site.context is None else self._recorded(site.context)
        for inner, context in product(inners, contexts):
            name = inner if context is None else f"{inner}{CALLED_BY}{context}"
            if name in known and (source, name) not in self._taken:
                return name
        moved = any(self._program.recorded_line(spot.function, spot.line) is None for spot in site.inner)
        for name, candidate in known.items():
            if (source, name) in self._taken or name.partition(CALLED_BY)[0] not in inners:
                continue
            if moved or self._other_way(candidate.context, site.context):
                return name
        return None

    def _recorded(self, spot: Spot) -> list[Spot]:
        """The recorded spots that a spot may stand for, the likeliest first."""
        function = self._program.recorded_function(spot.function)
        line = self._program.recorded_line(spot.function, spot.line)
        if function is None or line is None:
            elsewhere = self._program.moved_line(spot.function, spot.line)
            if elsewhere is None:
                return []
            function, line = elsewhere
        calls = self._functions[function][line]
        if line.tokens == spot.line.tokens:
            calls = [spot.call] if spot.call in calls else []
        elif spot.call in calls:
            calls = [spot.call, *(call for call in calls if call != spot.call)]
        return [Spot(*function, line, call) for call in calls]

    def _other_way(self, recorded: Spot | None, current: Spot | None) -> bool:
        """Whether a function that was called by `recorded` may be the one that `current` calls."""
        if current is not None and current.function in self._entry:
            return True
        now = None if current is None else self._program.recorded_function(current.function)
        if recorded is None:
            return current is not None and now is None
        return now != recorded.function and self._program.gone(recorded.function, recorded.line)


def _parsed(ids: Iterable[str]) -> dict[str, Site]:
    """The sites of these ids; what is no site of ours (a hostile recording) stands for nothing."""
    sites = {}
    for text in ids:
        with suppress(ValueError):
            sites[text] = Site.parse(text)
    return sites
