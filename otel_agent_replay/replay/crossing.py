"""One call of a replay, answered from the recording."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_agent_replay.boundary.callers import AGENT, caller, frames, kind_of
from otel_agent_replay.boundary.handlers import raised_by
from otel_agent_replay.boundary.handlers import told as raised_instead
from otel_agent_replay.boundary.lanes import Lane, child_path
from otel_agent_replay.boundary.order import FREE, NEVER
from otel_agent_replay.boundary.session import was_cancelled
from otel_agent_replay.errors import DivergenceError
from otel_agent_replay.recording import canonical, codec
from otel_agent_replay.recording.divergence import Difference, Divergence, DivergenceClass, Position
from otel_agent_replay.recording.restoring import Lent
from otel_agent_replay.recording.values import Attempt, CrossingRecord, End, Ended, Raised, Returned
from otel_agent_replay.replay.changes import looks_into
from otel_agent_replay.replay.exchange import ReplayedExchange
from otel_agent_replay.replay.marks import item_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_agent_replay.boundary.order import Due
    from otel_agent_replay.boundary.session import Call, Turn
    from otel_agent_replay.recording.values import Attribute, Json, Outcome, WireRequest
    from otel_agent_replay.replay.answer import ReplaySession
    from otel_agent_replay.replay.transcript import TranscribedCrossing

ADDED = "A call was added: rerun the program, or take the call out."
ENDS_HERE = "The recording ends here: its process was killed, or runs still."
RERUN = "The question has changed: rerun it against the model, or give the program as it was."


@dataclass(frozen=True, slots=True)
class Pinned:
    """A call that was answered by its place though it asked something else."""

    divergence: Divergence
    site: str
    """File and line of the program's own code that asked; empty where none is near."""
    recorded: str = ""
    """What was asked when it was recorded, as text …"""
    asked: str = ""
    """… and what is asked now."""


