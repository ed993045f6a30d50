"""What a client may send: no view fails on it, no other row of its batch is lost, and every query still answers.

Rows go into the landing table as the Collector's exporter or anybody else writes them, so every column holds what
its type allows and no more is known of it.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.analysis.summary import summarise
from otel_agent_replay.recording import names
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, payload_digest, scan
from otel_agent_replay.store import retention, select
from otel_agent_replay.store.rows import LANDING, LANDING_COLUMNS, landing_row

if TYPE_CHECKING:
    from otel_agent_replay.store.clickhouse import Engine

NASTY = [
    b"", b"0", b"-1", b"1e400", b"nan", b"99999999999999999999999", b"18446744073709551615", b"4294967296", b"+3",
    b"\xff\xfe\x00", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"a" * 70_000, b"'", b"\\'; DROP TABLE runs", b"{}", b"[[[[",
    b"main", b"model", b"true", b"%s%n", "é".encode(), b"\r\n\t", b"=" * 9, b"AAA", b"gen_ai", b"9" * 400, b"0x10",
]  # fmt: skip
HEX = [b"", b"0" * 32, b"f" * 32, b"A" * 32, b"0" * 31, b"g" * 32, b"0" * 16, b"\xff" * 32, b"0" * 33, b"\0" * 16]
TIMES = [0, 1, -1, 2**63 - 1, -(2**63), 10**18, -(10**18), 4 * 10**18]
OURS = [value for key, value in vars(names).items() if key.isupper() and str(value).startswith("agent_replay.")]
OTHERS = ["gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "x" * 300, ""]
DIGESTS = [b"0" * 32, b"zz", b"", b"F" * 32, b"0" * 31, b"\xff" * 32]


def sized(data: bytes) -> bytes:
    out, length = bytearray(), len(data)
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes([*out, length]) + data


def row(
    *, stamp=0, trace=b"", span=b"", parent=b"", name=b"", kind=b"", attributes=(), duration=0, status=b"", links=()
) -> bytes:
    """A row of `LANDING_COLUMNS`, whatever its values are."""
    out = struct.pack("<q", stamp) + b"".join(map(sized, (trace, span, parent, b"", name, kind, b"\xff")))
    out += b"\0" + sized(b"scope") + b"\0"
    out += listed([sized(key) + sized(value) for key, value in attributes])
    out += struct.pack("<Q", duration) + sized(status) + sized(b"\xfe")
    out += listed([]) * 3
    out += listed([sized(link) for link in links]) * 2
    return out + listed([sized(b"")] * len(links)) + listed([listed([])] * len(links))


def listed(items: list[bytes]) -> bytes:
    """An Array or a Map: how many, and each."""
    return sized(b"\0" * len(items))[: -len(items) or None] + b"".join(items)


def hostile(chance: random.Random) -> bytes:
    frame = chance.choice([*(kind.value.encode() for kind in names.FrameKind), *NASTY[:4]])
    keys = [name.encode() for name in (*OURS, *OTHERS)]
    attributes = [(key, chance.choice([*NASTY, *HEX])) for key in keys if chance.random() < 0.6]
    attributes.append((names.FRAME.encode(), frame))
    if chance.random() < 0.7:
        attributes.append((names.RUN_SPAN.encode(), chance.choice([b"0" * 16, b"f" * 16, *HEX])))
    for digest in DIGESTS:
        prefix = chance.choice([names.CONTENT_PREFIX, names.CONTENT_BINARY_PREFIX, "agent_replay.content"]).encode()
        attributes.append((prefix + digest, chance.choice([*NASTY, b"!!!not base64", b"////", b"AAAA="])))
    chance.shuffle(attributes)
    return row(
        stamp=chance.choice([*TIMES, chance.randrange(-(2**63), 2**63)]),
        trace=chance.choice(HEX),
        span=chance.choice([b"f" * 16, *HEX]),
        parent=chance.choice([*HEX, *NASTY]),
        name=chance.choice(NASTY),
        kind=chance.choice([b"Client", b"SPAN_KIND_SERVER", *NASTY]),
        attributes=attributes,
        duration=chance.choice([0, 1, 2**63, 2**64 - 1, 10**18]),
        status=chance.choice([b"Error", b"STATUS_CODE_OK", *NASTY]),
        links=[chance.choice(HEX) for _ in range(chance.randrange(3))],
    )


def honest(home, name: str):
    recorder = home.recorder()
    run = recorder.start(name)
    run.model(0, b'{"messages":[{"role":"user","content":"%s"}]}' % (b"to be kept " * 30))
    run.tool(0, {"q": "x"})
    run.readings([1, 2])
    run.end()
    recorder.close()
    (path,) = home.files()
    frames = [item for item in scan(path.read_bytes()) if isinstance(item, Frame)]
    path.unlink()
    return run.run_id, frames


def answers(engine: Engine, run_id: str, expected) -> None:
    """Everything that the commands ask."""
    assert assemble(select.frames(engine, run_id), run_id)[run_id] == expected
    every = list(select.tallies(engine, replays=True))
    assert {tally.run_id: tally.crossings for tally in every}[run_id] == 2
    assert {tally.run_id for tally in select.tallies(engine, limit=9, replays=True)} <= {each.run_id for each in every}
    for tally in every:
        summarise(tally)
        assemble(select.frames(engine, tally.run_id))
    select.count(engine)
    select.latest(engine)
    assert select.matching(engine, run_id[:32]) == [run_id]
    made = retention.plan(engine, retention.Policy(0, 0), {run_id}, now_ns=2**62)
    assert run_id not in made.doomed


@pytest.mark.parametrize("seed", range(3))
def test_hostile_rows_harm_nobody(home, seed):
    chance = random.Random(seed)
    run_id, frames = honest(home, "honest.py")
    expected = assemble(frames)[run_id]
    rows = [hostile(chance) for _ in range(400)]
    rows += [b"".join(landing_row(frame)) for frame in frames]
    chance.shuffle(rows)
    with home.engine() as engine:
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(rows))
        assert next(iter(engine.rows("SELECT count() FROM spans")))[0] > 100  # whatever it is, it is looked at
        for table in ("runs", "frames"):
            sql = f"SELECT countIf(NOT match(run_id, '^[0-9a-f]{{32}}-[0-9a-f]{{16}}$')), count() FROM {table}"
            assert next(iter(engine.rows(sql)))[0] == 0
        answers(engine, run_id, expected)
        made = retention.plan(engine, retention.Policy(0, 0), {run_id}, now_ns=2**62)
        retention.carry_out(engine, made)
        answers(engine, run_id, expected)


def test_times_of_two_centuries_are_no_reason_to_refuse_a_batch(home):
    run_id, frames = honest(home, "wide.py")
    rows = [
        row(stamp=month * 30 * 86400 * 10**9 - 2**62, trace=b"a" * 32, span=b"%016x" % month, attributes=[
            (b"agent_replay.frame", b"crossing"), (b"agent_replay.run", b"b" * 16)])
        for month in range(1, 2000)
    ]  # fmt: skip
    with home.engine() as engine:
        engine.insert(LANDING, LANDING_COLUMNS, b"".join([*rows, *(b"".join(landing_row(frame)) for frame in frames)]))
        assert next(iter(engine.rows("SELECT count() FROM crossings")))[0] == 1999 + 2
        answers(engine, run_id, assemble(frames)[run_id])


def test_ten_thousand_attributes(home):
    run_id, frames = honest(home, "many.py")
    many = [(b"key.%d" % number, b"value") for number in range(10_000)]
    with home.engine() as engine:
        rows = [row(trace=b"a" * 32, span=b"b" * 16, attributes=many), *(b"".join(landing_row(f)) for f in frames)]
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(rows))
        answers(engine, run_id, assemble(frames)[run_id])


def test_what_was_recorded_is_not_replaced_by_whoever_knows_its_ids(home):
    run_id, frames = honest(home, "known.py")
    expected = assemble(frames)[run_id]
    with home.engine() as engine:
        engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in frames for piece in landing_row(frame)))
        for longer in ("", " " * 99):
            forged = [forgery(frame, longer) for frame in frames]
            engine.insert(LANDING, LANDING_COLUMNS, b"".join(piece for frame in forged for piece in landing_row(frame)))
        assert assemble(select.frames(engine, run_id), run_id)[run_id] == expected
        for table in ("runs", "frames"):
            engine.command(f"OPTIMIZE TABLE {table} FINAL")
        assert assemble(select.frames(engine, run_id), run_id)[run_id] == expected


def forgery(frame: Frame, more: str) -> Frame:
    """The same frame with another content, whole by what it says of itself."""
    attributes = {
        name: f"{value}{more}".replace("e", "3")
        if name == names.PAYLOAD or name.startswith("agent_replay.content")
        else value
        for name, value in frame.attributes.items()
    }
    if names.PAYLOAD in attributes:
        attributes[names.PAYLOAD_LENGTH] = len(attributes[names.PAYLOAD])
        attributes[names.PAYLOAD_DIGEST] = payload_digest(attributes[names.PAYLOAD].encode())
    return replace(frame, attributes=attributes)
