"""Content stored once: exact, linear, bounded, and clear about what is lacking."""

import base64
import functools
import json
import random
import threading
import tracemalloc

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording.contents import ContentReader, ContentWriter, MissingContent
from otel_agent_replay.recording.cuts import LARGEST
from otel_agent_replay.recording.rope import describe, digest_of

thorough = settings(max_examples=100, deadline=None, derandomize=True, database=None)


class Run:
    """A writer, and a reader over what it has written, by way of JSON."""

    def __init__(self, **options):
        self.writer = ContentWriter(**options)
        self.pieces: dict[str, bytes] = {}
        self.refs: list = []
        self.bodies: list[bytes] = []
        self.written = 0

    def refer(self, body: bytes, stream: str = "main", ident: str = ""):
        ref, fresh = self.writer.refer(stream, ident or f"{len(self.refs):016x}.0.b", body)
        assert not fresh.keys() & self.pieces.keys(), "a piece is written once"
        self.pieces.update(fresh)
        self.refs.append(orjson.loads(orjson.dumps(ref)))
        self.bodies.append(body)
        self.written += sum(map(len, fresh.values()))
        return ref

    @property
    def ref_bytes(self) -> int:
        return sum(len(orjson.dumps(ref)) for ref in self.refs)

    def reader(self) -> ContentReader:
        reader = ContentReader(self.pieces)
        for ref in self.refs:
            reader.add_rope(ref)
        return reader

    def check(self):
        reader = self.reader()
        for ref, body in zip(self.refs, self.bodies, strict=True):
            assert reader.resolve(ref) == body
        fresh = self.reader()
        for ref, body in list(zip(self.refs, self.bodies, strict=True))[::-7]:
            assert fresh.resolve(ref) == body


