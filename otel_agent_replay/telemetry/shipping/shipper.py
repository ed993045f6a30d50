"""Sends the files of a home to a receiver, and never gives up on what may yet be accepted.

Each batch is sent until the receiver has acknowledged or refused all of it. A refusal is narrowed down by halves to
the spans that it is about; those are set aside with the reason, all others go through. Only then is it written down
how far the file is shipped, so a shipper that is killed sends a batch twice and loses none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.recording.frames import encode
from otel_agent_replay.recording.parts import SMALLEST
from otel_agent_replay.telemetry.shipping import loss
from otel_agent_replay.telemetry.shipping.answers import Verdict
from otel_agent_replay.telemetry.shipping.batches import Envelope, Span, batches, encoded, open_file
from otel_agent_replay.telemetry.shipping.ledger import Claim, is_written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_agent_replay.telemetry.shipping.answers import Answer, Receiver
    from otel_agent_replay.telemetry.shipping.batches import Batch
    from otel_agent_replay.telemetry.shipping.ledger import Ledger

BATCHES_IN_TURN = 16
"""Batches of one file that are sent before the other files have their turn."""

MOST_REFUSED_AT_FIRST = 32
"""Spans: a receiver that refuses more, before it has accepted any, is taken to be the wrong one."""

MOST_REFUSED_IN_A_ROW = 1000
"""Spans: the same of one that has accepted some before."""

PAUSE = 30.0
"""Seconds that a file is left alone after something here, not the receiver, kept it from being shipped."""

_REFUSES_ALL = "the receiver refuses everything that it is sent ({why})"


class StoppedError(Exception):
    """The shipper is to stop, or its time is over, while a batch is not acknowledged."""


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
        jitter = int.from_bytes(real.urandom(4), "big") / 2**32
        return float(max(longest * (0.5 + jitter / 2), min(answer.after, 3600.0)))


class Shipper:
    """Ships files of one home to one receiver. Not thread-safe.

    Args:
        ledger: of the home.
        receiver: the other side.
        destination: its name.
        batch_bytes: of a request, at most.
        stopped: asked before each wait, and often while waiting.
        patience: between attempts.

    Attributes:
        problems: one sentence for each file that could not be shipped.
        refused: spans that were set aside.
    """

    def __init__(
        self,
        ledger: Ledger,
        receiver: Receiver,
        destination: str,
        *,
        batch_bytes: int,
        stopped: Callable[[], bool],
        patience: Patience | None = None,
    ) -> None:
        self._ledger = ledger
        self._receiver = receiver
        self._destination = destination
        self._most = batch_bytes
        self._stopped = stopped
        self._patience = patience or Patience()
        self._refused_in_a_row = 0
        self._accepts = False
        self._failing = bool(ledger.failing(destination))
        self._unreadable: set[str] = set()
        self._paused: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        self.refused = 0

    def round(self, wanted: Callable[[Path, bool], bool], ignored: Callable[[Path], bool] | None = None) -> bool:
        """Give every wanted file its turn, the oldest first. Whether anything was shipped.

        Args:
            wanted: of a file, and whether it still has a writer.
            ignored: of a file, before that is looked at.

        Raises:
            StoppedError: as its name says.
        """
        moved = False
        for path in self._ledger.files():
            if path.name in self._unreadable or (ignored is not None and ignored(path)):
                continue
            with suppress(FileNotFoundError):
                written = is_written(path)
                if wanted(path, written):
                    moved = self._file(path, written=written) or moved
        return moved

    def _file(self, path: Path, *, written: bool) -> bool:
        """One file's turn. Whether anything of it was shipped or removed."""
        size = path.stat().st_size
        if real.monotonic() < self._paused.get(path.name, 0.0):
            return False
        if written and self._ledger.progress(path.name).offset == size:
            return False
        try:
            claim = Claim.take(self._ledger, path)
        except OSError as error:
            return self._pause(path, error)
        if claim is None:
            return False
        with claim:
            try:
                return self._claimed(claim, size, written=written)
            except OSError as error:
                return self._pause(path, error)

    def _pause(self, path: Path, error: OSError) -> bool:
        self._paused[path.name] = real.monotonic() + PAUSE
        self.problems[path.name] = f"{path} cannot be shipped ({error}); make room, or see whose file it is."
        return False

    def _claimed(self, claim: Claim, size: int, *, written: bool) -> bool:
        begin = claim.progress.offset
        if begin > size:  # not what was shipped: all of it is sent
            begin = 0
        origin = self._ledger.origin(claim.path.name)
        envelope = Envelope(origin.resource if origin is not None else {})
        descriptor = open_file(claim.path)
        if descriptor is None:
            return False
        moved, reached, newer = False, begin, False
        try:
            most = max(self._most - envelope.size, SMALLEST)
            for number, batch in enumerate(batches(descriptor, begin, size, most, written=written)):
                self._batch(claim, envelope, batch)
                moved, reached, newer = moved or batch.end > batch.begin, max(reached, batch.end), batch.newer
                if number + 1 >= BATCHES_IN_TURN:
                    break
        finally:
            os.close(descriptor)
        if newer:
            self._unreadable.add(claim.path.name)
            self.problems[claim.path.name] = (
                f"{claim.path} is no spool file, or is one of a newer version; upgrade otel-agent-replay."
            )
        elif reached >= size and not written:
            claim.finish()
            return True
        return moved

    def _batch(self, claim: Claim, envelope: Envelope, batch: Batch) -> None:
        counts = claim.progress.counts
        aside: list[tuple[bytes, str]] = []
        spans = batch.spans
        if batch.damages:
            spans += [span for note in loss.notes(claim.path, batch.damages) for span in encoded(note, self._most)]
            aside += [(_bytes(claim.path, each.offset, each.length), each.why) for each in batch.damages]
        refused = self._deliver(envelope, spans) if spans else []
        aside += [(b"".join(encode(span.frame)), why) for span, why in refused]
        if aside:
            self._ledger.set_aside(claim.path.name, aside)
            self.refused += len(aside)
        counts.refused += len(aside)
        counts.frames += max(batch.frames - len(refused), 0)
        counts.bytes += batch.bytes
        counts.spans += len(spans) - len(refused)
        claim.advance(max(batch.end, batch.begin))

    def _deliver(self, envelope: Envelope, spans: list[Span]) -> list[tuple[Span, str]]:
        """Send spans, in order, until each is accepted or refused; gives the refused ones and why."""
        refused: list[tuple[Span, str]] = []
        todo = [spans]
        while todo:
            group = todo.pop()
            if envelope.size + _size(group) > self._most and (smaller := self._smaller(envelope, group)):
                todo += reversed(smaller)  # what it is for is known by now
                continue
            answer = self._answer(envelope.request([span.data for span in group]))
            if answer.verdict is Verdict.ACCEPTED:
                self._refused_in_a_row, self._accepts = 0, True
            elif answer.verdict is Verdict.TOO_LARGE and (smaller := self._learn(envelope, group)):
                todo += reversed(smaller)
            elif len(group) == 1 or (answer.verdict is Verdict.PARTIAL and answer.rejected >= len(group)):
                refused += [(span, answer.why) for span in group]
                self._refused_in_a_row += len(group)
            else:
                if answer.verdict is Verdict.PARTIAL:
                    self._refused_in_a_row = 0
                todo += reversed(_halves(group))
        return refused

    def _learn(self, envelope: Envelope, group: list[Span]) -> list[list[Span]]:
        """A request was too large: this one goes in smaller ones, and so do those to come."""
        size = envelope.size + _size(group)
        self._most = min(self._most, max(size // 2, envelope.size + SMALLEST))
        return self._smaller(envelope, group)

    def _smaller(self, envelope: Envelope, group: list[Span]) -> list[list[Span]]:
        """The same in smaller requests; nothing where it can be made no smaller."""
        if len(group) > 1:
            return _halves(group)
        found = encoded(group[0].frame, max(self._most - envelope.size, SMALLEST))
        return [found] if max(span.size for span in found) < group[0].size else []

    def _answer(self, request: bytes) -> Answer:
        """The answer to a request, sent again as long as it may yet be accepted."""
        failures = 0
        while True:
            answer = self._receiver.send(request)
            refused = answer.verdict in (Verdict.REFUSED, Verdict.PARTIAL, Verdict.TOO_LARGE)
            most = MOST_REFUSED_IN_A_ROW if self._accepts else MOST_REFUSED_AT_FIRST
            if refused and self._refused_in_a_row >= most:
                answer = type(answer)(Verdict.BLOCKED, _REFUSES_ALL.format(why=answer.why))
            if answer.verdict not in (Verdict.LATER, Verdict.BLOCKED):
                self._said("")
                return answer
            self._said(answer.why)
            self._wait(self._patience.wait(failures, answer))
            failures += 1

    def _said(self, why: str) -> None:
        if why or self._failing:
            self._failing = bool(why)
            self._ledger.say_failing(self._destination, why)

    def _wait(self, seconds: float) -> None:
        until = real.monotonic() + seconds
        while not self._stopped():
            left = until - real.monotonic()
            if left <= 0:
                return
            real.sleep(min(left, 0.1))
        raise StoppedError


def _size(group: Sequence[Span]) -> int:
    return sum(span.size for span in group)


def _halves(group: list[Span]) -> list[list[Span]]:
    half = len(group) // 2
    return [group[:half], group[half:]]


def _bytes(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
