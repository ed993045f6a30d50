"""Settings: the environment, read once. Everything below the assembly takes arguments.

Each constant is an environment variable that `opentelemetry-instrument` also offers as a flag
(``OTEL_AGENT_REPLAY_HOME`` as ``--agent_replay_home``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import callers
from otel_agent_replay.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

OTEL_AGENT_REPLAY_HOME = "OTEL_AGENT_REPLAY_HOME"
"""Directory of local state: the spool, the embedded store, keys. Default: the user's state directory."""

OTEL_AGENT_REPLAY_DSN = "OTEL_AGENT_REPLAY_DSN"
"""The store: ``chdb://PATH`` (embedded; the default, under the home) or ``clickhouse://HOST:PORT/DATABASE``."""

OTEL_AGENT_REPLAY_MODE = "OTEL_AGENT_REPLAY_MODE"
"""``record`` (the default under `opentelemetry-instrument`) or ``off``."""

OTEL_AGENT_REPLAY_RECORD_REPLAYS = "OTEL_AGENT_REPLAY_RECORD_REPLAYS"
"""Whether a replay is recorded too, as a run of its own that names its origin: ``auto`` (default: `agent-replay
replay` is, `replay()` in a program is not, and none is with ``OTEL_AGENT_REPLAY_MODE=off``), ``on`` or ``off``."""

OTEL_AGENT_REPLAY_ENVIRONMENT = "OTEL_AGENT_REPLAY_ENVIRONMENT"
"""Names, separated by commas, of environment variables whose values are recorded and answered in a replay.
Default: none. Credentials are always recorded by name only."""

OTEL_AGENT_REPLAY_READINGS_INCLUDE = "OTEL_AGENT_REPLAY_READINGS_INCLUDE"
"""Dotted names of modules, separated by commas, whose readings of the clock and of entropy are recorded as the
program's own, with the modules below them. Default: the program, and libraries that are no event loop, client,
server, telemetry or test tool."""

OTEL_AGENT_REPLAY_READINGS_EXCLUDE = "OTEL_AGENT_REPLAY_READINGS_EXCLUDE"
"""The same for modules that keep the real clock and real entropy. The longer name wins. Default: none."""

OTEL_AGENT_REPLAY_ORDER = "OTEL_AGENT_REPLAY_ORDER"
"""``auto`` (default: completions are held back while one run owns the process), ``strict`` or ``observed``."""

OTEL_AGENT_REPLAY_NAME = "OTEL_AGENT_REPLAY_NAME"
"""Name of the run of this process. Default: the script or module."""

OTEL_AGENT_REPLAY_SHIP = "OTEL_AGENT_REPLAY_SHIP"
"""``auto`` (default: recordings are shipped where OTEL_EXPORTER_OTLP_ENDPOINT names a receiver) or ``off``."""

OTEL_AGENT_REPLAY_BATCH_BYTES = "OTEL_AGENT_REPLAY_BATCH_BYTES"
"""Bytes of a request to the receiver, at most. Default: 3,500,000, which receivers of gRPC and HTTP take by default."""

OTEL_AGENT_REPLAY_EXIT_WAIT = "OTEL_AGENT_REPLAY_EXIT_WAIT"
"""Seconds that the end of a process waits for its recordings to be shipped, at most. Default: 2."""

OTEL_AGENT_REPLAY_SPOOL_LIMIT = "OTEL_AGENT_REPLAY_SPOOL_LIMIT"
"""Bytes that the spool may take, as a number with or without ``K``, ``M``, ``G``; 0 for any number. Default: 10G.
At the limit recording stops, and the runs that it hurts say so."""

OTEL_AGENT_REPLAY_SERVE_TOKEN = "OTEL_AGENT_REPLAY_SERVE_TOKEN"  # noqa: S105 (a name)
"""The token of `agent-replay serve` that allows writing by SQL; elsewhere than on loopback every request needs one.
Default: one is made and kept beside the store."""

OTEL_AGENT_REPLAY_SERVE_READ_TOKEN = "OTEL_AGENT_REPLAY_SERVE_READ_TOKEN"  # noqa: S105 (a name)
"""The token of `agent-replay serve` that allows reading by SQL elsewhere than on loopback. Default: none."""
OTEL_AGENT_REPLAY_KEEP_SUCCEEDED = "OTEL_AGENT_REPLAY_KEEP_SUCCEEDED"
"""How long `agent-replay retention` keeps runs that succeeded: ``7d`` (default), ``12h``, ``forever``."""

OTEL_AGENT_REPLAY_KEEP_FAILED = "OTEL_AGENT_REPLAY_KEEP_FAILED"
"""The same for runs that failed or never ended. Default: ``90d``."""

