"""Group commit: what arrives at once is inserted at once, and acknowledged when the engine has it.

One thread inserts. A request waits for it and is told what came of its own rows only: where a group fails, each
request of it is tried alone. Rows that come twice replace themselves in every table, so a client that was told
nothing, or to come again, may send the same rows again. A crossing, a run or a reading that the store holds whole is
not inserted a second time, whoever sends it: nobody replaces what was recorded by sending something else in its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING

from otel_agent_replay.recording import names
from otel_agent_replay.server import limits
from otel_agent_replay.server.engine import SqlError, literal
from otel_agent_replay.server.spans import PARTED, Claim
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_agent_replay.server.engine import Embedded, Handle
    from otel_agent_replay.server.spans import Batch

_ASKED = 2000
"""Spans that the store is asked about at a time."""

_COLUMNS = ", ".join(f"`{name}`" for name in LANDING_COLUMNS)


class OverloadedError(Exception):
    """Too much waits already; the client is to come again."""


class UnavailableError(Exception):
    """The rows could not be stored; the client is to come again."""


@dataclass(slots=True)
class _Waiting:
    batch: Batch
    done: Event = field(default_factory=Event)
    error: UnavailableError | None = None


@dataclass(slots=True)
class Counts:
    """What has been done since the start."""

    requests: int = 0
    accepted: int = 0
    rejected: int = 0
    groups: int = 0
    failures: int = 0
    overloads: int = 0


class Committer:
    """Takes batches from many threads, and inserts them from one."""

    def __init__(self, engine: Embedded, database: str) -> None:
        self._engine = engine
        self._database = database
        self._head = f"INSERT INTO `{database}`.{LANDING} ({_COLUMNS})"
        self._changed = Condition()
        self._waiting: list[_Waiting] = []
        self._size = 0
        self._open = True
        self.counts = Counts()
        self._thread = Thread(target=self._work, name="commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        """Store a batch; returns when it is stored. Raises OverloadedError, UnavailableError."""
        waiting = _Waiting(batch)
        with self._changed:
            self.counts.requests += 1
            if not self._open:
                raise UnavailableError("the server is stopping")
            if self._size and self._size + batch.size > limits.QUEUED_BYTES:
                self.counts.overloads += 1
                raise OverloadedError(f"{self._size >> 20} MiB wait to be stored")
            if batch.accepted:
                self._size += batch.size
                self._waiting.append(waiting)
                self._changed.notify()
        if batch.accepted:
            waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error
        with self._changed:
            self.counts.accepted += batch.accepted
            self.counts.rejected += batch.rejected

    def waiting(self) -> int:
        """Bytes that are not stored yet."""
        with self._changed:
            return self._size

    def close(self) -> None:
        """Store what waits, and end. What comes later is refused."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(limits.STOP_SECONDS)

    def _work(self) -> None:
        while group := self._take():
            self._store(group)
            with self._changed:
                self._size -= sum(each.batch.size for each in group)
            for each in group:
                each.done.set()

    def _take(self) -> list[_Waiting]:
        """What is to be inserted next; nothing at the end."""
        with self._changed:
            while not self._waiting and self._open:
                self._changed.wait()
            size = count = 0
            for each in self._waiting:
                size += each.batch.size
                if count and size > limits.GROUP_BYTES:
                    break
                count += 1
            group, self._waiting = self._waiting[:count], self._waiting[count:]
            return group

    def _store(self, group: Sequence[_Waiting]) -> None:
        try:
            self._insert(group)
        except Exception as error:  # noqa: BLE001 (whatever it is, the thread that waits is told, and this one goes on)
            self.counts.failures += 1
            if len(group) > 1:
                for each in group:
                    self._store([each])
                return
            group[0].error = UnavailableError(str(error).splitlines()[0][:300])
        else:
            self.counts.groups += 1

    def _insert(self, group: Sequence[_Waiting]) -> None:
        pieces: list[bytes] = []
        others: list[Batch] = []
        with self._engine.handle() as handle:
            handle.set({"async_insert": "0", "max_memory_usage": str(limits.QUERY_BYTES)})
            there = self._there(handle, [row.claim for each in group for row in each.batch.rows if row.claim])
            for batch in (each.batch for each in group):
                for row in batch.rows:
                    if (claim := row.claim) is not None and (kept := there.setdefault(claim, claim)) is not claim:
                        if kept.digest and claim.digest and kept.digest != claim.digest:
                            others.append(batch)
                        continue
                    pieces += row.pieces
            if pieces and not handle.insert(self._head, "RowBinary", pieces):
                raise SqlError.refused(1001, "STD_EXCEPTION", "no row was written")
        for batch in others:
            batch.accepted -= 1
            batch.reject("the place of something else in a recording; what was recorded stays")

    def _there(self, handle: Handle, claims: list[Claim]) -> dict[Claim, Claim]:
        """Those that the store holds whole: what was recorded is never replaced by what comes later.

        Whole is what all views have written: an insert that failed, or was killed, may have reached some of them.
        """
        found: dict[Claim, Claim] = {}
        for table in sorted({claim.table for claim in claims}):
            wanted = [claim for claim in claims if claim.table == table]
            for at in range(0, len(wanted), _ASKED):
                found |= self._kept(handle, table, wanted[at : at + _ASKED])
        return found

    def _kept(self, handle: Handle, table: str, wanted: list[Claim]) -> dict[Claim, Claim]:
        runs = ", ".join(sorted({f"'{claim.run_id}'" for claim in wanted}))
        spans = ", ".join(sorted({f"'{claim.span_id}'" for claim in wanted}))
        span = "substring(run_id, 34)" if table == "runs" else "span_id"
        whole = "NOT cut"
        if table != "readings":  # which are no spans for others
            traces = ", ".join(sorted({f"'{claim.run_id[:32]}'" for claim in wanted}))
            written = f"trace_id IN ({traces}) AND span_id IN ({spans}) AND form = 2"
            landed = f"SELECT trace_id, span_id FROM `{self._database}`.spans WHERE {written}"  # noqa: S608 (hex digits)
            whole += f" AND finished AND (substring(run_id, 1, 32), span) IN ({landed})"
        parted = literal(PARTED.decode())
        sql = (
            f"SELECT run_id, {span} AS span, "  # noqa: S608 (hex digits)
            f"if(startsWith(payload, {parted}), '', attributes['{names.PAYLOAD_DIGEST}']) "
            f"FROM `{self._database}`.{table} WHERE run_id IN ({runs}) AND span IN ({spans}) AND {whole}"
        )
        kept = (Claim(table, *line.split("\t")) for line in handle.query(sql, "TSV").decode().splitlines())
        return {claim: claim for claim in kept}
