"""Frames become recordings in any order, and what is lacking is said in a sentence."""

import dataclasses
import json
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording import codec, names
from otel_agent_replay.recording.assemble import Assembler, assemble
from otel_agent_replay.recording.contents import ContentWriter
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.exact import dumps
from otel_agent_replay.recording.frames import (
    contents_frames,
    crossing_frame,
    encode,
    readings_frame,
    run_frame,
    scan,
)
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.payload import compose, ident, unnamed
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

thorough = settings(max_examples=40, deadline=None, derandomize=True, database=None)


class Spool:
    """Writes the frames of a run as a recorder does."""

    def __init__(self, span_id=7, trace_id=0xABC):
        self.run = RunRecord(
            trace_id, span_id, 0, "agent", 1000, {"kind": "process", "argv": ["agent.py"]}, {"cwd": "/x"}
        )
        self.frames = [run_frame(self.run, FrameKind.RUN_START)]
        self.crossings: list[CrossingRecord] = []
        self._writer = ContentWriter()
        self._spans = 0

    def crossing(self, record: CrossingRecord, kinds=(FrameKind.CROSSING_START, FrameKind.CROSSING)):
        refs: dict = {}
        self._spans += 1
        record.span_id = self.run.span_id * 1_000_000 + self._spans
        self.crossings.append(record)
        for kind in kinds:
            pieces: dict[str, bytes] = {}

            def refer(slot, body, pieces=pieces):
                if slot not in refs or refs[slot][0] != body:
                    stream = f"{record.position.lane} {record.position.key} {slot[-1]}"
                    ref, fresh = self._writer.refer(stream, ident(record.span_id, slot), body)
                    pieces.update(fresh)
                    refs[slot] = (body, unnamed(ref, ident(record.span_id, slot)))
                return refs[slot][1]

            begun = dataclasses.replace(
                record,
                outcome=None,
                attempts=[
                    dataclasses.replace(a, head=None, chunks=[], offsets=[], end=End.UNFINISHED)
                    for a in record.attempts
                ],
            )
            payload = dumps(compose(record if kind is FrameKind.CROSSING else begun, refer))
            frame = crossing_frame(self.run, record, payload, kind)
            self.frames += [*contents_frames(self.run, pieces, 1), frame]

    def packed(self, readings=(), order=(), notes=()):
        self._spans += 1
        self.frames.append(
            readings_frame(self.run, readings, order, notes, span_id=900 + self._spans, now_ns=2000 + self._spans)
        )

    def end(self, end=End.RETURNED):
        self.run = dataclasses.replace(self.run, end=end, ended_ns=9000, outcome={"exit_status": 0})
        self.frames.append(run_frame(self.run, FrameKind.RUN))


def tool(ordinal=0, lane="main", **fields):
    position = Position(lane, "tool:search", ordinal)
    options = {
        "input": {"args": [ordinal]},
        "outcome": codec.encode((ordinal, "x" * 300)),
        "end": End.RETURNED,
        "ended_ns": 5 + ordinal,
        "seq": ordinal,
    }
    return CrossingRecord(
        position,
        Kind.TOOL,
        0,
        7,
        10 + ordinal,
        **(options | fields),
        name="search",
        attributes={"gen_ai.tool.name": "search"},
    )


def model(ordinal, body, data=b"{}"):
    attempt = Attempt(
        WireRequest("POST", "http://h/v1", [("a", "b")], body),
        WireHead(200, "OK", []),
        [data[:5], data[5:]],
        [1, 2],
        End.ENDED,
    )
    return CrossingRecord(
        Position("main", "model:x", ordinal),
        Kind.MODEL,
        0,
        7,
        100 + ordinal,
        attempts=[attempt],
        end=End.RETURNED,
        ended_ns=200 + ordinal,
        wire=True,
        name="chat",
    )


