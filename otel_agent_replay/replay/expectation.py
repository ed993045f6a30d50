"""What a replay is judged by, and the judgement."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from otel_agent_replay.errors import EXIT_CANNOT_JUDGE, EXIT_FAILS, EXIT_HOLDS, UsageError
from otel_agent_replay.recording.canonical import same_value
from otel_agent_replay.recording.variables import Bindings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_agent_replay.recording.values import Json


class Verdict(StrEnum):
    """What came of a replay."""

    HOLDS = "holds"
    FAILS = "fails"
    CANNOT_JUDGE = "cannot-judge"

    @property
    def exit_code(self) -> int:
        """What `git bisect run` understands."""
        return {Verdict.HOLDS: EXIT_HOLDS, Verdict.FAILS: EXIT_FAILS, Verdict.CANNOT_JUDGE: EXIT_CANNOT_JUDGE}[self]


@dataclass(slots=True)
class Judgement:
    """A verdict, and why."""

    verdict: Verdict
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that is expected of the program's end, as given with ``--expect``."""

    text: str
    subject: str
    """exit, exception, stdout, or ``outcome.NAME``."""
    wanted: str

    def check(self, outcome: dict[str, Json]) -> str | None:
        """None where it holds, else one sentence."""
        if self.subject == "exit":
            seen = outcome.get("exit_status")
            return None if str(seen) == self.wanted else f"expected exit {self.wanted}, the program ended with {seen}"
        if self.subject == "exception":
            error = outcome.get("exception")
            name = str(error["type"]) if isinstance(error, dict) else "no exception"
            return (
                None
                if name.rpartition(":")[2] == self.wanted or name == self.wanted
                else f"expected {self.wanted}, saw {name}"
            )
        if self.subject == "stdout":
            return (
                None
                if re.search(self.wanted, stdout_text(outcome))
                else f"standard output has nothing like {self.wanted!r}"
            )
        declared = outcome.get("declared")
        value = declared.get(self.subject.partition(".")[2]) if isinstance(declared, dict) else None
        return None if _text(value) == self.wanted else f"expected {self.text}, the program declared {_text(value)}"


def parse(text: str) -> Expectation:
    """Read ``ok``, ``exit=N``, ``exception=NAME``, ``stdout=REGEX`` or ``outcome.NAME=VALUE``. Raises UsageError."""
    if text == "ok":
        return Expectation(text, "exit", "0")
    subject, equals, wanted = text.partition("=")
    if not equals or not (subject in ("exit", "exception", "stdout") or subject.startswith("outcome.")):
        raise UsageError(
            f"--expect {text!r} is not understood; "
            "write ok, exit=N, exception=NAME, stdout=REGEX or outcome.NAME=VALUE."
        )
    if not wanted and subject == "exception":
        raise UsageError(f"--expect {text!r} names no exception; write exception=NAME.")
    if subject == "exit" and not re.fullmatch(r"-?\d+", wanted):
        raise UsageError(f"--expect {text!r}: {wanted!r} is no exit status; write a number.")
    if subject == "outcome.":
        raise UsageError(f"--expect {text!r} names no part of the outcome; write outcome.NAME=VALUE.")
    if subject == "stdout":
        try:
            re.compile(wanted)
        except re.error as error:
            raise UsageError(f"--expect {text!r}: {error}; write a Python regular expression.") from error
    return Expectation(text, subject, wanted)


_UNSTARTED = re.compile(r"builtins:(?:SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)")
"""Exceptions by which a program, or what it imports, is not there to be run."""


def not_started(recorded: dict[str, Json], seen: dict[str, Json]) -> str | None:
    """Why a program that asked for nothing did not even start; None where that is not known, or was so recorded.

    It is no finding about the program then: somebody bisects, and this commit is one that cannot be tested.
    """
    now, then = seen.get("exception"), recorded.get("exception")
    kind = str(now.get("type")) if isinstance(now, dict) else ""
    if not isinstance(now, dict) or _UNSTARTED.fullmatch(kind) is None:
        return None
    if isinstance(then, dict) and then.get("type") == kind:
        return None
    return f"the program could not start: {kind.rpartition(':')[2]}: {_text(now.get('message'))}"


def judge(
    recorded: dict[str, Json],
    seen: dict[str, Json],
    *,
    diverged: bool,
    unconsumed: int,
    ended: bool,
    expected: Sequence[Expectation],
    bound: Bindings | None = None,
) -> Judgement:
    """Compare how the program ended with what was expected.

    Args:
        recorded: how it ended when it was recorded.
        seen: how it ended now.
        diverged: whether a divergence was raised into the program.
        unconsumed: recorded calls that the program no longer makes.
        ended: whether the recording knows how the program ended; it does not where the process was killed.
        expected: explicit expectations; with none, the program is to end as it did.
        bound: what masked values stand for.
    """
    if diverged:
        return Judgement(Verdict.CANNOT_JUDGE, ["a divergence came first"])
    if expected:
        failed = [reason for expectation in expected if (reason := expectation.check(seen)) is not None]
        return Judgement(Verdict.FAILS if failed else Verdict.HOLDS, failed)
    if unconsumed:
        return Judgement(Verdict.CANNOT_JUDGE, [f"{unconsumed} recorded calls were never asked for"])
    if not ended:
        return Judgement(Verdict.CANNOT_JUDGE, ["the recorded process was killed, or runs still: its end is not known"])
    failed = list(_changes(recorded, seen, bound or Bindings()))
    return Judgement(Verdict.FAILS if failed else Verdict.HOLDS, failed)


def _changes(recorded: dict[str, Json], seen: dict[str, Json], bound: Bindings) -> list[str]:
    """How the program's end differs from the recorded one; what was not recorded is not compared."""
    changes = []
    for name, label in (("exit_status", "exit status"), ("exception", "exception")):
        if (
            name in recorded
            and not same_value(recorded[name], seen.get(name), bound)
            and not (name == "exit_status" and recorded[name] is None)
        ):
            changes.append(f"{label} was {_text(recorded[name])}, is {_text(seen.get(name))}")
    if recorded.get("declared") is not None:
        if not same_value(recorded["declared"], seen.get("declared"), bound):
            changes.append(f"outcome was {_text(recorded['declared'])}, is {_text(seen.get('declared'))}")
    elif _digest(recorded) is not None and not same_value(recorded["stdout"], seen.get("stdout"), bound):
        changes.append(f"standard output differs: {_first_difference(stdout_text(recorded), stdout_text(seen))}")
    return changes


def stdout_text(outcome: dict[str, Json]) -> str:
    """The kept beginning of standard output."""
    stdout = outcome.get("stdout")
    return str(stdout.get("text", "")) if isinstance(stdout, dict) else ""


def _digest(outcome: dict[str, Json]) -> Json:
    stdout = outcome.get("stdout")
    return stdout.get("digest") if isinstance(stdout, dict) else None


def _first_difference(old: str, new: str) -> str:
    at = next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    if at == len(old) == len(new):
        return "beyond what was kept of it"
    start = max(0, at - 20)
    return f"at character {at} it was {old[start : at + 40]!r}, is {new[start : at + 40]!r}"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else repr(value)
