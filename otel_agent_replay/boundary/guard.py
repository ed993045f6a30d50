"""What leaves the process outside of every boundary: noted while recording, refused in a replay.

Decisions only; `instrument.libraries.sockets` looks out and carries them out. A debugger and telemetry stand
outside: a debugger's sockets are let through, telemetry's are refused in a replay without a word. Who it is that
opens a socket is told from the innermost code that is no library's plumbing: a function of the program that a
tracer has wrapped is the program.
"""

from __future__ import annotations

import ipaddress
import socket
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_agent_replay.boundary.callers import AGENT, BASE, DEBUGGERS, SEEN_THROUGH, STDLIB, frames, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_agent_replay.boundary.lanes import Lane

REPORTERS: Final = (
    "agentops",
    "arize",
    "braintrust.logger",
    "datadog",
    "ddtrace.internal",
    "elasticapm.transport",
    "google.cloud.logging",
    "google.cloud.monitoring",
    "google.cloud.trace",
    "honeybadger",
    "langfuse._client",
    "langfuse._task_manager",
    "langsmith._internal",
    "logfire._internal.exporters",
    "logging.handlers",
    "mlflow.tracing.export",
    "newrelic",
    "opentelemetry.exporter",
    "opentelemetry.sdk",
    "opik.message_processing",
    "otel_agent_replay.telemetry",
    "posthog.consumer",
    "posthog.request",
    "prometheus_client",
    "raygun4py",
    "rollbar",
    "segment.analytics",
    "sentry_sdk.monitor",
    "sentry_sdk.sessions",
    "sentry_sdk.transport",
    "sentry_sdk.worker",
    "statsd",
    "traceloop.sdk",
)
"""Modules, by the beginning of their names, that send what is told about the program, and nothing else."""

_REPORTING = {
    ("langsmith.client", name) for name in ("create_run", "update_run", "batch_ingest_runs", "multipart_ingest")
}
_REPORTERS = tuple(f"{name}." for name in REPORTERS)
_DEBUGGER_NAMES = DEBUGGERS | {"pdb", "bdb"}
_PLUMBING = frozenset({"multiprocessing", "socketpair", "_fallback_socketpair", "_write_to_self"})

OPEN: ContextVar[bool] = ContextVar("otel_agent_replay_network_open", default=False)
"""Set where code is meant to reach the network whatever is closed: a boundary that was freed by name."""

_closed: list[bool] = []
_on_close: list[Callable[[], None]] = []


def close() -> None:
    """From now on no code of this process reaches the network, whatever its context; for good."""
    _closed.append(True)
    for done in _on_close:
        done()


def is_closed() -> bool:
    """Whether `close` was called."""
    return bool(_closed)


def on_close(done: Callable[[], None]) -> None:
    """Let `done` be called by `close`."""
    if done not in _on_close:
        _on_close.append(done)


class Who(Enum):
    """Who opens a socket."""

    PROGRAM = auto()
    DEBUGGER = auto()
    TELEMETRY = auto()
    PLUMBING = auto()
    """The standard library, to speak with itself."""


@dataclass(frozen=True, slots=True)
class Opener:
    """Who it is, and where that stands."""

    who: Who
    module: str
    where: str
    """File and line of the program's own code, else of `module`."""
    direct: bool = False
    """It is the program's own code, through no library or other standard module."""


class Decision(Enum):
    """What becomes of it."""

    PASS = auto()
    NOTE = auto()
    """Let it go, and add a line to the capture manifest."""
    REFUSE = auto()
    """Refuse it as an unreachable host would."""
    DIVERGE = auto()


def decide(lane: Lane | None, who: Who, *, local: bool, closed: bool) -> Decision:
    """What becomes of a socket that is being opened.

    Args:
        lane: the lane of the code that opens it; None for none.
        who: who opens it.
        local: it leads to this machine by a path of the file system, not by an address.
        closed: the whole process is a replay.
    """
    if who in (Who.DEBUGGER, Who.PLUMBING):
        return Decision.PASS
    replaying = closed or (lane is not None and lane.session.replaying)
    if who is Who.TELEMETRY:
        return Decision.REFUSE if replaying and not local else Decision.PASS
    if replaying:
        return Decision.DIVERGE
    return Decision.PASS if lane is None or inside(lane) else Decision.NOTE


def inside(lane: Lane) -> bool:
    """Whether the code of this lane runs inside a crossing, whose outcome holds whatever it takes in."""
    outer: Lane | None = lane
    while outer is not None:
        if outer.beneath is not None or outer.how == "call":
            return True
        outer = outer.parent
    return False


def opener(frame: FrameType | None) -> Opener:
    """Who opens a socket in `frame`. Told by the innermost frame that says it."""
    module, where, last = "", "", ""
    for outer in frames(frame):
        name = str(outer.f_globals.get("__name__", ""))
        who = _who(name, outer)
        if who is not None:
            return Opener(who, name, _place(outer))
        kind = kind_of(outer)
        if kind == AGENT:
            direct = not module and last in ("", "socket")
            # A standard module that the program calls is named, else the library that stands between.
            return Opener(Who.PROGRAM, module or (name if direct else last), _place(outer), direct)
        if kind in (STDLIB, SEEN_THROUGH, BASE):
            last = last if name.startswith("otel_agent_replay.") else name
        elif not module:
            module, where = name, _place(outer)
    return Opener(Who.PROGRAM, module or last, where)


def is_telemetry_frame(frame: FrameType | None) -> bool:
    """Whether the code in `frame` is sending telemetry or a crash report."""
    return opener(frame).who is Who.TELEMETRY


def _who(module: str, frame: FrameType) -> Who | None:
    top = module.partition(".")[0]
    if top in _DEBUGGER_NAMES or (top == "__main__" and _is_adapter(frame.f_code.co_filename)):
        return Who.DEBUGGER
    if top in _PLUMBING or (top in ("socket", "asyncio") and frame.f_code.co_name in _PLUMBING):
        return Who.PLUMBING
    if f"{module}.".startswith(_REPORTERS) or (module, frame.f_code.co_name) in _REPORTING:
        return Who.TELEMETRY
    return None


def _is_adapter(filename: str) -> bool:
    """Whether this is the program by which debugpy speaks with an editor, wherever the editor keeps it."""
    package, _, _ = filename.rpartition(_ADAPTER)
    return bool(package) and Path(package).name in DEBUGGERS


_ADAPTER = str(Path("/", "adapter", "__main__.py"))


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def address_text(address: object) -> str:
    """An address as it is shown: host and port, or a path. No bytes of a path are lost or raise."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
    if isinstance(address, bytes):
        return address.decode("utf-8", "backslashreplace").replace("\0", "@")
    return str(address).replace("\0", "@")


def needs_no_lookup(host: object) -> bool:
    """Whether the name of a host says its address, or is this machine's: nothing is asked of the network."""
    if host is None:
        return True
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    if name.lower() in ("", "localhost", "localhost.", "ip6-localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