def dumps(value) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Text:
    """Prose with newlines, quotes and letters beyond ASCII, the same for the same seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.words = [
            "".join(self.random.choices("abcdefghijklmnopqrstuvwxyz", k=self.random.randint(2, 10)))
            for _ in range(2000)
        ]

    def __call__(self, length: int) -> str:
        words = (
            self.random.choice(self.words) + self.random.choice([" "] * 20 + ["\n", ' "q" ', " é— "])
            for _ in range(length)
        )
        return "".join(words)[:length]


TURNS = 40


@functools.cache
def chat(scenario: str, turns: int = TURNS, size: int = 4000):
    """The request bodies of a chat, and how many bytes of them are new."""
    text = Text(7)
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "description": text(300),
                "parameters": {f"p{j}": text(60) for j in range(4)},
            },
        }
        for i in range(12)
    ]
    system = {"role": "system", "content": text(2000)}
    messages = [system]
    if scenario == "image":
        data = base64.b64encode(random.Random(1).randbytes(750_000)).decode()
        messages.append(
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]}
        )
    bodies, seen, unique = [], set(), 0
    for turn in range(turns):
        messages.append({"role": "user", "content": text(size)})
        sent = messages
        if scenario == "clock":
            sent = [
                {"role": "system", "content": f"Now is 2026-11-29 18:{turn:02d}. {system['content']}"},
                *messages[1:],
            ]
        if scenario == "window":
            sent = [system, *messages[max(1, len(messages) - 21) :]]
        if scenario == "cachectl":
            content = [{"type": "text", "text": messages[-1]["content"], "cache_control": {"type": "ephemeral"}}]
            sent = [*messages[:-1], {**messages[-1], "content": content}]
        if scenario == "compact" and turn in (15, 30):
            messages[1:] = [
                {"role": "user", "content": text(3000)},
                {"role": "user", "content": messages[-1]["content"]},
            ]
        for part in [tools, *sent]:
            content = part["content"] if isinstance(part, dict) else part
            known = dumps(content if not isinstance(content, list) or "text" not in content[0] else content[0]["text"])
            if known not in seen:
                # a system prompt that differs by a clock is new by its clock only
                unique += 20 if scenario == "clock" and part is sent[0] and turn else len(known)
                seen.add(known)
        bodies.append(dumps({"model": "gpt-x", "messages": list(sent), "temperature": 0.1, "tools": tools}))
        messages.append({"role": "assistant", "content": text(size)})
    return bodies, unique


@pytest.mark.parametrize("scenario", ["grow", "window", "clock", "cachectl", "compact", "image"])
def test_a_chat_is_stored_once(scenario):
    bodies, unique = chat(scenario)
    run = Run()
    for body in bodies:
        run.refer(body)
    run.check()
    assert run.written + run.ref_bytes <= 1.1 * unique
    assert run.ref_bytes <= 0.06 * unique


def test_neither_content_nor_references_grow_with_the_square_of_the_turns():
    sizes = {}
    for turns in (40, 80, 160):
        run = Run()
        for body in chat("grow", turns, 500)[0]:
            run.refer(body)
        sizes[turns] = (run.written, run.ref_bytes)
    for measure in (0, 1):
        early = sizes[80][measure] - sizes[40][measure]
        late = sizes[160][measure] - sizes[80][measure]
        assert late < 2.1 * early


def test_a_growing_scratchpad_in_one_string_is_stored_once():
    text = Text(3)
    run = Run()
    pad = text(3000)
    for _ in range(60):
        pad += text(400)
        run.refer(dumps({"model": "m", "prompt": f"{pad}\nThought: what now? {text(30)}", "stop": ["\n"]}))
    run.check()
    assert run.written + run.ref_bytes <= 1.5 * len(pad)


def test_what_an_assistant_said_is_not_stored_again_when_it_is_sent_back():
    text = Text(5)
    run = Run()
    said = text(5000)
    run.refer(dumps({"id": "chatcmpl-1", "choices": [{"message": {"role": "assistant", "content": said}}]}), "main.d")
    before = run.written
    run.refer(dumps({"model": "m", "messages": [{"role": "assistant", "content": said}]}), "main.b")
    run.check()
    assert run.written == before


@pytest.mark.parametrize(
    ("begins", "ends"), [("I", "."), ("Let me look at that file. ", " Shall I go on?"), ('He \\"said\\" so. ' * 6, "é")]
)
def test_answers_that_begin_and_end_alike_are_not_stored_again_when_they_are_sent_back(begins, ends):
    text = Text(12)
    run = Run()
    history = []
    for number in range(20):
        said = f"{begins}{text(600)}{ends}"
        answer = {"id": f"chatcmpl-{number}", "choices": [{"message": {"role": "assistant", "content": said}}]}
        run.refer(dumps(answer), "main.d")
        before = run.written
        history.append({"role": "assistant", "content": said})
        run.refer(dumps({"model": "m", "messages": history}), "main.b")
        assert run.written == before
    run.check()


def test_lanes_that_begin_alike_share_what_they_begin_with():
    text = Text(6)
    system = text(8000)
    run = Run()
    for lane in range(200):
        run.refer(
            dumps(
                {"messages": [{"role": "system", "content": system}, {"role": "user", "content": f"{lane} {text(50)}"}]}
            ),
            f"lane {lane}",
        )
    run.check()
    assert run.written < 1.2 * len(system.encode())
    assert run.ref_bytes / 200 < 250


def test_a_long_body_without_structure_is_cut_into_bounded_pieces():
    for body in ("é".encode() * 3_000_000, bytes(range(256)) * 20_000, b'"' + b"\\" * 5_000_001, b'"a",' * 400_000):
        run = Run()
        run.refer(body)
        run.check()
        assert max(map(len, run.pieces.values())) <= LARGEST
        assert len(run.pieces) < 5000


def test_pieces_of_a_utf8_body_are_utf8():
    body = dumps({"text": "日本語のテキスト" * 200_000, "more": ["ü" * 300] * 10})
    run = Run()
    run.refer(body)
    run.refer(body.replace("のテ".encode(), "のデ".encode(), 50))
    run.check()
    for piece in run.pieces.values():
        piece.decode()


def test_a_character_that_changes_by_one_byte_is_new_as_a_whole():
    run = Run()
    for letter in "éèüß":
        run.refer(dumps({"text": "word " * 100 + letter + " more" * 100}))
    run.check()
    assert [[part for part in ref["p"] if isinstance(part, str)] for ref in run.refs[1:]] == [["=è"], ["=ü"], ["=ß"]]


def test_a_20_megabyte_image_is_stored_once():
    image = base64.b64encode(random.Random(2).randbytes(15_000_000)).decode()
    run = Run()
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]}
    ]
    for turn in range(5):
        messages.append({"role": "user", "content": f"turn {turn}"})
        run.refer(dumps({"messages": messages}))
    run.check()
    assert run.written < 1.01 * len(image)
    assert max(len(orjson.dumps(ref)) for ref in run.refs[1:]) < 300


@pytest.mark.parametrize("body", [b"", b"short", b"\xff\xfe", "日本".encode(), b"x" * 63])
def test_a_short_body_stands_in_its_reference(body):
    run = Run()
    ref = run.refer(body)
    run.check()
    assert not run.pieces
    assert ref == body.decode() if body != b"\xff\xfe" else ref["$"] == "b64"


# any bytes, any edits

fragments = st.one_of(
    st.binary(max_size=400),
    st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b'{"role":"user","content":"', b'"},{"', b'"}],"', b'"', b"\\", b'\\"', "é".encode(), b"}", b"\xc3"]
    ),
    st.integers(1, 3000).map(lambda n: (b"lorem ipsum " * 300)[:n]),
    st.integers(1, 700).map(lambda n: ("äöü" * 300)[:n].encode()),
)


@st.composite
def edited_bodies(draw):
    parts = draw(st.lists(fragments, min_size=1, max_size=25))
    bodies = [b"".join(parts)]
    for _ in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(parts)))
            what = draw(st.sampled_from(["insert", "delete", "replace", "move", "slice", "repeat"]))
            if what == "insert" or not parts:
                parts.insert(at, draw(fragments))
            else:
                at = min(at, len(parts) - 1)
                if what == "delete":
                    del parts[at]
                elif what == "replace":
                    parts[at] = draw(fragments)
                elif what == "move":
                    parts.insert(draw(st.integers(0, len(parts) - 1)), parts.pop(at))
                elif what == "slice":
                    parts[at] = parts[at][draw(st.integers(0, 40)) :]
                else:
                    parts *= 2
                    del parts[60:]
        bodies.append(b"".join(parts))
    return bodies


@thorough
@given(edited_bodies(), st.lists(st.sampled_from(["a", "b"]), min_size=8, max_size=8))
def test_every_body_comes_back_as_it_was(bodies, streams):
    run = Run()
    for body, stream in zip(bodies, streams, strict=False):
        run.refer(body, stream)
    run.check()


@thorough
@given(
    st.binary(min_size=1, max_size=600), st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=40)), max_size=8)
)
def test_a_description_names_every_byte_once(old, edits):
    body = bytearray(old * 3)
    for at, new in edits:
        body[at : at + len(new) // 2] = new
    first = describe(bytes(old * 3))
    made = describe(bytes(body), first.body, first.bounds)
    assert made.bounds[0] == 0
    assert made.bounds[-1] == len(body)
    assert all(a < b for a, b in zip(made.bounds, made.bounds[1:], strict=False))
    count = sum(part[1] if isinstance(part, list) and len(part) == 2 else 1 for part in made.parts)
    assert count == len(made.bounds) - 1


# state


def test_the_same_name_asked_again_gives_the_same_reference():
    run = Run()
    bodies, _ = chat("grow", 3, 500)
    run.refer(bodies[0], ident="a")
    ref = run.refer(bodies[1], ident="b")
    again, fresh = run.writer.refer("main", "b", bodies[1])
    assert again == ref
    assert not fresh
    other, _ = run.writer.refer("main", "b", bodies[2])
    assert "of" not in other, "a body is never described by its own name"


def test_a_body_that_is_sent_again_hangs_on_the_first():
    run = Run()
    body = dumps({"messages": [{"role": "user", "content": "x" * 1000}]})
    for _ in range(50):
        run.refer(body)
    assert {ref.get("of") for ref in run.refs[1:]} == {run.refs[0]["id"]}
    run.check()


def test_after_a_failed_write_nothing_refers_to_what_was_lost():
    run = Run()
    bodies, _ = chat("grow", 4, 2000)
    run.refer(bodies[0])
    run.writer.refer("main", "lost", bodies[1])  # these pieces never reach the disk
    run.writer.reset()
    run.refs.clear(), run.bodies.clear(), run.pieces.clear()
    run.refer(bodies[2], ident="c")
    run.refer(bodies[3], ident="d")
    run.check()


def test_what_a_writer_holds_does_not_grow_with_the_run():
    text = Text(9)
    writer = ContentWriter(held=2_000_000)
    tracemalloc.start()
    try:
        for number in range(200):
            writer.refer(f"lane {number}", str(number), dumps({"n": number, "text": text(200) + "y" * 50_000}))
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current < 5_000_000


def test_a_stream_that_was_dropped_starts_again_without_storing_its_content_again():
    bodies, _ = chat("grow", 10, 3000)
    run = Run(held=60_000)
    for body in bodies:
        run.refer(body, "main")
        run.refer(dumps({"filler": "z" * 70_000, "n": len(run.refs)}), f"other {len(run.refs)}")
    run.check()
    assert run.written < 1.1 * (len(bodies[-1]) + 70_000)


def test_many_threads_share_a_writer():
    writer = ContentWriter()
    pieces: dict[str, bytes] = {}
    found: list[tuple[object, bytes]] = []
    lock = threading.Lock()
    bodies, _ = chat("grow", 12, 800)

    def work(lane: int) -> None:
        for turn, body in enumerate(bodies):
            sent = body.replace(b"gpt-x", f"gpt-{lane}".encode())
            with lock:  # as a sink does, so that a piece is there before what refers to it
                ref, fresh = writer.refer(f"lane {lane}", f"{lane}.{turn}", sent)
                pieces.update(fresh)
                found.append((ref, sent))

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    reader = ContentReader(pieces)
    for ref, _ in found:
        reader.add_rope(ref)
    assert all(reader.resolve(ref) == body for ref, body in found)


# what is lacking


def test_a_chain_of_10_000_bodies_resolves():
    run = Run()
    body = b'{"messages":["' + b"start " * 50
    for turn in range(10_000):
        body += f'","m{turn}'.encode()
        if turn % 1000 in (0, 999):
            run.refer(body)
        else:
            ref, fresh = run.writer.refer("main", f"{len(run.refs):016x}.0.b", body)
            run.pieces.update(fresh)
            run.refs.append(ref)
            run.bodies.append(body)
        body = body[:-1] + b"!" if turn % 500 == 0 else body
    reader = run.reader()
    assert reader.resolve(run.refs[-1]) == run.bodies[-1]
    assert reader.resolve(run.refs[4321]) == run.bodies[4321]


def test_references_may_come_in_any_order_and_twice():
    run = Run()
    bodies, _ = chat("cachectl", 20, 700)
    for body in bodies:
        run.refer(body)
    reader = ContentReader(run.pieces)
    order = run.refs * 2
    random.Random(4).shuffle(order)
    for ref in order:
        reader.add_rope(ref)
    assert [reader.resolve(ref) for ref in run.refs] == bodies


def test_a_lost_piece_is_named():
    run = Run()
    for body in chat("grow", 4, 2000)[0]:
        run.refer(body)
    lost = next(part[1:] for part in run.refs[2]["p"] if isinstance(part, str) and part[0] == "#")
    del run.pieces[lost]
    reader = run.reader()
    assert reader.resolve(run.refs[1]) == run.bodies[1]
    for ref in run.refs[2:]:
        with pytest.raises(MissingContent, match=lost):
            reader.resolve(ref)
        with pytest.raises(MissingContent, match=lost):
            reader.check(ref)


def test_a_damaged_piece_is_named():
    run = Run()
    run.refer(b"x" * 1000 + b"y")
    digest = next(iter(run.pieces))
    run.pieces[digest] = b"z" * 1001
    with pytest.raises(MissingContent, match=f"{digest} is damaged"):
        run.reader().resolve(run.refs[0])


def test_a_lost_body_is_named():
    run = Run()
    for body in chat("grow", 3, 2000)[0]:
        run.refer(body)
    reader = ContentReader(run.pieces)
    reader.add_rope(run.refs[0])
    with pytest.raises(MissingContent, match=run.refs[1]["id"]):
        reader.resolve(run.refs[2])


PIECE = b"x" * 200


def rope(ident, parts, length, of=None):
    return {"$": "rope", "id": ident, "p": parts, "n": length} | ({"of": of} if of else {})


@pytest.mark.parametrize(
    ("refs", "why"),
    [
        ([rope("a", [[0, 1]], 5, "b"), rope("b", [[0, 1]], 5, "a")], "itself"),
        ([{"$": "rope", "id": "a", "of": "a", "p": [[0, 1]], "n": 5}], "itself"),
        ([{"$": "rope", "id": "a", "of": "b", "n": 4}, {"$": "rope", "id": "b", "of": "a", "n": 4}], "itself"),
        ([{"$": "rope", "id": "a", "of": "b", "n": 4}], "body b, which is not there"),
        ([{"$": "rope", "id": "a", "p": ["=abc"], "n": 4}], "4 bytes, 3 are there"),
        ([{"$": "rope", "id": "a", "p": [[0, 1]], "n": 4}], "more than the earlier body holds"),
        ([rope("b", ["=abc"], 3), rope("a", [[0, 2]], 4, "b")], "more than"),
        ([{"$": "rope", "id": "a", "p": [[0, -1]], "n": 4}], "malformed"),
        ([{"$": "rope", "id": "a", "p": [[True, 1]], "n": 4}], "malformed"),
        ([{"$": "rope", "id": "a", "p": [["0", 1]], "n": 4}], "malformed"),
        ([{"$": "rope", "id": "a", "p": [{"$": "b64", "v": "?"}], "n": 4}], "malformed"),
        ([{"$": "rope", "id": "a", "p": "=abc", "n": 4}], "malformed"),
        ([{"$": "rope", "id": 7, "p": [], "n": 0}], "malformed"),
        ([{"$": "rope", "id": "a", "p": ["abc"], "n": 3}], "malformed"),
        ([{"$": "rope", "id": "a", "p": [[0, 1 << 40]], "n": 1 << 41}], "claims"),
        ([{"$": "rope", "id": "a", "p": [[0, 1 << 20]], "n": 7}], "claims"),
        ([{"$": "b64", "v": 5}], "malformed"),
        ([{"$": "what"}], "malformed"),
        ([17], "malformed"),
    ],
)  # fmt: skip
def test_a_malformed_reference_is_refused_in_one_sentence(refs, why):
    reader = ContentReader({digest_of(PIECE): PIECE})
    with pytest.raises(MissingContent, match=why):
        for ref in refs:
            reader.add_rope(ref)
        reader.resolve(refs[-1])


def test_a_reference_that_doubles_itself_is_refused_before_it_fills_the_memory():
    reader = ContentReader({})
    ref = {"$": "rope", "id": "0", "p": ["=" + "x" * 100], "n": 100}
    reader.add_rope(ref)
    with pytest.raises(MissingContent, match="claims"):
        for level in range(1, 60):
            ref = {
                "$": "rope",
                "id": str(level),
                "of": str(level - 1),
                "p": [[0, 1 << (level - 1)]] * 2,
                "n": 100 << level,
            }
            reader.add_rope(ref)
