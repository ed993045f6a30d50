"""One batch to a receiver: sent again while nothing gets through, narrowed down where only it does not.

A receiver that answers one request with a failure for ever (some do so for what they cannot store) is told from one
that is down by sending it what it has accepted before: where that gets through, the fault lies in the batch. A store
takes what comes twice for one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.parts import SMALLEST
from otel_agent_replay.telemetry.shipping.answers import Answer, Verdict
from otel_agent_replay.telemetry.shipping.batches import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_agent_replay.telemetry.shipping.answers import Receiver
    from otel_agent_replay.telemetry.shipping.batches import Envelope, Span

TRIES = 3
"""How often a request is sent before it is asked whether anything else gets through."""

STRIKES = 3
"""How often that is found of one span, each time after so many tries, before it is set aside."""

MOST_REFUSED_IN_A_ROW = 32
"""Spans: a receiver that refuses more, and accepts nothing else either, is taken to be the wrong one."""

_REFUSES_ALL = "the receiver refuses everything that it is sent ({why})"
_FAILED = (Verdict.LATER, Verdict.BLOCKED)
_REFUSALS = (Verdict.REFUSED, Verdict.PARTIAL, Verdict.TOO_LARGE)


class StoppedError(Exception):
    """The shipper is to stop, or its time is over, while a batch is not acknowledged."""


class StuckError(Exception):
    """A batch does not get through for now; others may."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited between attempts, in seconds: doubled each time, with jitter."""

    first: float = 0.5
    most: float = 30.0
    blocked: float = 5.0
    """The first wait where somebody has to change something."""

    def wait(self, failures: int, answer: Answer) -> float:
        """Before the attempt after so many failures; never less than what the receiver asked for."""
        first = self.blocked if answer.verdict is Verdict.BLOCKED else self.first
        longest = min(first * 2 ** min(failures, 16), max(self.most, first))
        jitter = _random() / 2**32
        return float(max(longest * (0.5 + jitter / 2), min(answer.after, 3600.0)))


@dataclass(slots=True)
class Job:
    """Spans that are being delivered, in order."""

    envelope: Envelope
    spans: list[Span]
    todo: list[list[Span]] = field(init=False)
    """What is neither accepted nor refused, the next last."""
    refused: list[tuple[Span, str]] = field(default_factory=list)
    strikes: int = 0
    """Of the one span that is next."""

    def __post_init__(self) -> None:
        self.todo = [self.spans] if self.spans else []

    @property
    def begun(self) -> bool:
        """Whether something of it is known to be accepted or refused."""
        return self.todo != [self.spans]

    def request(self, group: Sequence[Span]) -> bytes:
        """Some of them, as a request."""
        return self.envelope.request([span.data for span in group])


