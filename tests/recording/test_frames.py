"""Frames: what is written comes back, and damage costs no more than the frame that it is in."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from hashlib import blake2b
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span as PbSpan

from otel_agent_replay.recording import exact, frame_schema, frames, layout, names, wire
from otel_agent_replay.recording.crossing_bytes import contents_bytes, crossing_bytes
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.frames import Damage, Frame, Harm
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.values import (
    CrossingRecord,
    End,
    Kind,
    Note,
    NoteKind,
    OrderEvent,
    ReadingRecord,
    RunRecord,
)

if TYPE_CHECKING:
    from pathlib import Path

    from otel_agent_replay.recording.values import Json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=100) | st.sampled_from(
    ["", "\0", "a\0b", "\x01\x1f\x7f\u2028", "😀🂡", "\x85\u0085⅚Ɇ", "é" * 70]
)
IDS = st.integers(1, 2**64 - 1)
TIMES = st.integers(1, 2**63 - 1)
INTS = st.integers(0, 2**63 - 1)
VALUES = (
    TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.lists(TEXT, max_size=3)
)
OWN = st.fixed_dictionaries(
    {
        names.SCHEMA: st.just(1),
        names.RUN_SPAN: st.integers(1, 2**64 - 1).map(lambda n: f"{n:016x}") | TEXT,
        names.LANE: TEXT,
        names.KEY: TEXT,
        names.ORDINAL: INTS,
        names.KIND: st.sampled_from([str(kind) for kind in Kind]) | TEXT,
        names.END: TEXT,
        names.PAYLOAD: TEXT,
        names.PAYLOAD_LENGTH: INTS,
    },
    optional={names.SEQ: INTS, names.PAYLOAD_DIGEST: st.sampled_from(["0123456789abcdef", "0123456789ABCDEF", "x"])},
)
OTHERS = st.dictionaries(
    (TEXT | st.sampled_from(frame_schema.KNOWN)).filter(lambda name: bool(name) and name != names.FRAME),
    VALUES,
    max_size=5,
)
PIECES = st.dictionaries(
    st.binary(min_size=16, max_size=16).map(bytes.hex), st.binary(max_size=200) | TEXT.map(str.encode)
)
FRAMES = st.builds(
    Frame,
    st.sampled_from([kind for kind in FrameKind if kind is not FrameKind.CONTENTS]),
    st.integers(1, 2**128 - 1),
    IDS,
    IDS,
    TEXT.filter(bool),
    TIMES,
    st.just(0) | TIMES,
    st.builds(lambda own, others: {**others, **own}, OWN, OTHERS),
    st.booleans(),
    st.integers(1, 3),
)


def run_record(**values: object) -> RunRecord:
    return RunRecord(
        **{
            "trace_id": 0xABCDEF << 96 | 7,
            "span_id": 0x1122334455667788,
            "parent_span_id": 0,
            "name": "agent.py",
            "started_ns": 1_764_000_000_000_000_000,
            "entry": {"kind": "process", "argv": ["python", "agent.py"]},
            "world": {"directory": "/w"},
            **values,
        }  # type: ignore[arg-type]
    )


def crossing(number: int = 0, **values: object) -> CrossingRecord:
    return CrossingRecord(
        **{
            "position": Position("main/task:work#1", "model:openai.chat", number),
            "kind": Kind.MODEL,
            "span_id": 0x100 + number,
            "parent_span_id": 0x1122334455667788,
            "started_ns": 1_764_000_000_000_000_001,
            "ended_ns": 1_764_000_000_000_000_900,
            "end": End.RETURNED,
            "seq": number,
            "name": "chat gpt-4o-mini",
            "attributes": {"gen_ai.request.model": "gpt-4o-mini", "gen_ai.usage.input_tokens": 12, "custom": "x"},
            **values,
        }  # type: ignore[arg-type]
    )


def written(*many: Frame) -> bytes:
    return b"".join(part for frame in many for part in frames.encode(frame))


def sample(count: int) -> list[Frame]:
    run = run_record()
    made = [frames.run_frame(run, FrameKind.RUN_START)]
    for number in range(count):
        record = crossing(number)
        made += frames.contents_frames(run, {f"{number:032x}": b"piece %d" % number}, 1)
        made.append(frames.crossing_frame(run, record, '{"n":1}', FrameKind.CROSSING_START))
        made.append(frames.crossing_frame(run, record, '{"n":1,"o":2}', FrameKind.CROSSING))
    return made


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=4))
def test_frames_come_back_as_they_were(made: list[Frame]) -> None:
    data = written(*made)
    found = list(frames.scan(data))
    assert found == made
    assert [(f.offset, f.size) for f in found if isinstance(f, Frame)][-1:] == [
        (len(data) - len(written(made[-1])), len(written(made[-1]))) for _ in made[-1:]
    ]


@settings(deadline=None)
@given(FRAMES)
def test_frames_travel_as_plain_otlp(frame: Frame) -> None:
    data = frames.as_otlp(frame)
    assert frames.decode(data) == frame
    span = PbSpan.FromString(data)
    held = {a.key: a.value for a in span.attributes}
    assert held[names.FRAME].string_value == frame.kind.value
    assert held[names.PAYLOAD].string_value == frame.attributes[names.PAYLOAD]
    assert span.trace_id.hex() == f"{frame.trace_id:032x}"


@settings(deadline=None)
@given(PIECES)
def test_contents_come_back_as_they_were(pieces: dict[str, bytes]) -> None:
    made = frames.contents_frames(run_record(), pieces, 5)
    found = [frame for frame in frames.scan(written(*made)) if isinstance(frame, Frame)]
    assert found == made
    assert [frames.decode(frames.as_otlp(frame)) for frame in made] == made
    held: dict[str, bytes] = {}
    for frame in found:
        for name, value in frame.attributes.items():
            assert isinstance(value, str | int)
            if name.startswith(names.CONTENT_PREFIX):
                held[name.rpartition(".")[2]] = str(value).encode()
            elif name.startswith(names.CONTENT_BINARY_PREFIX):
                held[name.rpartition(".")[2]] = base64.b64decode(str(value))
    assert held == pieces


def test_contents_are_bounded_in_bytes_and_in_number() -> None:
    run = run_record()
    many = {f"{number:032x}": b"x" * 10 for number in range(200)}
    assert [len(frame.attributes) - 3 for frame in frames.contents_frames(run, many, 1)] == [64, 64, 64, 8]
    large = {f"{number:032x}": "é".encode() * 300_000 for number in range(4)}
    made = frames.contents_frames(run, large, 1)
    assert len(made) == 4
    assert max(len(frames.as_otlp(frame)) for frame in made) < 1_100_000
    binary = frames.contents_frames(run, {f"{number:032x}": b"\xff" * 600_000 for number in range(2)}, 1)
    assert len(binary) == 2
    ids = [frame.span_id for frame in (*frames.contents_frames(run, many, 1), *frames.contents_frames(run, many, 9))]
    assert ids[:4] == ids[4:]


def test_a_large_payload_is_not_copied_and_comes_back() -> None:
    payload = '{"body":"' + "é" * 100_000 + '"}'
    frame = frames.crossing_frame(run_record(), crossing(), payload, FrameKind.CROSSING)
    parts = frames.encode(frame)
    assert any(part == payload.encode() for part in parts)
    assert list(frames.scan(b"".join(parts))) == [frame]
    parts = crossing_bytes(run_record(), crossing(), payload.encode(), whole=True)
    assert any(part == payload.encode() for part in parts)
    assert list(frames.scan(b"".join(parts))) == [frame]


def test_builders_say_what_the_store_needs() -> None:
    run = run_record(entry={"kind": "asgi", "within": {"run": "r-1"}, "origin": "r-0"}, end=End.RAISED, ended_ns=9)
    start, whole = frames.run_frame(run, FrameKind.RUN_START), frames.run_frame(run, FrameKind.RUN)
    assert (start.ended_ns, whole.ended_ns, whole.failed, whole.span_kind) == (0, 9, True, 2)
    assert whole.attributes[names.WITHIN] == "r-1"
    assert whole.attributes[names.ORIGIN] == "r-0"
    assert exact.loads(str(start.attributes[names.PAYLOAD])) == {"entry": run.entry, "world": run.world}
    assert frames.run_frame(run_record(outcome={"exit_status": 3}, end=End.RETURNED), FrameKind.RUN).failed
    assert not frames.run_frame(run_record(outcome={"exit_status": 0}, end=End.RETURNED), FrameKind.RUN).failed

    frame = frames.crossing_frame(run, crossing(end=End.RAISED), '{"é":1}', FrameKind.CROSSING)
    assert (frame.failed, frame.span_kind, frame.name) == (True, 3, "chat gpt-4o-mini")
    assert frame.attributes[names.PAYLOAD_LENGTH] == 8
    assert frame.attributes[names.PAYLOAD_DIGEST] == blake2b('{"é":1}'.encode(), digest_size=8).hexdigest()
    assert frame.attributes["gen_ai.usage.input_tokens"] == 12
    begun = frames.crossing_frame(run, crossing(), "{}", FrameKind.CROSSING_START)
    assert not {"gen_ai.usage.input_tokens", names.END, names.SEQ} & set(begun.attributes)
    assert (begun.ended_ns, begun.name) == (0, "model:openai.chat")


@settings(deadline=None)
@given(
    st.builds(
        crossing,
        INTS,
        position=st.builds(Position, TEXT, TEXT, INTS),
        kind=st.sampled_from(Kind),
        span_id=IDS,
        parent_span_id=IDS | st.just(0x1122334455667788),
        started_ns=TIMES,
        ended_ns=TIMES,
        end=st.sampled_from(End),
        seq=st.none() | INTS,
        name=TEXT,
        attributes=OTHERS,
    ),
    TEXT,
    st.booleans(),
)
def test_the_short_way_to_bytes_gives_the_same_frame(record: CrossingRecord, payload: str, whole: bool) -> None:
    kind = FrameKind.CROSSING if whole else FrameKind.CROSSING_START
    run = run_record()
    (short,) = frames.scan(b"".join(crossing_bytes(run, record, payload.encode(), whole=whole)))
    (long,) = frames.scan(b"".join(frames.encode(frames.crossing_frame(run, record, payload, kind))))
    assert short == long


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300) | st.text(max_size=100).map(str.encode), max_size=150), TIMES)
@example([b"x" * 2_000_000, b"\xff" * 2_000_000, b""], 7)
@example([str(number).encode() for number in range(130)], 8)
def test_the_short_way_to_bytes_gives_the_same_contents(pieces: list[bytes], now: int) -> None:
    named = {blake2b(piece, digest_size=16).hexdigest(): piece for piece in pieces}
    run = run_record()
    long = [part for frame in frames.contents_frames(run, named, now) for part in frames.encode(frame)]
    assert b"".join(contents_bytes(run, named, now)) == b"".join(long)


def test_readings_keep_what_json_has_no_form_for() -> None:
    values: list[Json] = [1.5, 2**70, float("inf"), "\ud800", -(2**63), "\0", "é"]
    frame = frames.readings_frame(
        run_record(),
        [ReadingRecord("main", "random:getrandbits", "m.f", 3, values)],
        [OrderEvent("main", "task", 1, 2)],
        [Note(NoteKind.FAULT, "a"), Note(NoteKind.OBSERVED, "b", "c", incomplete=False)],
        span_id=5,
        now_ns=6,
    )
    (found,) = frames.scan(written(frame))
    assert found == frame
    assert isinstance(found, Frame)
    assert exact.loads(str(found.attributes[names.PAYLOAD])) == {
        "readings": [["main", "random:getrandbits", "m.f", 3, values]],
        "order": [["main", "task", 1, 2]],
        "notes": [["fault", "a", "", True], ["observed", "b", "c", False]],
    }
    assert (found.attributes[names.NOTES], found.attributes[names.FLAWS]) == (2, 1)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_exact_json(value: Json) -> None:
    text = exact.dumps(value)
    assert exact.loads(text) == value
    assert exact.loads(text.encode()) == value


def test_a_small_call_costs_little() -> None:
    """All three frames of a call, without content and payload, stay far below the content of a small turn."""
    run, record = run_record(), crossing(attributes=dict.fromkeys(frame_schema.KNOWN[:8], "abcdefgh"))
    made = [
        *frames.contents_frames(run, {"0" * 31 + "1": b""}, 1),
        frames.crossing_frame(run, record, "", FrameKind.CROSSING_START),
        *frames.contents_frames(run, {"0" * 31 + "2": b""}, 1),
        frames.crossing_frame(run, record, "", FrameKind.CROSSING),
    ]
    assert len(written(*made)) < 600
    assert sum(len(frames.as_otlp(frame)) for frame in made) > 1100


def test_a_file_cut_at_any_byte_gives_all_whole_frames() -> None:
    made = sample(2)
    data = written(*made)
    ends = [0]
    for frame in made:
        ends.append(ends[-1] + len(written(frame)))
    for cut in range(len(data) + 1):
        found = list(frames.scan(data[:cut]))
        whole = sum(end <= cut for end in ends) - 1
        assert found[:whole] == made[:whole]
        rest = found[whole:]
        if cut in ends:
            assert rest == []
        else:
            (damage,) = rest
            assert isinstance(damage, Damage)
            assert (damage.harm, damage.offset, damage.length) == (Harm.TORN, ends[whole], cut - ends[whole])


def test_a_tear_in_the_middle_loses_one_frame() -> None:
    made = sample(3)
    pieces = [written(frame) for frame in made]
    for lost in range(len(made)):
        for kept in range(len(pieces[lost])):
            torn = b"".join(pieces[:lost]) + pieces[lost][:kept] + b"".join(pieces[lost + 1 :])
            found = [frame for frame in frames.scan(torn) if isinstance(frame, Frame)]
            assert found == made[:lost] + made[lost + 1 :]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_stepped_over(data: st.DataObject) -> None:
    made = sample(3)
    whole = written(*made)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 80)))
    junk = data.draw(st.binary(max_size=60) | st.just(layout.MARK) | st.just(b"\x10" + layout.MARK * 3))
    harmed = whole[:start] + junk + whole[end:]
    found = list(frames.scan(harmed))
    position = 0
    for item in found:
        size = item.size if isinstance(item, Frame) else item.length
        assert item.offset == position
        position += size
    assert position == len(harmed)
    offset, sound = 0, []
    for frame in made:
        size = len(written(frame))
        if offset + size <= start or offset >= end:
            sound.append(frame)
        offset += size
    survivors = [frame for frame in found if isinstance(frame, Frame)]
    assert [frame for frame in survivors if frame in sound] == sound


def test_what_is_not_ours_is_said_to_be_not_ours() -> None:
    for data in (b"hello, world", b"\0" * 500, bytes(range(256)) * 20, b"PK\x03\x04" + b"z" * 300):
        assert list(frames.scan(data)) == [Damage(0, len(data), "it is not a spool file", Harm.FOREIGN)]
    assert list(frames.scan(b"")) == []


def test_a_newer_version_is_said_to_be_newer() -> None:
    frame = frames.crossing_frame(run_record(), crossing(), "{}", FrameKind.CROSSING)
    frame.attributes[names.SCHEMA] = names.SCHEMA_VERSION + 1
    after = sample(1)
    first, *rest = frames.scan(written(frame, *after))
    assert isinstance(first, Damage)
    assert first.harm is Harm.NEWER
    ours = names.SCHEMA_VERSION
    assert f"newer version (schema {ours + 1}; this version reads up to {ours})" in first.why
    assert rest == after
    with pytest.raises(layout.NewerSchemaError):
        frames.decode(frames.as_otlp(frame))


def test_a_later_frame_kind_and_bad_text_are_damage() -> None:
    for span in (b"\xc8\x0c\x63", b"\xc8\x0c\x04\xe2\x0c\x01\xff", wire.encode(wire.Span(1, 2, name="not ours"))):
        data = b"".join((wire.varint(len(span) + 8), layout.MARK, frames.crc32(span).to_bytes(4, "little"), span))
        (damage,) = frames.scan(data)
        assert isinstance(damage, Damage)
        assert damage.harm is Harm.DAMAGED


def test_recorded_content_never_looks_like_a_frame() -> None:
    """A spool file that an agent reads is content like any other: its frames are not taken for the outer file's."""
    inner = written(*sample(1))
    run = run_record()
    made = frames.contents_frames(run, {"1" * 32: inner}, 1)
    after = sample(1)
    data = written(*made)
    assert layout.MARK not in data[20:]
    torn = data[: len(data) - 5] + written(*after)
    assert [frame for frame in frames.scan(torn) if isinstance(frame, Frame)] == after