def chat(turns, size=4000):
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{turn} " + "word " * (size // 10)})
        yield json.dumps({"messages": messages}).encode()
        messages.append({"role": "assistant", "content": f"{turn} " + "said " * (size // 10)})


def whole_run(span_id=7, turns=4) -> Spool:
    spool = Spool(span_id)
    spool.packed([ReadingRecord("main", "clock:time.time", "a.py:f", 0, [1.5, 2.5])])
    for turn, body in enumerate(chat(turns)):
        spool.crossing(model(turn, body, json.dumps({"said": "word " * 200, "n": turn}).encode()))
        spool.crossing(tool(turn))
        spool.packed(
            [ReadingRecord("main", "clock:time.time", "a.py:f", 2 + turn, [turn + 3.5])],
            [OrderEvent("main", "future:x", turn, 50 - turn)],
            [Note(NoteKind.OBSERVED, f"note {turn}", "", incomplete=False)],
        )
    spool.end()
    return spool


def only(frames):
    [recording] = assemble(frames).values()
    return recording


def ordered(records):
    return sorted(records, key=lambda r: (r.started_ns, r.position.lane, r.position.ordinal, r.span_id))


def test_a_run_comes_back_from_its_spool_file():
    spool = whole_run()
    data = b"".join(part for frame in spool.frames for part in encode(frame))
    recording = only(scan(data))
    assert recording.run == spool.run
    assert recording.crossings == ordered(spool.crossings)
    assert recording.readings == [ReadingRecord("main", "clock:time.time", "a.py:f", 0, [1.5, 2.5, 3.5, 4.5, 5.5, 6.5])]
    assert [event.seq for event in recording.order] == [47, 48, 49, 50]
    assert [note.what for note in recording.notes] == [f"note {n}" for n in range(4)]
    assert recording.missing == []
    assert recording.complete


@thorough
@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_order_and_repetition_of_frames_do_not_matter(rng, repeated):
    spool = whole_run(turns=2)
    frames = spool.frames + rng.choices(spool.frames, k=repeated)
    rng.shuffle(frames)
    assert only(frames) == only(spool.frames)


@thorough
@given(st.data())
def test_whatever_is_lost_or_cut_a_recording_comes_out_and_says_so(data):
    spool = whole_run(turns=2)
    frames = []
    hurt = False
    for frame in spool.frames:
        fate = data.draw(st.sampled_from(["kept"] * 6 + ["lost", "cut", "changed"]))
        if fate == "lost":
            hurt = hurt or frame.kind not in (FrameKind.CROSSING_START, FrameKind.RUN_START)
            continue
        if fate in ("cut", "changed") and names.PAYLOAD in frame.attributes:
            text = frame.attributes[names.PAYLOAD]
            cut = text[: len(text) // 2] if fate == "cut" else text.replace("a", "b")
            hurt = hurt or (cut != text and frame.kind not in (FrameKind.CROSSING_START, FrameKind.RUN_START))
            frame = dataclasses.replace(frame, attributes={**frame.attributes, names.PAYLOAD: cut})
        frames.append(frame)
    if not frames:
        return
    recording = only(frames)
    assert recording.complete == (not hurt)
    good = {record.span_id: record for record in spool.crossings}
    for record in recording.crossings:
        assert record.position == good[record.span_id].position
        assert record.end is End.UNFINISHED or record == good[record.span_id]


def test_several_runs_in_one_spool_stay_apart():
    one, two = whole_run(7), whole_run(8)
    two.run.name = "other"
    frames = [frame for pair in zip(one.frames, two.frames, strict=True) for frame in pair]
    recordings = assemble(frames)
    assert recordings.keys() == {one.run.run_id, two.run.run_id}
    assert recordings[two.run.run_id].crossings == ordered(two.crossings)
    alone = assemble(frames, one.run.run_id)
    assert alone == {one.run.run_id: recordings[one.run.run_id]}


def test_frames_of_other_runs_are_not_looked_into():
    spool = whole_run()
    broken = dataclasses.replace(
        spool.frames[0], trace_id=5, attributes={names.RUN_SPAN: "00" * 8, names.PAYLOAD: None}
    )
    assert assemble([broken, *spool.frames], spool.run.run_id)[spool.run.run_id].complete
    assert assemble([dataclasses.replace(broken, attributes={})]) == {}


def test_a_crossing_that_never_ended_is_unfinished():
    spool = Spool()
    spool.crossing(tool(), (FrameKind.CROSSING_START,))
    recording = only(spool.frames)
    [record] = recording.crossings
    assert record.end is End.UNFINISHED
    assert record.outcome is None
    assert record.input == {"args": [0]}
    assert recording.run.end is End.UNFINISHED
    assert not recording.missing
    assert not recording.complete


def test_frames_may_come_while_the_run_lasts():
    spool = whole_run(turns=2)
    assembler = Assembler()
    counts = []
    for frame in spool.frames:
        assembler.add(frame)
        [recording] = assembler.recordings().values()
        counts.append(len(recording.crossings))
    assert counts == sorted(counts)
    assert recording.complete


def test_without_the_frames_of_the_run_itself_there_is_a_placeholder():
    spool = whole_run()
    recording = only(frame for frame in spool.frames if frame.kind not in (FrameKind.RUN, FrameKind.RUN_START))
    assert recording.run.run_id == spool.run.run_id
    assert recording.run.started_ns == 10
    assert recording.run.end is End.UNFINISHED
    assert recording.crossings == ordered(spool.crossings)
    assert recording.missing == ["The frames that say what was run are lost."]


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        ((1,), "main tool:search #1: its frame is lost."),
        ((1, 2), "main tool:search #1 to #2: its frame is lost."),
        ((0,), "main tool:search #0: its frame is lost."),
    ],
)
def test_a_lost_crossing_is_named(lost, sentence):
    spool = Spool()
    for ordinal in range(5):
        if ordinal not in lost:
            spool.crossing(tool(ordinal))
    spool.end()
    recording = only(spool.frames)
    assert recording.missing == [sentence]
    assert not recording.complete


def test_two_crossings_at_one_place_are_told():
    spool = Spool()
    spool.crossing(tool(0))
    spool.crossing(tool(0))
    assert only(spool.frames).missing == ["main tool:search #0 stands in the recording 2 times."]


def test_many_lost_crossings_are_counted():
    spool = Spool()
    for ordinal in range(100):
        spool.crossing(tool(2 * ordinal))
    missing = only(spool.frames).missing
    assert len(missing) == 21
    assert missing[-1] == "79 more crossings are lacking."


def test_lost_readings_are_named():
    spool = Spool()
    for first in (0, 2, 6):
        spool.packed([ReadingRecord("main", "clock:time.time", "a.py:f", first, [1.0, 2.0])])
    spool.packed([ReadingRecord("main", "clock:time.time", "b.py:g", 1, [5.0])])
    recording = only(spool.frames)
    assert recording.missing == [
        "main clock:time.time at a.py:f: readings 4 to 5 are lost.",
        "main clock:time.time at b.py:g: readings 0 to 0 are lost.",
    ]
    assert [(reading.first, len(reading.values)) for reading in recording.readings] == [(0, 4), (6, 2), (1, 1)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a.update({names.PAYLOAD: a[names.PAYLOAD][:-9]}), "of the"),
        (lambda a: a.update({names.PAYLOAD: a[names.PAYLOAD].replace("e", "a")}), "not the one that was recorded"),
        (lambda a: a.pop(names.PAYLOAD), "not there"),
        (lambda a: a.update({names.SCHEMA: 99}), "later version"),
    ],
)  # fmt: skip
def test_a_crossing_whose_payload_was_hurt_keeps_its_place_and_no_outcome(change, why):
    spool = Spool()
    for ordinal in range(3):
        spool.crossing(tool(ordinal, outcome=codec.encode((ordinal,))), (FrameKind.CROSSING,))
    spool.end()
    change(next(frame for frame in spool.frames if frame.attributes.get(names.ORDINAL) == 1).attributes)
    recording = only(spool.frames)
    assert [record.position.ordinal for record in recording.crossings] == [0, 1, 2]
    hurt = recording.crossings[1]
    assert (hurt.end, hurt.outcome, hurt.input) == (End.UNFINISHED, None, None)
    [sentence] = recording.missing
    assert sentence.startswith("main tool:search #1: ")
    assert why in sentence