class Delivery:
    """Delivers to one receiver. Not thread-safe.

    Args:
        receiver: the other side.
        most: bytes of a request.
        patience: between attempts.
        stopped: asked often while waiting.
        said: told why nothing gets through; nothing where something does.

    Attributes:
        most: bytes of a request, as far as is known.
    """

    def __init__(
        self,
        receiver: Receiver,
        most: int,
        patience: Patience,
        stopped: Callable[[], bool],
        said: Callable[[str], None],
    ) -> None:
        self.most = most
        self._receiver = receiver
        self._patience = patience
        self._stopped = stopped
        self._said = said
        self._failures = 0
        """Requests in a row."""
        self._refused_in_a_row = 0
        self._good = b""
        """A request that was accepted; empty for none yet."""

    def deliver(self, job: Job) -> None:
        """Send spans until each is accepted or refused. Raises StuckError, StoppedError; the job may go on later."""
        while job.todo:
            group = job.todo[-1]
            if job.envelope.size + _size(group) > self.most and (smaller := self._smaller(job.envelope, group)):
                _replace(job, smaller)  # what it is for is known by now
                continue
            answer = self._answer(job, group)
            if answer.verdict is Verdict.ACCEPTED:
                self._refused_in_a_row, self._good = 0, job.request(group[-1:])
                _replace(job, [])
            elif answer.verdict in _FAILED:
                self._suspect(job, group, answer)
            elif answer.verdict is Verdict.TOO_LARGE and (smaller := self._learn(job.envelope, group)):
                _replace(job, smaller)
            elif len(group) == 1 or (answer.verdict is Verdict.PARTIAL and answer.rejected >= len(group)):
                self._refused_in_a_row += len(group)
                _refuse(job, group, answer.why)
            else:
                if answer.verdict is Verdict.PARTIAL:
                    self._refused_in_a_row = 0
                _replace(job, _halves(group))

    def _answer(self, job: Job, group: list[Span]) -> Answer:
        """The answer to a request, which is sent again a few times where it fails."""
        request = job.request(group)
        for _ in range(TRIES):
            answer = self._receiver.send(request)
            if answer.verdict in _REFUSALS and self._refused_in_a_row >= MOST_REFUSED_IN_A_ROW:
                if self._gets_through(job):
                    self._refused_in_a_row = 0
                else:
                    answer = Answer(Verdict.BLOCKED, _REFUSES_ALL.format(why=answer.why))
            if answer.verdict not in _FAILED:
                self._failures = 0
                self._said("")
                break
            self._failed(answer, known=not self._good)
        return answer

    def _suspect(self, job: Job, group: list[Span], answer: Answer) -> None:
        """A request failed again and again: it is narrowed down, where something else gets through."""
        if answer.after or not self._gets_through(job, answer):
            job.strikes = 0
            raise StuckError(answer)
        if len(group) > 1:
            _replace(job, _halves(group))
            return
        job.strikes += 1
        if job.strikes >= STRIKES:
            _refuse(job, group, f"it alone never gets through: {answer.why}")

    def _gets_through(self, job: Job, why: Answer | None = None) -> bool:
        """Whether the receiver accepts what it has accepted before, or where there is nothing yet, any of the spans."""
        request = self._good or job.request([job.spans[_random() % len(job.spans)]])
        answer = self._receiver.send(request)
        if answer.verdict is Verdict.ACCEPTED:
            self._good, self._failures = request, 0
            self._said("")
            return True
        if why is not None:
            self._failed(answer if answer.verdict in _FAILED else why, known=True)
        return False

    def _failed(self, answer: Answer, *, known: bool) -> None:
        """Wait after a failure; it is said where nothing is known to get through."""
        if known or self._failures >= TRIES:
            self._said(answer.why)
        self._failures += 1
        until = real.monotonic() + self._patience.wait(self._failures - 1, answer)
        while not self._stopped():
            left = until - real.monotonic()
            if left <= 0:
                return
            real.sleep(min(left, 0.1))
        self._said(answer.why)
        raise StoppedError

    def _learn(self, envelope: Envelope, group: list[Span]) -> list[list[Span]]:
        """A request was too large: this one goes in smaller ones, and so do those to come."""
        size = envelope.size + _size(group)
        self.most = min(self.most, max(size // 2, envelope.size + SMALLEST))
        return self._smaller(envelope, group)

    def _smaller(self, envelope: Envelope, group: list[Span]) -> list[list[Span]]:
        """The same in smaller requests; nothing where it can be made no smaller."""
        if len(group) > 1:
            return _halves(group)
        found = encoded(group[0].frame, max(self.most - envelope.size, SMALLEST))
        return [found] if max(span.size for span in found) < group[0].size else []


def _replace(job: Job, groups: Sequence[list[Span]]) -> None:
    """Others in place of the group that is next."""
    job.todo[-1:] = groups[::-1]
    job.strikes = 0


def _refuse(job: Job, group: list[Span], why: str) -> None:
    job.refused += [(span, why) for span in group]
    _replace(job, [])


def _size(group: Sequence[Span]) -> int:
    return sum(span.size for span in group)


def _halves(group: list[Span]) -> list[list[Span]]:
    half = len(group) // 2
    return [group[:half], group[half:]]


def _random() -> int:
    """Below 2**32."""
    return int.from_bytes(real.urandom(4), "big")
