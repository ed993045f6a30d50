"""What a receiver says to a batch, whatever protocol it says it in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from otel_agent_replay.recording import wire


class Verdict(Enum):
    """What is to be done with a batch after an answer."""

    ACCEPTED = "accepted"
    PARTIAL = "partial"
    """Some of its spans were rejected for good; which, is not said."""
    LATER = "later"
    """To be sent again: the receiver is not there, is busy, or failed."""
    BLOCKED = "blocked"
    """To be sent again, once somebody has changed an address, a header or a certificate."""
    TOO_LARGE = "too large"
    REFUSED = "refused"
    """This batch will never be accepted as it is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one batch."""

    verdict: Verdict
    why: str = ""
    rejected: int = 0
    """Spans, where the verdict is PARTIAL."""
    after: float = 0.0
    """Seconds that the receiver asks to wait."""


class Receiver(Protocol):
    """The other side."""

    def send(self, body: bytes) -> Answer:
        """Send an encoded ExportTraceServiceRequest. Raises nothing."""

    def close(self) -> None:
        """Let go of the connection."""


def of_response(body: bytes) -> Answer:
    """What an ExportTraceServiceResponse says."""
    rejected, why = 0, ""
    try:
        for number, _, value in wire.fields(body, 0, len(body)):
            if number == 1 and isinstance(value, bytes):
                for inner, _, said in wire.fields(value, 0, len(value)):
                    if inner == 1 and isinstance(said, int):
                        rejected = said
                    elif inner == 2 and isinstance(said, bytes):
                        why = said.decode("utf-8", "replace")
    except wire.MalformedError:
        return Answer(Verdict.ACCEPTED)  # it was accepted; what more it says is not for us
    return Answer(Verdict.PARTIAL, why or "rejected, no reason given", rejected) if rejected > 0 else _warned(why)


def _warned(why: str) -> Answer:
    return Answer(Verdict.ACCEPTED, why)


def of_status(body: bytes) -> tuple[str, float]:
    """Message of a google.rpc.Status, and the seconds that its RetryInfo asks to wait (0 for none)."""
    message, after = "", 0.0
    try:
        for number, _, value in wire.fields(body, 0, len(body)):
            if number == 2 and isinstance(value, bytes):
                message = value.decode("utf-8", "replace")
            elif number == 3 and isinstance(value, bytes):
                after = max(after, _retry_delay(value))
    except wire.MalformedError:
        pass
    return message, after


def _retry_delay(detail: bytes) -> float:
    held = {number: value for number, _, value in wire.fields(detail, 0, len(detail))}
    kind, info = held.get(1), held.get(2)
    if not (isinstance(kind, bytes) and isinstance(info, bytes) and kind.endswith(b"google.rpc.RetryInfo")):
        return 0.0
    for number, _, delay in wire.fields(info, 0, len(info)):
        if number == 1 and isinstance(delay, bytes):
            parts = {n: value for n, _, value in wire.fields(delay, 0, len(delay))}
            seconds, nanos = parts.get(1, 0), parts.get(2, 0)
            if isinstance(seconds, int) and isinstance(nanos, int):
                return min(seconds + nanos / 1e9, 1e6)
    return 0.0