def test_a_whole_frame_replaces_one_that_was_hurt():
    spool = Spool()
    spool.crossing(tool(), (FrameKind.CROSSING,))
    spool.end()
    frame = next(frame for frame in spool.frames if frame.kind is FrameKind.CROSSING)
    hurt = dataclasses.replace(frame, attributes={**frame.attributes, names.PAYLOAD: "{}"})
    for frames in ([hurt, *spool.frames], [*spool.frames, hurt]):
        assert only(frames).complete


def test_a_body_that_lost_content_is_told_and_later_ones_too():
    spool = whole_run(turns=4)
    first = next(i for i, frame in enumerate(spool.frames) if frame.kind is FrameKind.CONTENTS)
    recording = only(spool.frames[:first] + spool.frames[first + 1 :])
    unreadable = [record.position for record in recording.crossings if record.end is End.UNFINISHED]
    assert Position("main", "model:x", 0) in unreadable
    assert all("is not there" in sentence for sentence in recording.missing)
    assert len(recording.missing) == len(unreadable)


def test_later_bodies_build_on_a_crossing_whose_end_was_cut():
    spool = Spool()
    for turn, body in enumerate(chat(4)):
        spool.crossing(model(turn, body))
    cut = next(frame for frame in spool.frames if frame.kind is FrameKind.CROSSING)
    cut.attributes[names.PAYLOAD] = "{"
    recording = only(spool.frames)
    assert [record.position.ordinal for record in recording.crossings if record.end is End.UNFINISHED] == [0]
    assert len(recording.missing) == 1