OTEL_AGENT_REPLAY_CAPTURE = "OTEL_AGENT_REPLAY_CAPTURE"
"""What is recorded beside calls, separated by commas: ``process`` (commands), ``filesystem`` (files and directories),
``human`` (what people type), ``machine`` (host, user, processors and the like). Default: all; ``none`` for none. What
is not recorded is left to the machine in a replay."""

OTEL_AGENT_REPLAY_FILES_INCLUDE = "OTEL_AGENT_REPLAY_FILES_INCLUDE"
"""Patterns, separated by commas, of files that are recorded though they would not be, such as ``/etc/agent/*``. ``*``
is any text; a path below the directory that the run begins in is named from there."""

OTEL_AGENT_REPLAY_FILES_EXCLUDE = "OTEL_AGENT_REPLAY_FILES_EXCLUDE"
"""The same of files that are never recorded, and in a replay are left on the disk, such as ``prompts/*``."""

OTEL_AGENT_REPLAY_FILE_LIMIT = "OTEL_AGENT_REPLAY_FILE_LIMIT"
"""Bytes of a file that are recorded, at most. Default: 16M. A larger file is read from the disk in a replay, where it
is still what it was; else the replay cannot go on."""

OTEL_AGENT_REPLAY_MASK_DEFAULTS = "OTEL_AGENT_REPLAY_MASK_DEFAULTS"
"""``on`` (default: credentials are masked by the headers, names and shapes that they have) or ``off``."""

OTEL_AGENT_REPLAY_MASK_KEYS = "OTEL_AGENT_REPLAY_MASK_KEYS"
"""Keys of JSON objects, separated by commas, whose values are masked, whatever they hold. Also masks headers, form
fields, query values, attributes and options of commands of these names; capitals, ``-`` and ``_`` do not matter."""

OTEL_AGENT_REPLAY_MASK_PATHS = "OTEL_AGENT_REPLAY_MASK_PATHS"
"""JSON paths, separated by commas, such as ``$.user.email``, ``$.items[*].ssn`` or ``$..ssn``: what stands there is
masked in every body, input, outcome and event of a stream."""

OTEL_AGENT_REPLAY_MASK_PATTERNS = "OTEL_AGENT_REPLAY_MASK_PATTERNS"
"""Python regular expressions, one a line; what they match is masked, or only their group ``secret``."""

OTEL_AGENT_REPLAY_MASK_HOOK = "OTEL_AGENT_REPLAY_MASK_HOOK"
"""``module:function``; given each text, it returns the parts of it to mask. Where it raises, the text is masked."""

OTEL_AGENT_REPLAY_MASK_SECRET = "OTEL_AGENT_REPLAY_MASK_SECRET"  # noqa: S105 (its name)
"""The key that masked values are digested under, at least 16 characters: give it to several machines for equal
tokens on all. Default: made once, in the home, mode 0600."""

MODES = ("record", "off")
SHIPS = ("auto", "off")
AUTO = "auto"
RECORD_REPLAYS = (AUTO, "on", "off")
ORDERS = ("auto", "strict", "observed")
SWITCH = ("on", "off")
CAPTURES = ("process", "filesystem", "human", "machine", "environment")


