"""Every exception that this package raises.

    AgentReplayError(Exception)
    ├── UsageError                    the command line or a call was wrong             exit 2
    ├── RecordingError                the recording cannot be used                     exit 128
    │   ├── UnknownRun                no run has this id
    │   ├── AmbiguousRun              several runs have it
    │   ├── ReplayOfReplay            it is a replay, which its origin is replayed for
    │   └── UnreadableRecording       what is stored is not a recording we can read
    ├── StoreError                    the store cannot be opened or written            exit 128
    │   ├── StoreMissing              no engine installed and no server named
    │   └── StoreTooNew               its schema is newer than this version
    ├── CannotStart                   the recorded program cannot be run here          exit 125
    │   └── Untrusted                 it was recorded by somebody else
    ├── Unencodable                   a value cannot be written down exactly
    └── ReplayedError                 stands for a recorded exception whose class is not allowed here

    DivergenceError(BaseException)    the program departs from its recording           exit 125

`DivergenceError` is no `Exception`: agents and SDK retry loops catch those, and a divergence that is
swallowed would become a wrong answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_agent_replay.recording.divergence import Divergence

EXIT_HOLDS = 0
"""The expectation holds."""
EXIT_FAILS = 1
"""The expectation does not hold."""
EXIT_USAGE = 2
"""Wrong usage of the command line."""
EXIT_CANNOT_JUDGE = 125
"""A divergence came first, or the program could not start; `git bisect run` skips this commit."""
EXIT_NO_RECORDING = 128
"""The recording is unknown or unreadable; `git bisect run` aborts."""


class AgentReplayError(Exception):
    """Base of what this package raises; its message is one sentence and ends with the remedy."""

    exit_code = EXIT_NO_RECORDING


class UsageError(AgentReplayError):
    """The command line, a setting or a call was wrong."""

    exit_code = EXIT_USAGE


class RecordingError(AgentReplayError):
    """The recording cannot be used."""


class UnknownRun(RecordingError):
    """No run has this id."""

    def __init__(self, wanted: str, where: str) -> None:
        super().__init__(f"No run {wanted!r} in {where}; `agent-replay runs` lists the runs that are there.")


class AmbiguousRun(RecordingError):
    """Several runs have this trace id or prefix."""

    def __init__(self, wanted: str, candidates: Sequence[str]) -> None:
        listed = ", ".join(candidates[:10]) + (", …" if len(candidates) > 10 else "")
        super().__init__(f"{wanted!r} names {len(candidates)} runs ({listed}); give one of these run ids whole.")


class ReplayOfReplay(RecordingError):
    """The run is a replay: it holds what its program asked and was given, and not all that another replay needs."""

    def __init__(self, run_id: str, origin: str) -> None:
        super().__init__(
            f"Run {run_id} is a replay itself; replay the run that it is one of: agent-replay replay {origin}"
        )


class UnreadableRecording(RecordingError):
    """What is stored is not a recording that this version can read."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__(f"{where} cannot be read: {why}; {remedy}.")


class StoreError(AgentReplayError):
    """The store cannot be opened, read or written."""


class StoreMissing(StoreError):
    """No embedded engine is installed and no server is named."""

    def __init__(self) -> None:
        super().__init__(
            "There is no ClickHouse to read: install the embedded engine with "
            "`pip install 'otel-agent-replay[embedded]'`, or name a server in OTEL_AGENT_REPLAY_DSN."
        )


class StoreTooNew(StoreError):
    """The store was written by a newer schema than this version knows."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"The store {where} has schema {found}, this version knows up to {known}; upgrade otel-agent-replay."
        )


class CannotStart(AgentReplayError):
    """The recorded program cannot be run here."""

    exit_code = EXIT_CANNOT_JUDGE


class Untrusted(CannotStart):
    """The recording was not made by this user on this machine, so its command is not run unasked."""

    def __init__(self, run_id: str, command: str) -> None:
        super().__init__(
            f"Run {run_id} was not recorded by this user here, so its command is not run: {command}; "
            "give a command of your own after `--`, or add --trust."
        )


class Unencodable(AgentReplayError):
    """A value cannot be written down so that it comes back the same."""


class ReplayedError(AgentReplayError):
    """Stands for a recorded exception whose class is not on this program's allow-list.

    Attributes:
        recorded_type: its class when recorded, as ``module:qualname``.
        recorded_message: its ``str()`` when recorded.
    """

    def __init__(self, recorded_type: str, recorded_message: str) -> None:
        self.recorded_type = recorded_type
        self.recorded_message = recorded_message
        super().__init__(f"{recorded_type}: {recorded_message}")


class DivergenceError(BaseException):
    """The program departs from its recording.

    It is sticky: a program that swallows it still ends as diverged.

    Attributes:
        divergence: the class, the position, the nearest recorded crossing and only what differs.
    """

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(str(divergence))
