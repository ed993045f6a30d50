"""Variables of the environment: what the program's own code reads by name, and credentials, whoever looks for them.

A credential is recorded by name only, and answered with a placeholder in a replay that has none. Any other variable is
a reading, with its value: the program that read where its model is gets the same answer on another machine. So is what
tells a client of a model whom to ask, whoever reads it: the program that leaves it to the client depends on it as much.
What the program has set by itself is no reading, and who takes the whole environment takes the one that is there.

Everything that reads an environment variable in Python goes through one method of `os.environ`.
"""

from __future__ import annotations

import json
import os
import re
from dis import opname
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from otel_agent_replay.boundary import lanes
from otel_agent_replay.boundary.callers import AGENT, DISPATCH, LIBRARY, OUTSIDE, TRANSPORT, caller, frames, kind_of
from otel_agent_replay.instrument._ambient import Installation, Patches
from otel_agent_replay.instrument._asking import ENVIRONMENT, is_handed_on, lane_of
from otel_agent_replay.recording.values import VARIABLE
from otel_agent_replay.recording.variables import has_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from otel_agent_replay.boundary.session import Session

CREDENTIAL: Final = re.compile(
    r"(?:(?:^|_)(?:API_?KEYS?|ACCESS_?KEY(?:_ID)?|SECRET(?:_?KEY)?|SECRETS|TOKENS?|CREDENTIALS?|PRIVATE_?KEY|AUTH"
    r"|AUTH_?KEY)|PASSWORD|PASSWD)$",
    re.IGNORECASE,
)
"""Ends of the names of variables that hold credentials …"""
_COUNT: Final = re.compile(
    r"(?:^|_)(?:MAX|MIN|N|NUM|TOTAL|CONTEXT|INPUT|OUTPUT|PROMPT|COMPLETION|THINKING|BUDGET|NEW)_(?:\w+_)?TOKENS?$",
    re.IGNORECASE,
)
"""… but for these, which count tokens of a model."""

_OF_CLIENTS: Final = re.compile(r"(?:AZURE_OPENAI|OPENAI|ANTHROPIC)_\w+")
"""Names of variables that tell a client of a model whom to ask, and as whom, besides its credentials."""

_PROGRAM: Final = frozenset({AGENT, DISPATCH})
_ANYBODY: Final = _PROGRAM | {LIBRARY, TRANSPORT}

_OURS: Final = ("OTEL_AGENT_REPLAY_", "PYTHONPATH", "PYTHONHASHSEED")
"""Beginnings of the names of what sets recording and replaying up, and differs in each."""

_MAPPING: Final = frozenset({"os", "_collections_abc", "collections.abc"})
_THROUGH: Final = _MAPPING | {"posixpath", "shutil", "otel_agent_replay.doctor.watch"}
"""Modules that only pass a name on."""
_BY_NAME: Final = frozenset(
    "get getenv getenvb __contains__ pop setdefault expandvars repl which get_exec_path".split()  # noqa: SIM905 (names)
)
"""Functions in them that ask for one variable; the others take them all."""
_SUBSCRIPT: Final = ("BINARY_SUBSCR", "BINARY_OP")

_named: set[str] = set()
_judged: dict[object, bool] = {}


def watch(names: Iterable[str]) -> None:
    """Let these variables too be answered by the session, whatever they are called."""
    _named.update(names)
    _judged.clear()


def is_credential(name: str) -> bool:
    """Whether a variable of this name is one that the session is asked about."""
    return name in _named or (CREDENTIAL.search(name) is not None and _COUNT.search(name) is None)


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
        if not watched:
            return _plain(original, self, key)
        if _by_outsiders():
            return original(self, key)
        if lane.session.replaying and _text(key) in _changed_for(lane.session):
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
        before = _held(self, key)
        original(self, key, value)
        _is_changed(self, key, before, who_reads(caller())[0] is not None)

    return __setitem__


