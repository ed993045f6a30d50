"""Credentials in the environment: recorded by name, and answered in a replay that has none.

Everything that reads an environment variable in Python goes through one method of `os.environ`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import OUTSIDE, caller, frames, kind_of
from otel_agent_replay.instrument._ambient import Installation, Patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_agent_replay.boundary.session import Session

CREDENTIAL: Final = re.compile(
    r"(?:(?:^|_)(?:API_?KEYS?|ACCESS_?KEY(?:_ID)?|SECRET(?:_?KEY)?|SECRETS|TOKENS?|CREDENTIALS?|PRIVATE_?KEY|AUTH"
    r"|AUTH_?KEY)|PASSWORD|PASSWD)$",
    re.IGNORECASE,
)
"""Ends of the names of variables that hold credentials."""

_named: set[str] = set()
_judged: dict[object, bool] = {}
_written: WeakKeyDictionary[Session, set[object]] = WeakKeyDictionary()
"""What the program of each session has set by itself: that is no reading of the world."""


def watch(names: Iterable[str]) -> None:
    """Let these variables too be answered by the session, whatever they are called."""
    _named.update(names)
    _judged.clear()


def is_credential(name: str) -> bool:
    """Whether a variable of this name is one that the session is asked about."""
    return name in _named or CREDENTIAL.search(name) is not None


def install() -> Callable[[], None]:
    """Patch the environment. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    kind = type(os.environ)
    patches.put(kind, "__getitem__", _getitem(kind.__getitem__))
    patches.put(kind, "__setitem__", _setitem(kind.__setitem__))
    patches.put(kind, "__delitem__", _delitem(kind.__delitem__))


_installation = Installation(_put)


def _getitem(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def __getitem__(self: Any, key: Any) -> Any:  # noqa: N807 (it stands for one)
        lane = lanes.current()
        if lane is None:
            return original(self, key)
        watched = _judged.get(key)
        if watched is None:
            watched = _judge(key)
        if not watched or _by_outsiders():
            return original(self, key)
        if lane.session.replaying and key in _written.get(lane.session, ()):
            return original(self, key)
        try:
            value = original(self, key)
        except KeyError:
            given = lane.session.environment(_text(key), None)
            if given is None:
                raise
            return _alike(given, key)
        given = lane.session.environment(_text(key), _text(value))
        if given is None:
            raise KeyError(key)
        return value if given == _text(value) else _alike(given, key)

    return __getitem__


def _setitem(original: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def __setitem__(self: Any, key: Any, value: Any) -> None:  # noqa: N807 (it stands for one)
        original(self, key, value)
        lane = lanes.current()
        if lane is not None and lane.session.replaying:
            _written.setdefault(lane.session, set()).add(key)

    return __setitem__


def _delitem(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def __delitem__(self: Any, key: Any) -> None:  # noqa: N807 (it stands for one)
        try:
            original(self, key)
        except KeyError:
            # A credential that only the recording had is taken out as it was then: without an error.
            lane = lanes.current()
            if lane is None or not lane.session.replaying or not _judge(key):
                raise
            if lane.session.environment(_text(key), None) is None:
                raise

    return __delitem__


def _judge(key: object) -> bool:
    if not isinstance(key, str | bytes):
        return False
    judged = is_credential(_text(key))
    if len(_judged) < 10_000:
        _judged[key] = judged
    return judged


def _text(value: str | bytes) -> str:
    return os.fsdecode(value)


def _alike(value: str, key: str | bytes) -> str | bytes:
    return os.fsencode(value) if isinstance(key, bytes) else value


def _by_outsiders() -> bool:
    """Whether telemetry, a server or the like reads for itself; `os` and the classes of mappings only pass on."""
    for frame in frames(caller(2)):
        if frame.f_globals.get("__name__") not in ("os", "_collections_abc", "collections.abc"):
            return kind_of(frame) >= OUTSIDE
    return False
