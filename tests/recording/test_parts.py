"""Frames that travel in parts say the same as before, whatever the limit."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording import layout, names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.contents import ContentWriter
from otel_agent_replay.recording.divergence import Position
from otel_agent_replay.recording.exact import dumps
from otel_agent_replay.recording.frames import (
    Frame,
    as_otlp,
    contents_frames,
    crossing_frame,
    decode,
    readings_frame,
    run_frame,
)
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.parts import SMALLEST, join_pieces, payload_size, split
from otel_agent_replay.recording.payload import compose, ident, unnamed
from otel_agent_replay.recording.rope import digest_of
from otel_agent_replay.recording.values import CrossingRecord, End, Kind, Note, NoteKind, ReadingRecord, RunRecord

MOST = 20_000


def run() -> RunRecord:
    return RunRecord(7, 9, 0, "agent.py", 1, {"kind": "process"}, {"note": "w" * 100}, 2, End.RETURNED, {})


def recorded(body: str) -> list[Frame]:
    """A run with one tool call that returned `body`, and readings as large."""
    owner, writer = run(), ContentWriter()
    record = CrossingRecord(Position("main", "tool:read", 0), Kind.TOOL, 11, 9, 1, input={"path": "x"}, outcome=body)
    record.end, record.ended_ns = End.RETURNED, 2
    pieces: dict[str, bytes] = {}

    def refer(slot: str, data: bytes) -> object:
        ref, fresh = writer.refer("s", ident(11, slot), data)
        pieces.update(fresh)
        return unnamed(ref, ident(11, slot))

    payload = dumps(compose(record, refer))
    return [
        run_frame(owner, FrameKind.RUN_START),
        *contents_frames(owner, pieces, 1),
        crossing_frame(owner, record, payload, FrameKind.CROSSING),
        readings_frame(
            owner,
            [ReadingRecord("main", "entropy:urandom", "s", 0, [body])],
            [],
            [Note(NoteKind.FAULT, "n" * 50)],
            span_id=12,
            now_ns=3,
        ),
        run_frame(owner, FrameKind.RUN),
    ]


def travelled(frames: list[Frame], most: int) -> list[Frame]:
    """The frames as another process reads them from the wire."""
    sent = [part for frame in frames for part in split(frame, most)]
    assert all(len(as_otlp(each)) <= most for each in sent)
    return [decode(as_otlp(each)) for each in sent]


@pytest.mark.parametrize("size", [10, 30_000, 1_200_000])
@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_a_run_of_any_size_is_the_same_after_travelling_in_parts(size: int, letter: str) -> None:
    frames = recorded("".join(letter + str(n) for n in range(size // 5)))
    (before,) = assemble(frames).values()
    (recording,) = assemble(travelled(frames, MOST)).values()
    assert not recording.missing
    for part in ("run", "readings", "order", "notes"):
        assert getattr(recording, part) == getattr(before, part)
    assert [(each.position, each.end, each.input) for each in recording.crossings] == [
        (each.position, each.end, each.input) for each in before.crossings
    ]
    assert recording.crossings[0].outcome == "".join(letter + str(n) for n in range(size // 5))


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=0, max_size=200_000), st.integers(SMALLEST, 100_000))
def test_any_piece_is_put_together_again(piece: bytes, most: int) -> None:
    digest = digest_of(piece)
    (frame,) = contents_frames(run(), {digest: piece}, 1)
    sent = travelled([frame], most)
    pieces: dict[str, bytes] = {}
    for each in sent:
        for name, value in each.attributes.items():
            if name.startswith(names.CONTENT_BINARY_PREFIX):
                pieces[name.rpartition(".")[2]] = b64decode(str(value))
            elif name.startswith(names.CONTENT_PREFIX):
                pieces[name.rpartition(".")[2]] = str(value).encode()
    join_pieces(pieces)
    assert pieces[digest] == piece


def test_lists_of_parts_that_are_too_long_are_parted_again() -> None:
    piece = bytes(range(256)) * 60_000  # 15 MB in pieces of 10 KB: 1,500 digests of 33 bytes
    digest = digest_of(piece)
    frame = Frame(
        FrameKind.CONTENTS,
        7,
        layout.contents_id(digest),
        0,
        "",
        1,
        0,
        {
            names.SCHEMA: 1,
            names.RUN_SPAN: "0" * 15 + "9",
            names.CONTENT_BINARY_PREFIX + digest: b64encode(piece).decode(),
        },
    )
    sent = travelled([frame], SMALLEST)
    pieces = {}
    for each in sent:
        for name, value in each.attributes.items():
            if name.startswith(names.CONTENT_BINARY_PREFIX):
                pieces[name.rpartition(".")[2]] = b64decode(str(value))
            elif name.startswith(names.CONTENT_PREFIX):
                pieces[name.rpartition(".")[2]] = str(value).encode()
    join_pieces(pieces)
    assert pieces[digest] == piece


def test_a_part_that_is_lost_or_changed_makes_the_run_incomplete() -> None:
    frames = recorded("".join(str(n) for n in range(30_000)))
    sent = travelled(frames, MOST)
    parts = [each for each in sent if each.kind is FrameKind.CONTENTS]
    for part in parts[-3:]:
        rest = [each for each in sent if each is not part]
        (recording,) = assemble(rest).values()
        assert any("piece" in sentence and "is not there" in sentence for sentence in recording.missing)
    name = next(name for name in parts[-1].attributes if name.startswith(names.CONTENT_PREFIX))
    parts[-1].attributes[name] = str(parts[-1].attributes[name])[:-1]
    (recording,) = assemble(sent).values()
    assert any("is damaged" in sentence for sentence in recording.missing)


def test_of_two_beginnings_the_one_that_says_more_stays_though_it_is_parted() -> None:
    owner = run()
    record = CrossingRecord(Position("main", "model:m", 0), Kind.MODEL, 11, 9, 1)
    short = crossing_frame(owner, record, dumps({"a": ["one"]}), FrameKind.CROSSING_START)
    long = crossing_frame(owner, record, dumps({"a": ["one", "t" * 40_000]}), FrameKind.CROSSING_START)
    parted = split(long, MOST)[-1]
    assert payload_size(str(parted.attributes[names.PAYLOAD])) > payload_size(str(short.attributes[names.PAYLOAD]))


def test_what_fits_is_left_as_it_is() -> None:
    for frame in recorded("short"):
        assert [decode(as_otlp(each)) for each in split(frame, MOST)] == [decode(as_otlp(frame))]
