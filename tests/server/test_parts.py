"""The parts that the ports are made of, each alone."""

from __future__ import annotations

import gzip
import struct
import threading
import time
import zlib

import lz4.frame
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from otel_agent_replay.server import blocks, limits, sql_settings
from otel_agent_replay.server.commit import Committer, OverloadedError, UnavailableError
from otel_agent_replay.server.engine import SqlError
from otel_agent_replay.server.gate import split_insert
from otel_agent_replay.server.http import Access, HttpError, inflated, is_loopback
from otel_agent_replay.server.spans import Batch, Row


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_block_frames_come_back(pieces: list[bytes], cut: int):
    sent = b"".join(map(blocks.Frames().pack, pieces))
    chunks = (sent[at : at + cut] for at in range(0, len(sent), cut))
    assert b"".join(blocks.unframe(chunks)) == b"".join(pieces)


@pytest.mark.parametrize("at", [0, 16, 17, 21, 30])
def test_a_broken_block_frame_is_refused(at: int):
    frame = bytearray(blocks.frame(b"some data " * 10))
    frame[at] ^= 0xFF
    with pytest.raises(SqlError):
        list(blocks.unframe(iter([bytes(frame)])))
    with pytest.raises(SqlError, match="not whole"):
        list(blocks.unframe(iter([bytes(blocks.frame(b"x"))[:-1]])))


def test_a_block_frame_that_would_be_huge_is_refused():
    head = bytes(16) + struct.pack("<BII", 0x82, 100, 1 << 31)
    with pytest.raises(SqlError, match="impossible"):
        list(blocks.unframe(iter([head + bytes(91)])))


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress, "lz4": lz4.frame.compress}


@pytest.mark.parametrize("encoding", PACKED)
def test_a_body_is_unpacked_a_part_at_a_time(encoding: str):
    data = b"".join(b"%d " % n for n in range(500_000))
    packed = PACKED[encoding](data)
    chunks = [packed[at : at + 1000] for at in range(0, len(packed), 1000)]
    parts = list(inflated(iter(chunks), encoding))
    assert b"".join(parts) == data
    bomb = PACKED[encoding](bytes(64 << 20))
    assert max(map(len, inflated(iter([bomb]), encoding))) <= blocks.BLOCK_BYTES
    for broken in (packed[:-20], b"garbage, and long enough", packed[: len(packed) // 2]):
        with pytest.raises(HttpError, match=r"The body is no"):
            list(inflated(iter([broken]), encoding))


@pytest.mark.parametrize("encoding", blocks.ENCODINGS)
def test_a_result_is_packed_as_it_says(encoding: str):
    packer = blocks.ENCODINGS[encoding]()
    packed = packer.pack(b"one ") + packer.pack(b"two") + packer.end()
    assert b"".join(inflated(iter([packed]), encoding)) == b"one two"


@pytest.mark.parametrize(
    ("text", "head", "form", "body"),
    [
        (b"INSERT INTO t FORMAT RowBinary\n\x20x", "INSERT INTO t", "RowBinary", b"\x20x"),
        (b"insert into t (a, `format`) format CSV\r\n1,2", "insert into t (a, `format`)", "CSV", b"1,2"),
        (b"/* x */ -- y\nINSERT INTO t VALUES (1)", "INSERT INTO t", "Values", b"(1)"),
        (b"INSERT INTO t SETTINGS a = 1 FORMAT TSV 1", "INSERT INTO t", "TSV", b"1"),
        (b"INSERT INTO t (settings) SETTINGS a = 1, b = 2\nVALUES (1)", "INSERT INTO t (settings)", "Values", b"(1)"),
        (b"INSERT INTO \"FORMAT x\".t FORMAT TSV\n", 'INSERT INTO "FORMAT x".t', "TSV", b""),
        (b"INSERT INTO t (values) VALUES (1)", "INSERT INTO t (values)", "Values", b"(1)"),
    ],
)  # fmt: skip
def test_an_insert_is_told_from_its_rows(text: bytes, head: str, form: str, body: bytes):
    found = split_insert(text)
    assert (found.head, found.form, found.body) == (head, form, body)


@pytest.mark.parametrize(
    "text",
    [b"", b"SELECT 1", b"INSERT INTO t SELECT 1", b"INSERT INTO t FROM INFILE 'x' FORMAT CSV", b"INSERT", b"\xff\xfe"],
)
def test_what_brings_no_rows_is_no_such_insert(text: bytes):
    assert split_insert(text) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_the_look_for_an_insert(data: bytes):
    for text in (data, b"INSERT INTO t " + data):
        try:
            split_insert(text)
        except SqlError as error:
            assert error.code == 62


def test_who_may_what():
    here, there = Access("127.0.0.1", "w"), Access("192.0.2.1", "w", "r")
    assert [here.role(token) for token in ("", "w", "r", "x")] == ["reader", "writer", "", ""]
    assert [there.role(token) for token in ("", "w", "r", "x")] == ["", "writer", "reader", ""]
    assert [here.may_send(token) for token in ("", "w", "x")] == [True, True, False]
    assert [there.may_send(token) for token in ("", "w", "r")] == [False, True, False]


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "::1", "a.localhost"])
def test_names_of_this_machine(name: str):
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name", ["", "example.com", "localhost.example.com", "192.168.0.1", "0.0.0.0", "127.0.0.1.nip.io"]
)
def test_names_of_others(name: str):
    assert not is_loopback(name)


def test_bounds_of_settings():
    found = sql_settings.checked([("max_execution_time", "5"), ("max_memory_usage", "0"), ("readonly", "0")])
    assert found == {"max_execution_time": "5", "max_memory_usage": str(limits.QUERY_BYTES)}
    assert list(sql_settings.applied(found, writer=False))[-1] == "readonly"
    for name in ("readonly ", "allow_ddl", "max_server_memory_usage", "x'", ""):
        with pytest.raises(SqlError):
            sql_settings.checked([(name, "1")])
    with pytest.raises(SqlError, match="no number"):
        sql_settings.checked([("max_execution_time", "1; DROP")])


class Stuck:
    """An engine that hands out no connection until it is told to, and then none that works."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def handle(self):
        self.free.wait(30)
        raise SqlError(241, "Code: 241. DB::Exception: no memory")


def batch(size: int) -> Batch:
    return Batch([Row((b"x",), None)], size, accepted=1)


def test_what_cannot_wait_is_told_to_come_again_and_what_fails_too():
    engine = Stuck()
    committer = Committer(engine, "otel")
    errors: list[Exception] = []

    def submit() -> None:
        try:
            committer.submit(batch(limits.QUEUED_BYTES))
        except UnavailableError as error:
            errors.append(error)

    waiting = threading.Thread(target=submit)
    waiting.start()
    deadline = time.monotonic() + 30
    while committer.waiting() == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(OverloadedError):
        committer.submit(batch(1))
    engine.free.set()
    waiting.join(30)
    assert "no memory" in str(errors[0])
    committer.close()
    with pytest.raises(UnavailableError, match="stopping"):
        committer.submit(batch(1))
    assert (committer.counts.failures, committer.counts.overloads, committer.counts.accepted) == (1, 1, 0)