def test_a_file_made_to_be_searched_for_ever_is_given_up() -> None:
    beginning = b"\x80\x80\x20" + layout.MARK + b"\0" * 9  # of a frame of half a megabyte
    data = beginning * 60_000
    began = time.monotonic()
    (damage,) = frames.scan(data)
    assert isinstance(damage, Damage)
    assert time.monotonic() - began < 20


def test_scanning_goes_on_from_an_offset() -> None:
    made = sample(2)
    data = written(*made)
    third = list(frames.scan(data))[3]
    assert list(frames.scan(data, third.offset)) == made[3:]
    assert list(frames.scan(data, len(data))) == []
    (torn,) = frames.scan(data + b"\x55\x85", len(data))
    assert isinstance(torn, Damage)
    assert torn.harm is Harm.TORN


def test_the_protobuf_library_reads_a_spool_file() -> None:
    import io

    from google.protobuf.proto import parse_length_prefixed  # type: ignore[import-untyped]

    made = sample(2)
    stream = io.BytesIO(written(*made))
    spans = []
    while (span := parse_length_prefixed(PbSpan, stream)) is not None:
        spans.append(span)
    assert [span.trace_id.hex() for span in spans] == [f"{frame.trace_id:032x}" for frame in made]
    assert [span.start_time_unix_nano for span in spans] == [frame.started_ns for frame in made]