@dataclass(frozen=True, slots=True)
class Masking:
    """What is masked, and under which key."""

    defaults: bool = True
    keys: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    hook: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for."""

    home: Path
    dsn: str
    mode: str
    environment: tuple[str, ...]
    include: tuple[str, ...]
    """Modules whose readings count."""
    exclude: tuple[str, ...]
    order: str
    name: str
    ship: bool
    batch_bytes: int
    exit_wait: float
    """Seconds."""
    spool_limit: int
    """Bytes; 0 for none."""
    keep_succeeded_ns: int | None
    """Nanoseconds; None for ever."""
    keep_failed_ns: int | None
    record_replays: str = AUTO
    mask: Masking = field(default_factory=lambda: Masking())
    capture: tuple[str, ...] = CAPTURES
    files_include: tuple[str, ...] = ()
    files_exclude: tuple[str, ...] = ()
    file_limit: int = 16 << 20
    """Bytes."""

    @property
    def spool(self) -> Path:
        """Directory of the spool files."""
        return self.home / "spool"


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises UsageError, naming the variable, where one has no meaning."""
    home = Path(environ.get(OTEL_AGENT_REPLAY_HOME) or _default_home()).expanduser().absolute()
    return Settings(
        home=home,
        dsn=environ.get(OTEL_AGENT_REPLAY_DSN) or f"chdb://{home / 'store'}",
        mode=_choice(environ, OTEL_AGENT_REPLAY_MODE, MODES),
        environment=_listed(environ, OTEL_AGENT_REPLAY_ENVIRONMENT),
        include=_modules(environ, OTEL_AGENT_REPLAY_READINGS_INCLUDE),
        exclude=_modules(environ, OTEL_AGENT_REPLAY_READINGS_EXCLUDE),
        order=_choice(environ, OTEL_AGENT_REPLAY_ORDER, ORDERS),
        name=environ.get(OTEL_AGENT_REPLAY_NAME, ""),
        ship=_choice(environ, OTEL_AGENT_REPLAY_SHIP, SHIPS) == "auto",
        batch_bytes=_bytes(environ, OTEL_AGENT_REPLAY_BATCH_BYTES, "3500000", least=65536),
        exit_wait=_seconds(environ, OTEL_AGENT_REPLAY_EXIT_WAIT, "2"),
        spool_limit=_bytes(environ, OTEL_AGENT_REPLAY_SPOOL_LIMIT, "10G"),
        keep_succeeded_ns=_period(environ, OTEL_AGENT_REPLAY_KEEP_SUCCEEDED, "7d"),
        keep_failed_ns=_period(environ, OTEL_AGENT_REPLAY_KEEP_FAILED, "90d"),
        record_replays=_choice(environ, OTEL_AGENT_REPLAY_RECORD_REPLAYS, RECORD_REPLAYS),
        mask=Masking(
            defaults=_choice(environ, OTEL_AGENT_REPLAY_MASK_DEFAULTS, SWITCH) == "on",
            keys=_listed(environ, OTEL_AGENT_REPLAY_MASK_KEYS),
            paths=_listed(environ, OTEL_AGENT_REPLAY_MASK_PATHS),
            patterns=_listed(environ, OTEL_AGENT_REPLAY_MASK_PATTERNS, "\n"),
            hook=environ.get(OTEL_AGENT_REPLAY_MASK_HOOK, "").strip(),
            secret=environ.get(OTEL_AGENT_REPLAY_MASK_SECRET, ""),
        ),
        capture=_several(environ, OTEL_AGENT_REPLAY_CAPTURE, CAPTURES),
        files_include=_listed(environ, OTEL_AGENT_REPLAY_FILES_INCLUDE),
        files_exclude=_listed(environ, OTEL_AGENT_REPLAY_FILES_EXCLUDE),
        file_limit=_bytes(environ, OTEL_AGENT_REPLAY_FILE_LIMIT, "16M"),
    )


def _listed(environ: Mapping[str, str], name: str, separator: str = ",") -> tuple[str, ...]:
    return tuple(part.strip() for part in environ.get(name, "").split(separator) if part.strip())


def _modules(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    names = _listed(environ, variable)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{variable} names {name!r}, which is no module; write dotted names such as mylib.clock.")
        if name.partition(".")[0] in callers.BASES:
            raise UsageError(f"{variable} names {name!r}, which programs run upon: it keeps its clock; leave it out.")
    return names


def _several(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    """Some of the choices; all where nothing is set."""
    given = tuple(part.lower() for part in _listed(environ, name))
    if given == ("none",):
        return ()
    for one in given:
        if one not in choices:
            raise UsageError(f"{name} names {one!r}; set it to some of {', '.join(choices)}, or to none.")
    return given or choices


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = environ.get(name, "").strip().lower() or choices[0]
    if value not in choices:
        raise UsageError(f"{name} is {value!r}; set it to one of {', '.join(choices)}.")
    return value


def _bytes(environ: Mapping[str, str], name: str, default: str, least: int = 0) -> int:
    text = (environ.get(name) or default).strip().upper().removesuffix("B").removesuffix("I")
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text if unit == 1 else text[:-1].strip()
    value = int(digits) * unit if digits.isascii() and digits.isdigit() else -1
    if value < least:
        raise UsageError(f"{name} is {environ.get(name)!r}; set it to a number of bytes, at least {least:,}.")
    return value


def _seconds(environ: Mapping[str, str], name: str, default: str) -> float:
    try:
        value = float(environ.get(name) or default)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise UsageError(f"{name} is {environ.get(name)!r}; set it to a number of seconds.")
    return value


_HOUR_NS = 3_600_000_000_000
_UNITS = {"d": 24 * _HOUR_NS, "h": _HOUR_NS, "m": _HOUR_NS // 60, "s": _HOUR_NS // 3600}


def _period(environ: Mapping[str, str], name: str, default: str) -> int | None:
    """A time in nanoseconds; None where it is `forever`."""
    text = environ.get(name, "").strip().lower() or default
    if text == "forever":
        return None
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) < 7 and unit in _UNITS):
        raise UsageError(f"{name} is {text!r}; set it to a time such as 7d, 12h or 30m, or to forever.")
    return int(number) * _UNITS[unit]


def _default_home() -> str:
    from platformdirs import user_state_dir  # noqa: PLC0415 (only where no home is set)

    return user_state_dir("otel-agent-replay")
