"""How the program of this process ends: exit status, exception, declared outcome, standard output.

Where the status is not known it is left out and never compared.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NoReturn

from otel_agent_replay.assembly import exits
from otel_agent_replay.boundary import callers, real
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording import codec, tracebacks
from otel_agent_replay.recording.values import Raised, Returned
from otel_agent_replay.recording.variables import beginning

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_agent_replay.recording.values import Json, Outcome

KEPT_STDOUT = 64 * 1024
"""So many characters of standard output are kept, to show where two ends differ; all of it is digested."""


PROMPTERS = frozenset(("bdb", "cmd", "pdb"))
"""Modules that write to standard output for whoever debugs the program, which is no part of its output."""


class Ending:
    """Watches for the end of this process and tells `ended` once, with what is known of it.

    Args:
        ended: called at the end, in the process that started, never in a forked child.
    """

    def __init__(self, ended: Callable[[dict[str, Json]], None]) -> None:
        self._ended = ended
        self._pid = real.getpid()
        self._lock = threading.RLock()
        self._told = False
        self._status: int | None = 0
        self._exception: dict[str, Json] | None = None
        self._digest = blake2b(digest_size=16)
        self._length = 0
        self._kept: list[str] = []
        self._tee = False

    def watch(self) -> None:
        """Install the hooks; they call through to what was there."""
        self._watch_exit()
        self._watch_exceptions()
        self._watch_stdout()
        atexit.register(self.tell)

    def tell(self) -> None:
        """The process ends now. Later calls wait until that is told; calls in a forked child do nothing.

        A process whose main thread ends while another tells would be gone before it is told.
        """
        if real.getpid() != self._pid:
            return
        with self._lock:
            if not self._told:
                self._told = True
                self._ended(self.outcome())

    def forget(self) -> None:
        """Tell nobody."""
        self._told = True

    def outcome(self) -> dict[str, Json]:
        """What is known of the end, so far."""
        outcome: dict[str, Json] = {"exit_status": self._status}
        if self._exception is not None:
            outcome["exception"] = self._exception
        if self._tee:
            outcome["stdout"] = {
                "digest": self._digest.hexdigest(),
                "length": self._length,
                "text": beginning("".join(self._kept), KEPT_STDOUT),
            }
        return outcome

    def raised(self, error: BaseException) -> None:
        """An exception that nothing caught ends the program."""
        self._status = 130 if isinstance(error, KeyboardInterrupt) else 1
        self._exception = describe(error)

    def _watch_exit(self) -> None:
        if not exits.watch(self._exiting):
            self._status = None
        leave, leave_now = sys.exit, os._exit

        def exit_(code: object = None, /) -> NoReturn:
            try:
                leave(code)  # type: ignore[arg-type]  # as the caller gave it
            except SystemExit:  # only what was caught is an exception yet, and asked for its code
                raise

        def exit_now(status: int) -> NoReturn:
            if real.getpid() == self._pid:
                self._status = status
                self.tell()
            leave_now(status)

        sys.exit = exit_
        os._exit = exit_now

    def _watch_exceptions(self) -> None:
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.raised(error)
            if isinstance(error, DivergenceError):
                # The report says it whole; sixty lines of a client's inside would hide where the agent was.
                kept = tracebacks.listed(trace, lambda frame: callers.kind_of(frame) == callers.AGENT)
                sys.stderr.write("".join(["The program departed from its recording here:\n", *kept]))
            else:
                tracebacks.hide_in(error)
                before(kind, error, error.__traceback__)

        sys.excepthook = hook

    def _watch_stdout(self) -> None:
        stdout: Any = sys.stdout
        write = getattr(stdout, "write", None)
        if write is None:
            return

        def tee(text: str, /) -> int:
            written: int = write(text)
            if sys._getframe(1).f_globals.get("__name__") in PROMPTERS:  # noqa: SLF001 (its public name)
                return written
            self._digest.update(text.encode("utf-8", "surrogatepass"))
            if self._length < KEPT_STDOUT:
                self._kept.append(text)
            self._length += len(text)
            return written

        try:
            stdout.write = tee
        except AttributeError:
            return  # a stream that takes no attributes: its text is not compared
        self._tee = True

    def _exiting(self, code: object) -> None:
        self._status = status_of(code)


def run_outcome(declared: dict[str, Json], outcome: Outcome) -> dict[str, Json]:
    """How a run that is no process ended: `declared`, and `exception` or `returned`."""
    ended: dict[str, Json] = {"declared": dict(declared)} if declared else {}
    if isinstance(outcome, Raised):
        ended["exception"] = describe(outcome.error)
    elif isinstance(outcome, Returned) and outcome.value is not None:
        ended["returned"] = codec.encode(outcome.value, strict=False)
    return ended


def status_of(code: object) -> int:
    """Exit status of the process for the code of a `SystemExit`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def describe(error: BaseException) -> dict[str, Json]:
    """Type and message of an exception."""
    kind = type(error)
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "message": beginning(str(error), 2000)}