def _delitem(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def __delitem__(self: Any, key: Any) -> None:  # noqa: N807 (it stands for one)
        before = _held(self, key)
        frame = caller()
        told = _deleted(key, before, frame) if isinstance(key, str | bytes) else None
        if told == "null":
            raise KeyError(key)
        try:
            original(self, key)
        except KeyError:
            if told is None and (not isinstance(key, str | bytes) or not _was_there(key)):
                raise  # else it is taken out as it was then: without an error
        _is_changed(self, key, before, who_reads(frame)[0] is not None)

    return __delitem__


def _deleted(key: str | bytes, before: bytes | None, frame: FrameType | None) -> str | None:
    """A variable is deleted: whether it is there is a reading. What a replay has of it, where that knows of it."""
    lane, name = lane_of(ENVIRONMENT), _text(key)
    if lane is None or frame is None or kind_of(frame) != AGENT or _judge(key) or name.startswith(_OURS):
        return None
    session: Any = lane.session
    if name in _changed_for(session) or (session.replaying and not session.expects(lane, VARIABLE + name, frame)):
        return None
    here = "null" if before is None else json.dumps(os.fsdecode(before))
    told: str = session.read(lane, VARIABLE + name, frame, lambda: here)
    return told if session.replaying else None


def _was_there(key: str | bytes) -> bool:
    """Whether a replay's recording has a variable that nobody has changed since."""
    lane = lanes.current()
    if lane is None or not lane.session.replaying or _text(key) in _changed_for(lane.session):
        return False
    session: Any = lane.session
    if _judge(key):
        return session.environment(_text(key), None) is not None
    return lane_of(ENVIRONMENT) is not None and session.variable(_text(key)) not in (None, "null")


class _Change(NamedTuple):
    """What became of a variable since the process began."""

    before: bytes | None
    """What it was then; None where it was not there."""
    by_program: bool
    """Whether the program's own code changed it last."""


_changed: dict[str, _Change] = {}
_apart: WeakKeyDictionary[Session, dict[str, _Change]] = WeakKeyDictionary()


def _changed_for(session: Session) -> dict[str, _Change]:
    """The variables that were changed, by name.

    The environment is the process's: what one run of it changes is no reading in another. A replay inside of a
    process that goes on beside it has what it changes for itself; what the process has, is the world to it.
    """
    return _apart.setdefault(session, {}) if getattr(session, "apart", False) else _changed


def _held(environ: Any, key: Any) -> bytes | None:
    """What is really there."""
    try:
        held: bytes | None = environ._data.get(environ.encodekey(key))  # noqa: SLF001 (without a reading)
    except (TypeError, AttributeError, UnicodeError):
        return None
    return held


def _is_changed(environ: Any, key: Any, before: bytes | None, by_program: bool) -> None:  # noqa: FBT001
    lane = lanes.current()
    known, name = _changed if lane is None else _changed_for(lane.session), _text(key)
    if name in known:
        before = known[name].before
    if before is not None and _held(environ, key) == before:
        known.pop(name, None)  # it is what it was
    else:
        known[name] = _Change(before, by_program)


def _plain(original: Callable[[Any, Any], Any], environ: Any, key: Any) -> Any:
    """A variable that is no credential: a reading, where the program's own code asks for it by name."""
    lane = lane_of(ENVIRONMENT)
    if lane is None or not isinstance(key, str | bytes):
        return original(environ, key)
    name = _text(key)
    frame, by_name = who_reads(caller(2))
    by_program = frame is not None
    if not by_program and _OF_CLIENTS.fullmatch(name) is not None:
        frame, by_name = who_reads(caller(2), _ANYBODY)
    if frame is None or not by_name or name.startswith(_OURS):
        return original(environ, key)

    def here() -> str:
        try:
            return json.dumps(_text(original(environ, key)))
        except KeyError:
            return "null"

    session: Any = lane.session
    change = _changed_for(session).get(name)
    unexpected = session.replaying and not session.expects(lane, VARIABLE + name, frame)
    if change is not None and (change.by_program or unexpected):
        return original(environ, key)
    if unexpected and not by_program:
        told = session.variable(name) or here()  # where a library asks is no news: it may be another version of it
    else:
        told = session.read(lane, VARIABLE + name, frame, here)
    if session.replaying and change is None and (now := here()) not in (told, "null"):
        if has_token(told):
            told = now  # a token stands for whatever is here
        else:
            session.differs(name)
    value = json.loads(told)
    if value is None:
        raise KeyError(key) from None
    return _alike(value, key)


def who_reads(frame: FrameType | None, kinds: frozenset[int] = _PROGRAM) -> tuple[FrameType | None, bool]:
    """Whose reading it is that `os.environ` is asked by the code in `frame`.

    Returns:
        The code of one of `kinds`, by default the program's own, or None where it is somebody else's; and whether it
        asks for one variable by name, rather than for all of them.
    """
    by_name = whole = False
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module in _THROUGH:
            by_name = by_name or function in _BY_NAME
            whole = whole or (function not in _BY_NAME and function != "__getitem__")
        elif not is_handed_on(module):
            break
        frame = frame.f_back
    if frame is None or kind_of(frame) not in kinds:
        return None, False
    return frame, not whole and (by_name or opname[frame.f_code.co_code[frame.f_lasti]] in _SUBSCRIPT)


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
        if frame.f_globals.get("__name__") not in _MAPPING:
            return kind_of(frame) >= OUTSIDE
    return False