def test_a_reading_that_makes_no_sense_is_told():
    spool = whole_run()
    frame = next(frame for frame in spool.frames if frame.kind is FrameKind.READINGS)
    for text in ('{"readings":[[1,2]]}', '{"notes":5}', "[]", "{", '{"order":[["main","k",true,1]]}'):
        data = text.encode()
        frame.attributes.update({names.PAYLOAD: text, names.PAYLOAD_LENGTH: len(data)})
        frame.attributes.pop(names.PAYLOAD_DIGEST, None)
        recording = only(spool.frames)
        assert recording.missing[0].startswith("Readings, order and notes: ")


def test_the_memory_that_a_long_chat_takes_is_that_of_its_frames():
    taken = {}
    for turns in (60, 120):
        spool = Spool()
        for turn, body in enumerate(chat(turns, 2000)):
            spool.crossing(model(turn, body))
            spool.crossings.clear()
        tracemalloc.start()
        try:
            recording = only(spool.frames)
            taken[turns] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(recording.crossings) == turns
        assert not recording.missing
    bodies = sum(map(len, chat(120, 2000)))
    assert taken[120] < 3 * taken[60]
    assert taken[120] < bodies / 6
    *_, last = chat(120, 2000)
    assert recording.crossings[-1].attempts[0].request.body == last


def test_5000_crossings_of_concurrent_lanes():
    spool = Spool()
    for lane in range(5000):
        spool.crossing(tool(0, f"main/task:work#{lane}"))
    spool.end()
    frames = spool.frames
    random.Random(2).shuffle(frames)
    recording = only(frames)
    assert recording.complete
    assert recording.crossings == ordered(spool.crossings)
