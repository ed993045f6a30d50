"""What is written of a run's records, masked; whatever does not change between two frames is looked at once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_agent_replay.recording.values import VARIABLE

if TYPE_CHECKING:
    from otel_agent_replay.recording.masking import Masker
    from otel_agent_replay.recording.values import Attempt, Note, ReadingRecord, WireRequest


class MaskedCrossing:
    """What `payload.compose` is given of one crossing."""

    __slots__ = ("_masker", "_responses", "_stream", "_values")

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._stream = ""
        self._values: dict[str, tuple[str, str]] = {}
        self._responses: dict[int, tuple[tuple[object, ...], Attempt]] = {}

    def of(self, stream: str) -> MaskedCrossing:
        """Say which conversation the crossing belongs to."""
        self._stream = stream
        return self

    def value(self, slot: str, text: str) -> str:
        """The JSON of an input, outcome or items; the same object where nothing is masked."""
        known = self._values.get(slot)
        if known is not None and known[0] == text:
            return known[1] if known[1] != text else text
        made = self._masker.value_text(text)
        self._values[slot] = (text, made)
        return made

    def request(self, request: WireRequest) -> WireRequest:
        """What an attempt sends."""
        return self._masker.request(request, self._stream)

    def response(self, number: int, attempt: Attempt) -> Attempt:
        """An attempt with what came back so far masked."""
        now = (attempt.head, len(attempt.chunks), attempt.end, attempt.error is None, len(attempt.seqs))
        known = self._responses.get(number)
        if known is None or known[0] != now:
            known = self._responses[number] = (now, self._masker.response(attempt))
        return known[1]


_UNCHOSEN = ("clock:", "random:os.urandom:", "random:seed", "random:state", "random:getrandbits:", "random:numpy:")
"""Sources of times and of bits that nobody has chosen. To look for secrets in them finds nothing, but by chance."""


def readings(found: list[ReadingRecord], masker: Masker) -> list[ReadingRecord]:
    """Readings; most are numbers, which are left alone, and so is what a clock showed."""
    for reading in found:
        if reading.source.startswith(_UNCHOSEN):
            continue
        if reading.source.startswith(VARIABLE):
            name = reading.source.removeprefix(VARIABLE)
            reading.values = [_variable(name, str(value), masker) for value in reading.values]
            continue
        kinds = set(map(type, reading.values))
        if str in kinds or dict in kinds or list in kinds:
            reading.values = [masker.value(value) for value in reading.values]
    return found


_SECRET = re.compile(
    r"(?:^|_)(?:PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|PAT|SECRETS?|TOKEN|API_?KEY|KEY|CREDENTIALS?|COOKIE)"
    r"(?:$|_(?!PATH$|FILE$|DIR$|URL$|ID$|NAME$))",
    re.IGNORECASE,
)
"""Finds it in names of variables that are likely to hold a secret …"""
_NO_SECRET = re.compile(
    r"[\d.,:+-]*|true|false|yes|no|on|off|none|null|.{0,5}|.*://.*|[./~].*", re.IGNORECASE | re.DOTALL
)
"""… which these are not: numbers, switches, addresses (whose passwords are known by their place), paths."""


def _variable(name: str, told: str, masker: Masker) -> str:
    """The JSON text of a variable of the environment, by whose name it may be a secret."""
    value = json.loads(told)
    if value is None:
        return told
    masked = masker.value({name: value})
    made = masked[name] if isinstance(masked, dict) and name in masked else masked
    if made == value and masker.rules.defaults and _SECRET.search(name) and not _NO_SECRET.fullmatch(value):
        made = masker.token(value, "environment")
    return told if made == value else json.dumps(made)


def note(found: Note, masker: Masker) -> Note:
    """A line of the capture manifest."""
    if found.what in masker.said:
        return found
    what, where = masker.text(found.what), masker.text(found.where)
    return found if (what, where) == (found.what, found.where) else replace(found, what=what, where=where)
