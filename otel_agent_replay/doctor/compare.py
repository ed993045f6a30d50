"""Where a replay differed from its recording, and by what kind of value."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from otel_agent_replay.doctor.findings import Finding, Leak, uncaptured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.values import Json

MOST_LINES: Final = 2000
"""Lines of standard output that are compared."""

SHOWN: Final = 60
"""Characters of a value that are shown."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_TIME = re.compile(
    r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?|\b\d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\b1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d+)?\b"
)
_DRAWN = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b(?=[0-9a-zA-Z_-]*\d)[0-9a-zA-Z_-]{12,}\b"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_KINDS = ((_ADDRESS, Leak.ADDRESS), (_TIME, Leak.CLOCK), (_DRAWN, Leak.ENTROPY))
_UNCAPTURED = "uncaptured boundary: "
_SAID = {
    Leak.ADDRESS: "the address of an object",
    Leak.CLOCK: "a time that no recorded clock gave",
    Leak.ENTROPY: "random characters that no recorded generator gave",
    Leak.SET_ORDER: "the same things in another order",
    Leak.DIFFERENCE: "another value",
}


def kind_of(recorded: str, asked: str) -> Leak:
    """What kind of value makes two texts differ."""
    if _reordered(recorded, asked):
        return Leak.SET_ORDER
    for pattern, kind in _KINDS:
        if pattern.search(recorded) and pattern.sub("*", recorded) == pattern.sub("*", asked):
            return kind
    if _TIME.search(recorded) and _NUMBER.sub("*", recorded) == _NUMBER.sub("*", asked):
        return Leak.CLOCK
    return Leak.DIFFERENCE


def _reordered(recorded: str, asked: str) -> bool:
    return len(recorded) > 1 and sorted(recorded) == sorted(asked)


def differences(recorded: dict[str, Json], report: dict[str, Json]) -> Iterator[tuple[str, Finding]]:
    """Where a replay differed, by place: what it asked, and what it printed.

    Args:
        recorded: the outcome of the recording.
        report: of the replay, as JSON.
    """
    for name in ("pinned", "divergences"):
        found = report.get(name)
        for each in found if isinstance(found, list) else ():
            if isinstance(each, dict):
                yield from _asked(each)
    outcome = report.get("outcome")
    whole = not report.get("divergences") and report.get("verdict") == "holds"
    yield from _printed(_stdout(recorded), _stdout(outcome if isinstance(outcome, dict) else {}), whole=whole)
    for name, kind in (
        ("new_readings", "a reading that was not recorded"),
        ("unread", "a recorded reading is not made"),
    ):
        lines = report.get(name)
        for line in lines if isinstance(lines, list) else ():
            yield f"{name} {line}", Finding(Leak.NEW_READING, f"{kind}: {line}")


def _asked(divergence: dict[str, Json]) -> Iterator[tuple[str, Finding]]:
    position, where = _position(divergence), str(divergence.get("site") or "")
    found = divergence.get("differences")
    listed = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    texts = divergence.get("texts")
    whole = (str(texts.get("recorded")), str(texts.get("asked"))) if isinstance(texts, dict) else ("", "")
    for each in listed:
        place = f"{position} {each.get('where')}"
        recorded, asked = str(each.get("recorded")), str(each.get("asked"))
        kind = Leak.SET_ORDER if _reordered(*whole) else kind_of(recorded, asked)
        what = f"{position} is asked with {_SAID[kind]}, at {each.get('where')}"
        yield place, Finding(kind, what, where, "", _evidence(recorded, asked))
    if not listed:
        summary = str(divergence.get("summary"))
        what = summary.removeprefix(_UNCAPTURED)
        kind = uncaptured(what) if what != summary else Leak.DIFFERENCE
        yield f"{position} {kind} {where}", Finding(kind, what if what != summary else f"{position}: {what}", where)


def _position(divergence: dict[str, Json]) -> str:
    for name in ("asked", "nearest"):
        found = divergence.get(name)
        if isinstance(found, dict):
            return f"{found.get('lane')} {found.get('key')} #{found.get('ordinal')}"
    return "the program"


def _stdout(outcome: dict[str, Json]) -> list[str]:
    found = outcome.get("stdout")
    text = found.get("text") if isinstance(found, dict) else ""
    return str(text or "").splitlines()[:MOST_LINES]


def _printed(recorded: list[str], now: list[str], *, whole: bool) -> Iterator[tuple[str, Finding]]:
    """Lines that differ; of a replay that was cut short, only those that it came to."""
    matcher = SequenceMatcher(None, recorded, now, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        pairs = max(b - a, d - c)
        for offset in range(pairs):
            before = recorded[a + offset] if a + offset < b else ""
            after = now[c + offset] if c + offset < d else ""
            kind = kind_of(before, after)
            line = a + offset + 1
            if not whole and not after:
                continue
            yield (
                f"stdout {line}",
                Finding(kind, f"line {line} of standard output holds {_SAID[kind]}", "", "", _evidence(before, after)),
            )


def _evidence(recorded: str, asked: str) -> str:
    return f"recorded {_around(recorded, asked)}, replayed {_around(asked, recorded)}"


def _around(text: str, other: str) -> str:
    """The part of a text that differs from another."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    begin = max(at - SHOWN // 3, 0)
    part = text[begin : begin + SHOWN]
    return repr(("…" if begin else "") + part + ("…" if begin + SHOWN < len(text) else ""))
