"""Sends the files of a home to a receiver, and never gives up on what may yet be accepted.

Each batch is sent until the receiver has acknowledged or refused all of it. A refusal is narrowed down by halves to
the spans that it is about; those are set aside with the reason, all others go through. Only then is it written down
how far the file is shipped, so a shipper that is killed sends a batch twice and loses none. Where a batch does not get
through for now, the other files have their turn.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.recording.frames import Frame, encode
from otel_agent_replay.recording.parts import SMALLEST
from otel_agent_replay.recording.tally import run_id_of
from otel_agent_replay.recording.windows import scan_windows
from otel_agent_replay.telemetry.shipping import loss
from otel_agent_replay.telemetry.shipping.batches import Envelope, batches, encoded, open_file
from otel_agent_replay.telemetry.shipping.delivery import Delivery, Job, Patience, StuckError
from otel_agent_replay.telemetry.shipping.ledger import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from otel_agent_replay.telemetry.shipping.answers import Receiver
    from otel_agent_replay.telemetry.shipping.batches import Batch
    from otel_agent_replay.telemetry.shipping.ledger import Ledger

BATCHES_IN_TURN = 16
"""Batches of one file that are sent before the other files have their turn."""

PAUSE = 30.0
"""Seconds that a file is left alone after something here, not the receiver, kept it from being shipped …"""
LONGEST_PAUSE = 600.0
"""… and at most, where that goes on: it is twice as long each time."""

MOST_KEPT = 8
"""Batches that stopped half way and are remembered, so that what was accepted of them is not sent again."""


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
        self._destination = destination
        self._patience = patience or Patience()
        self._delivery = Delivery(receiver, batch_bytes, self._patience, stopped, self._said)
        self._halfway: dict[str, tuple[Batch, Job]] = {}
        """By the name of the file."""
        self._runs: dict[str, tuple[int, set[str]]] = {}
        """By the name of the file: where this shipper began, and the runs that it found from there on."""
        self._stuck: set[str] = set()
        self._failing = bool(ledger.failing(destination))
        self._unreadable: set[str] = set()
        self._paused: dict[str, float] = {}
        self._faults: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        self.refused = 0

    def round(
        self,
        wanted: Callable[[Path, bool], bool],
        ignored: Callable[[Path], bool] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> bool:
        """Give every wanted file its turn, the oldest first. Whether anything was shipped.

        Args:
            wanted: of a file, and whether it still has a writer.
            ignored: of a file, before that is looked at.
            limits: bytes of each file, by its name, beyond which nothing is shipped; none for all there are.

        Raises:
            StoppedError: as its name says.
        """
        moved = False
        files = self._ledger.files()
        self._stuck &= {path.name for path in files}
        for path in files:
            limit = None if limits is None else limits.get(path.name, 0)
            if path.name in self._unreadable or limit == 0 or (ignored is not None and ignored(path)):
                continue
            with suppress(FileNotFoundError):
                written = is_held(path)
                if wanted(path, written):
                    moved = self._file(path, limit, written=written) or moved
        return moved

    @property
    def stuck(self) -> bool:
        """Whether something that was tried does not get through for now, so that it is worth another round."""
        return bool(self._stuck)

    def _file(self, path: Path, limit: int | None, *, written: bool) -> bool:
        """One file's turn. Whether anything of it was shipped or removed."""
        if real.monotonic() < self._paused.get(path.name, 0.0):
            return False
        size = path.stat().st_size
        end = size if limit is None else min(size, limit)
        if (written or end < size) and self._ledger.progress(path.name, self._destination).offset == end:
            return False
        try:
            claim = Claim.take(self._ledger, path, self._destination)
        except OSError as error:
            return self._pause(path, error)
        if claim is None:
            return False
        with claim:
            try:
                moved = self._claimed(claim, limit, written=written)
            except StuckError as stuck:
                self._stuck.add(path.name)
                self._paused[path.name] = real.monotonic() + self._patience.wait(0, stuck.answer)
                return False
            except OSError as error:
                return self._pause(path, error)
        self._stuck.discard(path.name)
        self._faults.pop(path.name, None)
        return moved

    def _pause(self, path: Path, error: OSError) -> bool:
        again = self._faults[path.name] = self._faults.get(path.name, -1) + 1
        self._paused[path.name] = real.monotonic() + min(PAUSE * 2**again, LONGEST_PAUSE)
        self._said(f"{path} cannot be shipped ({error.strerror or type(error).__name__})")
        self.problems[path.name] = f"{path} cannot be shipped ({error}); make room, or see whose file it is."
        return False

    def _claimed(self, claim: Claim, limit: int | None, *, written: bool) -> bool:
        origin = self._ledger.origin(claim.path.name)
        envelope = Envelope(origin.resource if origin is not None else {})
        descriptor = open_file(claim.path)
        if descriptor is None:
            return False
        moved, newer = False, False
        try:
            size = os.fstat(descriptor).st_size  # now: before the claim somebody else may have shipped more
            if limit is not None and limit < size:  # there is more, which waits
                size, written = limit, True
            begin = claim.progress.offset
            if begin > os.fstat(descriptor).st_size:  # not what was shipped: all of it is sent
                begin = 0
            reached = begin
            self._runs.setdefault(claim.path.name, (begin, set()))
            most = max(self._delivery.most - envelope.size, SMALLEST)
            held = self._halfway.get(claim.path.name)
            halfway = [held[0]] if held is not None and held[0].begin == begin else []
            rest = batches(descriptor, halfway[0].end if halfway else begin, size, most, written=written)
            for number, batch in enumerate(chain(halfway, rest)):
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
            claim.finish(self._runs_in(claim))
            return True
        return moved

    def _batch(self, claim: Claim, envelope: Envelope, batch: Batch) -> None:
        counts, name = claim.progress.counts, claim.path.name
        self._runs[name][1].update(run_id for span in batch.spans if (run_id := run_id_of(span.frame)))
        aside: list[tuple[bytes, str]] = []
        before, job = self._halfway.pop(name, (None, None))
        if job is None or before is not batch:
            spans = batch.spans
            if batch.damages:
                spans += [
                    span
                    for note in loss.notes(claim.path, batch.damages)
                    for span in encoded(note, self._delivery.most)
                ]
            job = Job(envelope, spans)
        try:
            self._delivery.deliver(job)
        except StuckError:
            if job.begun:
                self._halfway[name] = (batch, job)
                for oldest in [*self._halfway][:-MOST_KEPT]:
                    del self._halfway[oldest]
            raise
        aside += [(_bytes(claim.path, each.offset, each.length), each.why) for each in batch.damages]
        aside += [(b"".join(encode(span.frame)), why) for span, why in job.refused]
        if aside:
            self._ledger.set_aside(name, aside)
            self.refused += len(aside)
        counts.refused += len(aside)
        counts.frames += max(batch.frames - len(job.refused), 0)
        counts.bytes += batch.bytes
        counts.spans += len(job.spans) - len(job.refused)
        claim.advance(max(batch.end, batch.begin))

    def _runs_in(self, claim: Claim) -> set[str]:
        """Ids of the runs that a file holds something of; what another shipper has shipped of it is read once more."""
        begin, found = self._runs.pop(claim.path.name)
        if begin and (descriptor := open_file(claim.path)) is not None:
            try:
                items = scan_windows(lambda offset, size: os.pread(descriptor, size, offset), 0, begin)
                found.update(run_id for item in items if isinstance(item, Frame) and (run_id := run_id_of(item)))
            finally:
                os.close(descriptor)
        return found

    def _said(self, why: str) -> None:
        if why or self._failing:
            self._failing = bool(why)
            self._ledger.say_failing(self._destination, why)


def _bytes(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