_CLICKHOUSE = """
import sys, chdb
from otel_agent_replay.recording.frame_schema import FRAME_PROTO
proto = FRAME_PROTO.replace("'", "''")
print(chdb.query(
    f"SELECT frame, hex(run), lane, key, ordinal, seq, payload, length(`contents.text`), hex(`contents.digest`[1]) "
    f"FROM file('{sys.argv[1]}', 'Protobuf', 'frame UInt32, run String, lane String, key String, ordinal UInt64, "
    f"seq UInt64, payload String, `contents.text` Array(String), `contents.digest` Array(String)') "
    f"SETTINGS format_schema_source = 'string', format_schema = '{proto}', format_schema_message_name = 'Frame'",
    'TSV'))
"""


def test_clickhouse_reads_a_spool_file(tmp_path: Path) -> None:
    pytest.importorskip("chdb")
    path = tmp_path / "some.spool"
    path.write_bytes(written(*sample(2)))
    done = subprocess.run(
        [sys.executable, "-c", _CLICKHOUSE, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines() if line]
    lane, key, run = "main/task:work#1", "model:openai.chat", "1122334455667788"
    assert rows[0][:2] == ["1", run]
    assert rows[1] == ["6", run, "", "", "0", "0", "", "1", "0" * 32]
    assert rows[2] == ["3", run, lane, key, "0", "0", '{"n":1}', "0", ""]
    assert rows[6] == ["4", run, lane, key, "1", "1", '{"n":1,"o":2}', "0", ""]
