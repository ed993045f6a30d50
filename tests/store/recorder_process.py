"""Records runs with the real writer, as a process of its own or inside a test.

    python recorder_process.py HOME RUNS CROSSINGS [--pause SECONDS] [--die] [--fork]

prints a line for each crossing whose `finished` has returned: what is printed must never be lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.values import (
    Attempt,
    CrossingRecord,
    End,
    Kind,
    Note,
    NoteKind,
    OrderEvent,
    ReadingRecord,
    RunRecord,
    WireHead,
    WireRequest,
)
from otel_agent_replay.telemetry import entropy
from otel_agent_replay.telemetry.recorder import SpoolRecorder
from otel_agent_replay.telemetry.spool import SpoolWriter


class Recorder:
    """A spool file and the runs that are written into it."""

    def __init__(self, home: Path) -> None:
        self.faults: list[str] = []
        self.writer = SpoolWriter(home / "spool", self.faults.append)

    def start(self, name: str = "agent.py", **over: object) -> Recorded:
        return Recorded(self.writer, name, **over)

    def close(self) -> None:
        self.writer.close()


class Recorded:
    """One run being written."""

    def __init__(self, writer: SpoolWriter, name: str, **over: object) -> None:
        values = {
            "trace_id": entropy.trace_id(),
            "span_id": entropy.span_id(),
            "parent_span_id": 0,
            "name": name,
            "started_ns": time.time_ns(),
            "entry": {"kind": "process", "argv": ["python", name]},
            "world": {"directory": os.getcwd(), "hash_seed": "7", "git": {"commit": "abc", "dirty": False}},
        }
        self.run = RunRecord(**(values | over))
        self.sink = SpoolRecorder(writer)
        self.sink.run_started(self.run)

    @property
    def run_id(self) -> str:
        return self.run.run_id

    def model(self, number: int, body: bytes = b"", *, lane: str = "main", answer: bytes = b"", finish: bool = True):
        """A model call at the wire; gives its record, as it is to be read again."""
        record = CrossingRecord(
            Position(lane, "model:openai.chat", number),
            Kind.MODEL,
            0,
            0,
            time.time_ns(),
            wire=True,
            name="chat m1",
        )
        body = body or b'{"model":"m1","messages":[{"role":"user","content":"question %d"}]}' % number
        record.attempts.append(
            Attempt(
                WireRequest(
                    "POST", "http://127.0.0.1:1/v1/chat", [("host", "x"), ("content-length", str(len(body)))], body
                )
            )
        )
        self.sink.opened(record, None)
        self.sink.asked(record)
        if not finish:
            return record
        attempt = record.attempts[0]
        answer = answer or b'{"choices":[{"message":{"role":"assistant","content":"answer %d"}}]}' % number
        attempt.head = WireHead(200, "OK", [("content-type", "application/json")])
        attempt.chunks, attempt.offsets, attempt.end = [answer], [1500], End.ENDED
        record.outcome = "ok"
        self.sink.described(
            record,
            {
                "gen_ai.request.model": "m1",
                "gen_ai.request.temperature": 0.5,
                "gen_ai.usage.input_tokens": 5,
                "gen_ai.usage.output_tokens": 7,
                "gen_ai.response.finish_reasons": ["stop"],
            },
        )
        self._end(record, End.RETURNED)
        return record

    def tool(self, number: int, value: object, *, lane: str = "main", outcome: object = None, raised: bool = False):
        """A call of a tool."""
        record = CrossingRecord(
            Position(lane, "tool:search", number),
            Kind.TOOL,
            0,
            0,
            time.time_ns(),
            input=value,
            name="execute_tool search",
        )
        self.sink.opened(record, None)
        record.outcome = outcome
        self._end(record, End.RAISED if raised else End.RETURNED)
        return record

    def _end(self, record: CrossingRecord, end: End) -> None:
        record.end, record.ended_ns, record.seq = end, time.time_ns(), record.position.ordinal
        self.sink.finished(record)

    def readings(
        self, values: list, *, source: str = "clock:time.time", first: int = 0, notes: tuple[Note, ...] = ()
    ) -> None:
        reading = ReadingRecord("main", source, "agent.py:1", first, values)
        self.sink.packed([reading], [OrderEvent("main", "timer", first, first)], list(notes))

    def note(self, kind: NoteKind = NoteKind.UNCAPTURED, *, incomplete: bool = True) -> None:
        self.sink.packed([], [], [Note(kind, "a socket was opened", "agent.py:3", incomplete)])

    def end(self, end: End = End.RETURNED, **outcome: object) -> None:
        self.run.end, self.run.outcome = end, outcome or {"exit_status": 0}
        self.run.ended_ns = time.time_ns()
        self.sink.run_ended(self.run)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("runs", type=int)
    parser.add_argument("crossings", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--fork", action="store_true")
    asked = parser.parse_args()
    recorder = Recorder(asked.home)
    for number in range(asked.runs):
        run = recorder.start(f"agent-{number}.py")
        print("run", run.run_id, flush=True)
        for ordinal in range(asked.crossings):
            record = run.model(ordinal)
            print("crossing", run.run_id, f"{record.span_id:016x}", flush=True)
            if asked.pause:
                time.sleep(asked.pause)
        if asked.fork and os.fork() == 0:
            run.model(0, lane="main/process:worker#0")
            os._exit(0)
        if asked.fork:
            os.wait()
            run.model(asked.crossings)
        if asked.die and number == asked.runs - 1:
            os._exit(9)
        run.end()
        print("end", run.run_id, flush=True)
    recorder.close()
    assert not recorder.faults, recorder.faults


if __name__ == "__main__":
    sys.exit(main())