class ReplayedCrossing:
    """One call through a boundary, being answered."""

    def __init__(self, session: ReplaySession, lane: Lane, call: Call) -> None:
        self._session = session
        self._caller = lane
        self._call = call
        self._ordinal = lane.ordinal(call.key)
        self.position = Position(lane.path, call.key, self._ordinal)
        self.answer: Outcome | None = None
        self.record: CrossingRecord | None = None
        self._lent: Lent | None = None
        self._attempts = 0
        self._items = 0
        self.lane = Lane(session, lane, "call", call.key, self._ordinal)
        if call.wire:
            self.lane.beneath = self
        kept = session.transcript
        self.kept: TranscribedCrossing | None = (
            None if kept is None else kept.open(lane, self.lane, self.position, call)
        )

    def match(
        self,
        fits: Callable[[CrossingRecord], bool],
        alike: Callable[[CrossingRecord], float],
        differences: Callable[[CrossingRecord], tuple[Difference, ...]],
        texts: Callable[[CrossingRecord], tuple[str, str]],
    ) -> None:
        """Find the recorded crossing that answers. Raises DivergenceError where there is none."""
        session, key = self._session, self._call.key
        with session.lock:
            path = session.lanes.resolve(self._caller)
            record, moved_from = session.matcher.find(self._caller, path, key, fits)
            if record is None:
                known = None if self._call.otherwise is None else self._call.otherwise()
                if known is not None:
                    self.answer = known
                    session.unrecorded.append(self.position)
                    return
                nearest = session.matcher.nearest(self._caller, path, key, alike)
                own = session.matcher.own(self._caller, path, key)
                place = None if own is None else next((place for place, _ in own.waiting()), None)
                if own is None or place is None or not session.pins:
                    raise self._depart(self._new(nearest, differences, spent=place is None))
                record = own.take(place)
                pinned = self._new(record, differences, spent=False)
                session.pinned.append(Pinned(pinned, _program_line(), *texts(record)))
            session.answered += 1
            if session.elsewhere is not None:
                session.elsewhere.answered(session.recording.run.run_id, record.span_id)
            if moved_from is not None:
                session.moved.append((self.position, moved_from))
                if session.matcher.has_become(self._caller, moved_from):
                    session.lanes.settle(self._caller, moved_from)
            if self.kept is not None:
                self.kept.answered(record, moved=moved_from is not None)
            self._accept(record)

    def attempt(self, request: WireRequest) -> ReplayedExchange:
        """Answer the next HTTP attempt. Raises DivergenceError where the recording has no such request."""
        number = self._attempts
        self._attempts += 1
        bound = self._session.bound
        kept = None if self.kept is None else self.kept.asked(request)
        if self.record is None:
            self.match(
                lambda record: (
                    bool(record.attempts) and canonical.same_request(record.attempts[0].request, request, bound)
                ),
                lambda record: canonical.similarity(record.attempts[0].request, request) if record.attempts else 0.0,
                lambda record: (
                    canonical.differences(record.attempts[0].request, request, bound=bound) if record.attempts else ()
                ),
                lambda record: (_body(record.attempts[0].request) if record.attempts else "", _body(request)),
            )
        record = self.record
        assert record is not None  # match() found it or raised
        if number >= len(record.attempts):
            signal = self._paused()
            if signal is not None:  # its handler raised before this attempt
                return ReplayedExchange(self, Attempt(request, end=End.RAISED, signal=signal), kept)
            if self._was_left(record):  # while it paused before this attempt, which takes no time now
                return ReplayedExchange(self, Attempt(request, end=End.ABANDONED), kept)
            raise self._depart(
                self._departure(
                    DivergenceClass.EXHAUSTED,
                    f"attempt {number + 1} of a call that made {len(record.attempts)} when it was recorded",
                )
            )
        recorded = record.attempts[number]
        if number and not canonical.same_request(recorded.request, request, bound):
            departure = self._departure(
                DivergenceClass.DIVERGED,
                f"attempt {number + 1} of this call asks something else",
                canonical.differences(recorded.request, request, bound=bound),
            )
            if not self._session.pins:
                raise self._depart(departure)
            self._session.pinned.append(Pinned(departure, _program_line(), _body(recorded.request), _body(request)))
        return ReplayedExchange(self, recorded, kept)

    def describe(self, attributes: Mapping[str, Attribute]) -> None:
        """A replay learns nothing from a recorded response."""

    def turn(self, outcome: Outcome) -> Turn | None:
        record = self.record
        if record is None:
            return None
        left = self._was_left(record)
        if was_cancelled(outcome) and (record.wire or not left):
            return None
        if isinstance(outcome, Raised) and isinstance(outcome.error, DivergenceError):
            return None
        place: Due = FREE if record.seq is None else record.seq
        own = {attempt.signal for attempt in record.attempts}
        signals = [signal for signal, _ in record.signals if signal not in own]
        self._session.order.comes_into(signals)
        if record.seq is None and signals:  # while it waited for its turn
            ended = self._interruption(signals[-1], None)
            if ended is not None:
                return ended
        if record.seq is None and left:
            place = NEVER  # the caller was cancelled before it saw this, if only while others came to theirs
        return self._session.due(self._caller, self.position.key, self.position.ordinal, place)

    def interrupted(self, outcome: Outcome, error: BaseException) -> tuple[Outcome, Turn | None]:
        """A call that is answered as a whole has its recorded outcome, whatever its code made of what was raised."""
        record = self.record
        signals = () if record is None or record.wire else [signal for signal, _ in record.signals]
        if record is None or raised_by(error) not in signals:
            return Raised(error), None
        if isinstance(outcome, Raised):
            outcome = Raised(raised_instead(outcome.error, error))
        if record.seq is None:
            return outcome, None
        return outcome, self._session.due(self._caller, self.position.key, self.position.ordinal, record.seq)

    def pause(self) -> Turn | None:
        signal = self._paused()
        return None if signal is None else self._interruption(signal, None)

    def _paused(self) -> int | None:
        """The signal whose handler raised between two attempts, where this call is now; None for none."""
        record = self.record
        if record is None:
            return None
        own = {attempt.signal for attempt in record.attempts}
        began = (signal for signal, begun in record.signals if begun == self._attempts and signal not in own)
        return next(began, None)

    def _interruption(self, signal: int, error: BaseException | None) -> Turn | None:
        """What to wait for where the handler of the signal in this place raised; None where none are sent."""
        return self._session.order.interruption(self.lane, signal, error, self._unbroken)

    def _unbroken(self) -> BaseException:
        return self._session.diverge(
            self._departure(
                DivergenceClass.DIVERGED,
                "the handler of a signal, which ended this call when it was recorded, raises nothing into it now",
            )
        )

    def restored(self, outcome: Outcome) -> Outcome:
        """Put back what the call changed of what it was handed; the outcome's parts that are parts of it are those."""
        record, lent = self.record, self._lent
        departed = isinstance(outcome, Raised) and isinstance(outcome.error, DivergenceError)
        if record is None or lent is None or departed:
            return outcome
        self._lent = None
        with self._session.lock:
            found = lent.put_back(record.after, record.same, self._allowed(), self._session.bound)
        if found.failed and not self._session.pins:
            raise self._depart(
                self._departure(
                    DivergenceClass.INCOMPLETE, f"what the call changed cannot be put back: {', '.join(found.failed)}"
                )
            )
        answer = self.answer
        if isinstance(outcome, Returned) and isinstance(answer, Returned) and outcome.value is answer.value:
            return Returned(found.given(outcome.value, record.same))
        return outcome

    def close(self, outcome: Outcome) -> None:
        """The program sees `outcome` now. A wire call that sent nothing stands for one that sent nothing."""
        if self._call.wire and self.record is None and not self._attempts:
            path = self._session.lanes.resolve(self._caller)
            record, moved = self._session.matcher.find(
                self._caller, path, self._call.key, lambda record: not record.attempts
            )
            if self.kept is not None and record is not None:
                self.kept.answered(record, moved=moved is not None)
        if self.kept is not None:
            self.kept.closed(outcome)

    def item_turn(self) -> Turn | None:
        record = self.record
        if record is None:
            return None
        number, self._items = self._items, self._items + 1
        lane, key = record.position.lane, item_key(record.position)
        place = self._session.recorded_place(lane, key, number)
        return None if place is FREE else self._session.due(self.lane, key, number, place)

    def item(self, outcome: Outcome) -> None:
        """The program is given an item, an error or the end, or has left the generator."""
        if not isinstance(outcome, Returned):
            self.restored(outcome)
        if self.kept is not None:
            self.kept.item(outcome)

    def stream_items(self) -> None:
        """What this crossing returns is a generator: its items are `recorded_items`."""

    def recorded_items(self) -> list[Outcome]:
        """What the generator gave, and how it ended; nothing after the point where its reader left it."""
        record = self.record
        if record is None:
            return []
        if self.kept is not None:
            self.kept.gives_items()
        items: list[Outcome] = [Returned(self._decode(item)) for item in record.items]
        if record.end is End.RAISED:
            items.append(Raised(self._error(record.outcome)))
        elif record.end is not End.ABANDONED:
            items.append(Ended())
        return items

    def past_end(self) -> BaseException:
        record = self.record
        unfinished = record is not None and record.end is End.UNFINISHED
        return self._depart(
            self._departure(
                DivergenceClass.INCOMPLETE if unfinished else DivergenceClass.DIVERGED,
                "the recording process died while this stream was open"
                if unfinished
                else "the program reads on where the recorded reader stopped",
            )
        )

    def exchange_turn(self, attempt: Attempt) -> Turn | None:
        """Where the caller was cancelled before a response came, or a signal ended it: a place that never comes."""
        if attempt.signal is not None and attempt.head is None:
            ended = self._interruption(attempt.signal, self.error_of(attempt))
            if ended is not None:
                return ended
        left = attempt.end is End.ABANDONED or (self.record is not None and self._was_left(self.record))
        if attempt.head is None and attempt.error is None and left:
            return self._session.due(self.lane, "response", self.lane.ordinal("response"), NEVER)
        return None

    def chunk_turn(self, attempt: Attempt, index: int) -> Turn | None:
        cancelled = attempt.end is End.ABANDONED and attempt.error is not None
        ended = attempt.end is End.UNFINISHED and self._session.recording.run.end is not End.UNFINISHED
        seen = len(attempt.chunks) - (len(attempt.seqs) == len(attempt.chunks) - 1)  # the last one was held back
        if index >= seen and attempt.signal is not None:
            interrupted = self._interruption(attempt.signal, self.error_of(attempt))
            if interrupted is not None:
                return interrupted
        if index >= seen and (cancelled or ended):
            # The reader was cancelled, or its run ended, while it waited for a chunk, or for the end: that never comes
            # here either.
            return self._session.due(self.lane, "chunk", self.lane.ordinal("chunk"), NEVER)
        seq = attempt.seqs[index] if index < len(attempt.seqs) else None
        if seq is None:
            return None
        return self._session.due(self.lane, "chunk", self.lane.ordinal("chunk"), seq)

    def error_of(self, attempt: Attempt) -> BaseException | None:
        return None if attempt.error is None else self._error(attempt.error)

    def unanswered(self) -> DivergenceError:
        """The recording process died before this call had an outcome."""
        return self._depart(
            self._departure(DivergenceClass.INCOMPLETE, "the recording process died before this call had an outcome")
        )

    def _depart(self, divergence: Divergence) -> DivergenceError:
        """Keep a divergence of this call, and give what is to be raised.

        A signal that is due comes first. Raises what its handler raises.
        """
        self._session.order.let_come(self._caller)
        error = self._session.diverge(divergence)
        if self.kept is not None:
            self.kept.departed(divergence.kind, error)
        return error

    def _accept(self, record: CrossingRecord) -> None:
        self.record = record
        where = record.position
        self._session.lanes.settle(self.lane, child_path(where.lane, "call", where.key, where.ordinal))
        if self._call.wire:
            return
        left = self._was_left(record)
        if record.end is End.UNFINISHED and not left:
            raise self.unanswered()
        if record.after is not None or record.same:
            lent = self._call.lent
            self._lent = Lent(self._call.input if lent is None else lent, looks_into)
        if left and not record.items:
            self.answer = Raised(asyncio.CancelledError())
        elif record.end is End.RAISED and not record.items:
            self.answer = Raised(self._error(record.outcome))
        else:
            self.answer = Returned(self._decode(record.outcome))

    def _was_left(self, record: CrossingRecord) -> bool:
        """Whether the recorded program did not wait for the end: it cancelled the call, or ended before."""
        if record.end is End.UNFINISHED:
            return self._session.recording.run.end is not End.UNFINISHED
        return record.end is End.ABANDONED

    def _allowed(self) -> Mapping[str, type]:
        allowed = self._call.allowed
        return {codec.ref(known): known for known in self._call.types} if allowed is None else allowed

    def _decode(self, value: Json) -> object:
        return codec.decode(value, self._allowed())

    def _error(self, value: Json) -> BaseException:
        error = self._decode(value)
        return error if isinstance(error, BaseException) else RuntimeError(str(error))

    def _new(
        self,
        nearest: CrossingRecord | None,
        differences: Callable[[CrossingRecord], tuple[Difference, ...]],
        *,
        spent: bool,
    ) -> Divergence:
        if spent:
            return Divergence(
                DivergenceClass.EXHAUSTED,
                self.position,
                None if nearest is None else nearest.position,
                "the program asks for more than was recorded in this lane",
                () if nearest is None else differences(nearest),
                ENDS_HERE if self._session.recording.run.end is End.UNFINISHED else ADDED,
            )
        assert nearest is not None  # a series that is not spent has a nearest
        return Divergence(
            DivergenceClass.DIVERGED,
            self.position,
            nearest.position,
            "the program asks something that was not recorded",
            differences(nearest),
            RERUN,
        )

    def _departure(self, kind: DivergenceClass, summary: str, differences: tuple[Difference, ...] = ()) -> Divergence:
        nearest = None if self.record is None else self.record.position
        return Divergence(kind, self.position, nearest, summary, differences, RERUN)


def _body(request: WireRequest) -> str:
    return request.body.decode("utf-8", "replace")


def _program_line() -> str:
    """File and line of the program's own code that asks; empty where none is near."""
    for frame in frames(caller()):
        if kind_of(frame) == AGENT:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""
