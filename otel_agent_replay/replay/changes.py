"""What a recorded call changes of what it is handed: looked at before it and after it, and noted where it is lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import callers
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.recording.changed import OWN, Handed
from otel_agent_replay.recording.values import Note, NoteKind, Returned

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.boundary.session import Call
    from otel_agent_replay.recording.changed import Changes
    from otel_agent_replay.recording.values import CrossingRecord, Json, Outcome

_looked_into: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

MOST_OF_OWN = 20_000
"""Values that are looked at one by one, with a method's own object among them, each time it is called: some 10 ms."""

_holding_too_much: set[str] = set()
"""Keys of calls whose own object cannot be looked at. It is tried once: each try takes a while."""

_PLAIN_MODULES = frozenset(("__main__", "collections"))


def looks_into(cls: type) -> bool:
    """Whether objects of a class are looked into though they are no plain data: where it is the program's own.

    Those of libraries (clients, pools, locks) are not: what they hold is nobody's business, changes all the time, and
    could not be put back.
    """
    found = _looked_into.get(cls)
    if found is None:
        module = sys.modules.get(cls.__module__)
        own = module is not None and callers.kind_of_module(module) == callers.AGENT
        found = _looked_into[cls] = own or cls.__module__ in _PLAIN_MODULES
    return found


callers.forgetting.append(_looked_into.clear)


def handed(call: Call, written: Json, note: Callable[[Note], None]) -> Handed | None:
    """What a call is handed, where there is anything in it that can change.

    `written` is the JSON of its input, or None where that does not tell all.
    """
    if call.lent is None:
        return None
    lent = _without_own(call.lent) if call.key in _holding_too_much else call.lent
    try:
        found = Handed(lent, written if lent is call.input else None, looks_into, call.wrapping)
        why = found.unseen or ("its own object holds too much" if found.size > MOST_OF_OWN else "")
        if why and isinstance(lent, dict) and OWN in lent:
            _unseen(call.key, why, note)
            _holding_too_much.add(call.key)
            found = Handed(_without_own(lent), None, looks_into, call.wrapping)
    except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
        fault("looking at what a call is handed", error, note)
        return None
    if found.unseen:
        _unseen(call.key, found.unseen, note)
    return found if found.can_change else None


def _without_own(lent: object) -> object:
    return {name: value for name, value in lent.items() if name != OWN} if isinstance(lent, dict) else lent


def _unseen(key: str, why: str, note: Callable[[Note], None]) -> None:
    what = f"whether {key} changes what it is handed cannot be seen: {why}"
    note(Note(NoteKind.UNCAPTURED, what, incomplete=False))


def of_call(found: Handed, outcome: Outcome, record: CrossingRecord, note: Callable[[Note], None]) -> Changes | None:
    """What a call has changed; None for nothing. What cannot be put back is noted."""
    try:
        changed = found.changes(outcome.value if isinstance(outcome, Returned) else None)
    except Exception as error:  # noqa: BLE001 (recording never hurts the agent)
        fault("looking at what a call has changed", error, note)
        return None
    for kind, own in () if changed is None else changed.lost:
        whose = "its own object" if own else "what it is handed"
        what = f"what {record.position.key} changes in {whose} cannot be put back in a replay: {kind}"
        note(Note(NoteKind.UNCAPTURED, what, incomplete=not own))
    return changed
