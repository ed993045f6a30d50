"""What is written in C gives what the same in Python gives; without it everything works."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import zlib

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_agent_replay.recording import alike, layout, mask_rules, names, payload, rope
from otel_agent_replay.recording.compiled import PART

needs_it = pytest.mark.skipif(PART is None, reason="no C compiler was at hand when the package was installed")

WORDS = ("the", "order", "ü", "日本", "\\", '"', "\n", "x" * 50, "😀", "}", "{", ",", ":", '"}],"', '"},{"')
ALPHABETS = (b'"\\', b'"}{,\\a', b'abc"', bytes(range(256)), b"a")


class Drawn:
    """Bodies as chats and others hold them, from a seed: more and larger ones than a strategy would make."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.messages = [self.message() for _ in range(self.chance.randint(0, 30))]

    def message(self) -> dict[str, str]:
        size = self.chance.choice((3, 30, 80, 300, 3000 if self.chance.random() < 0.05 else 100))
        said = " ".join(self.chance.choices(WORDS, k=self.chance.randint(0, size)))
        return {"role": self.chance.choice(("user", "assistant", "tool")), "content": said}

    def raw(self, most: int) -> bytes:
        return bytes(self.chance.choices(self.chance.choice(ALPHABETS), k=self.chance.randint(0, most)))

    def after(self, body: bytes) -> bytes:
        """A body that may be the next one of the same conversation, or another."""
        chance = self.chance.random()
        if chance < 0.5:
            return self.turn()
        return self.changed(body) if chance < 0.8 else self.raw(self.chance.choice((10, 300, 3000)))

    def turn(self) -> bytes:
        for _ in range(self.chance.randint(0, 3)):
            place = self.chance.choice((len(self.messages), self.chance.randint(0, len(self.messages))))
            self.messages.insert(place, self.message())
        if self.messages and self.chance.random() < 0.3:
            self.messages.pop(self.chance.randrange(len(self.messages)))
        document = {"messages": self.messages, "model": "m", "temperature": self.chance.choice((0.2, 0.7))}
        return json.dumps(document, ensure_ascii=self.chance.random() < 0.3, separators=(",", ":")).encode()

    def changed(self, body: bytes) -> bytes:
        made = bytearray(body)
        for _ in range(self.chance.randint(0, 4)):
            begin = self.chance.randint(0, len(made))
            end = min(len(made), begin + self.chance.choice((0, 1, 5, 50, 500, 5000)))
            how = self.chance.random()
            if how < 0.4:
                made[begin:end] = self.raw(self.chance.choice((3, 30, 400, 9000)))
            elif how < 0.7:
                place = self.chance.randint(0, len(made))
                made[place:place] = made[begin:end]
            else:
                del made[begin:end]
        return bytes(made)


def agree(body: bytes, old: rope.Description) -> rope.Description:
    """The description by the compiled part, which is that of the other."""
    made = rope.describe(body, old.body, old.bounds, old.tail)
    assert made == rope.interpreted(body, old.body, old.bounds, old.tail)
    return made


@needs_it
@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**64))
def test_bodies_are_described_alike(seed) -> None:
    drawn = Drawn(seed)
    last = rope.describe(b"")
    for _ in range(6):
        last = agree(drawn.after(last.body), last)


@needs_it
@settings(deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=400), st.binary(max_size=400))
def test_any_bytes_are_described_alike(one, other, third) -> None:
    last = agree(one + other + third, agree(other + one, agree(one, rope.describe(b""))))
    assert last.bounds[-1] == len(one) + len(other) + len(third)


@needs_it
def test_large_bodies_are_described_alike() -> None:
    drawn = Drawn(1)
    large = json.dumps({"image": drawn.raw(10).hex() + "ab" * 1_700_000, "said": "é" * 900_000}).encode()
    first = agree(large, rope.describe(b""))
    assert len(first.apart) > 3
    agree(large.replace(b"abab", b"ba", 3) + large[:70_000], first)
    agree(large[:1_000_000] + b"new" + large[1_000_000:], first)


@needs_it
@settings(deadline=None)
@given(st.binary(max_size=700), st.binary(max_size=700), st.binary(max_size=10), st.integers(0, 9), st.integers(0, 9))
@example(b"a" * 9000, b"a" * 8999 + b"b", b"", 0, 0)
def test_bodies_are_compared_alike(same, other, begin, at, other_at) -> None:
    one, two = begin + same + other[:3] + same, begin + same + other
    at, other_at = min(at, len(one)), min(other_at, len(two))
    most = min(len(one) - at, len(two) - other_at)
    assert alike.start_alike(one, at, two, other_at, most) == alike.interpreted_start(one, at, two, other_at, most)
    end, other_end = len(one) - at, len(two) - other_at
    most = min(end, other_end)
    assert alike.end_alike(one, end, two, other_end, most) == alike.interpreted_end(one, end, two, other_end, most)


@needs_it
@pytest.mark.parametrize(
    ("at", "other_at", "most"), [(0, 0, 4), (4, 0, 0), (-1, 0, 1), (0, -1, 1), (0, 9, 0), (2, 0, 2)]
)
def test_nothing_outside_of_a_body_is_looked_at(at, other_at, most) -> None:
    with pytest.raises(ValueError, match="not so much"):
        PART.start_alike(b"abc", at, b"abcdef", other_at, most)


@needs_it
@pytest.mark.parametrize("bounds", [(), (0,), (0, 2), (1, 3), (0, 2, 1, 3), (0, 4), (0, -1, 3)])
def test_bounds_that_are_none_of_the_earlier_body_are_refused(bounds) -> None:
    with pytest.raises(ValueError, match="no bounds"):
        rope.describe(b"abcd", b"abc", rope.array("q", bounds))


VALUES = st.one_of(
    st.text(max_size=300), st.text(st.characters(codec=None), max_size=5), st.booleans(), st.floats(),
    st.integers(-(2**70), 2**70), st.lists(st.text(max_size=5), max_size=9), st.lists(st.integers(), max_size=3),
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from((*layout.KNOWN, names.SERVING, names.END, "user.id", "é", "x" * 300)), st.text(max_size=9)
)


@needs_it
@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=12))
@example({"large": "x" * 5000, "larger": "y" * 70_000, "gen_ai.request.model": "z" * 3000})
def test_attributes_are_written_alike(found) -> None:
    but = frozenset((names.END,))
    plain = b"".join(layout.attribute(name, value) for name, value in found.items() if name not in but)
    assert layout.attributes(found, but) == plain


HEADER_TEXTS = st.one_of(
    st.sampled_from(("content-length", "Content-Length", "x-length", "12", "0", "", 'W/"a\\b"', "é", "\x7f", "日本")),
    st.text(max_size=8),
    st.sampled_from(("a\tb", "a\x00b", "\ud800", "line\nline", "\u2028")),
)


@needs_it
@given(
    st.one_of(st.none(), HEADER_TEXTS),
    st.lists(st.tuples(HEADER_TEXTS, HEADER_TEXTS), max_size=6),
    st.sampled_from((0, 12)),
)
@example("http://x/", [("content-length", "12"), ("12", "12"), ("12", "content-length"), ("a", "12")], 12)
@example(None, [("a", "b")] * 400, 0)
def test_headers_are_the_same(url, headers, length) -> None:
    found = PART.headers(url, headers, str(length))
    texts = [text for pair in headers for text in pair] + ([] if url is None else [url])
    unusual = len(headers) > 256 or any(re.search("[\x00-\x1f\ud800-\udfff]", text) for text in texts)
    if found is None:
        assert unusual or not texts
    else:
        assert found == orjson.dumps(payload.flattened(url, headers, length))


@needs_it
def test_headers_of_no_usual_shape_are_left_to_the_other() -> None:
    class Text(str):
        __slots__ = ()

    for headers in ([["a", "b"]], [("a", "b", "c")], [("a", 1)], [(Text("a"), "b")], (("a", "b"),)):
        assert PART.headers(None, headers, "0") is None
    assert PART.headers(Text("http://x/"), [], "0") is None


@needs_it
def test_checksums_are_those_of_zlib() -> None:
    if PART.checksum(b"", 0) is None:
        pytest.skip("this processor has no carry-less multiplication")
    chance = random.Random(4)
    for length in (*range(400), 4095, 4096, 100_001):
        data = chance.randbytes(length)
        for value in (0, 1, 0xFFFFFFFF, chance.getrandbits(32)):
            assert PART.checksum(data, value) == zlib.crc32(data, value), (length, value)


@needs_it
@given(st.lists(st.one_of(st.binary(max_size=300), st.integers(0, (1 << 64) - 1), st.integers(0, 300))))
@example([1 << 7, 1 << 14, (1 << 63) - 1, (1 << 64) - 1, b""])
def test_frames_are_the_same(parts) -> None:
    found = PART.delimited(parts, layout.MARK, layout.JOIN_BELOW)
    assert found is None or [found] == layout.interpreted(parts)
    assert layout.delimited(parts) == layout.interpreted(parts)
    assert PART.delimited([*parts, bytes(layout.JOIN_BELOW)], layout.MARK, layout.JOIN_BELOW) is None


@needs_it
@pytest.mark.parametrize("part", ["text", 1.0, None, True, -1, 1 << 64])
def test_what_is_no_part_of_a_frame_is_refused(part) -> None:
    with pytest.raises((TypeError, OverflowError)):
        PART.delimited([b"x", part], layout.MARK, layout.JOIN_BELOW)


SHAPES = (
    b"sk-abcdefghijkl", b"sk-proj_0-aB9xyzw", b"xoxb-1", b"xoxp-a", b"glpat-a", b"-----BEGIN RSA PRIVATE KEY-----",
    b"-----BEGIN PRIVATE KEY", b"ghp_abcdefghijklmnop", b"ghs_ABCDEFGHIJKLMNOP", b"github_pat_0123456789abcdef",
    b"hf_abcdefghijklmnop", b"gsk_abcdefghijklmnop", b"npm_abcdefghijklmnop", b"sk_live_", b"rk_test_",
    b"AKIAIOSFODNN7EXAMPLE", b"ASIAIOSFODNN7EXAMPLE", b"AIzaSyA1234567890abcdefghijklmnopqrstuv_",
    b"eyJhbGciOiJI.eyJzdWIiOi", b"SG.abcdefghijklmnopqrst", b"Bearer x", b"BEARER\tx", b"bearer x", b"PASSWORD=x",
    b"PASSWD=", b"PASSPHRASE=", b"DB_PASS=", b"MY_PWD=", b"GIT_PAT=", b"API_KEY=", b"SECRET=", b"TOKEN=",
    b'"authorization"', b'"Authorization"', b'"Proxy-Authorization"', b'"x-api-key"', b'"X_API_KEY"', b'"apiKey"',
    b'"api-key"', b'"cookie"', b'"Cookie"', b'"set-cookie"', b'"Set_Cookie"', b'"x-auth-token"', b'"x-goog-api-key"',
    b'"x-amz-security-token"', b'"password"', b'"PassPhrase"', b'"passwd"', b'"client_secret"', b'"access_token"',
    b'"refresh-token"', b'"id_token"', b'"session_token"', b'"private_key"', b'"secret_key"', b'"secret_access"',
    b'"openai-api-key"', b'"anthropic_api_key"', b'"query_string"', b"\\u0041", b"\\u007a", b"\\u0031",
    b'$": "bytes", "v": "', b'$\\": \\"str\\", \\"v\\": \\"', b"?api_key=1", b"&token=", b"?X-Amz-Signature=",
    b"&my.own_key=",
    b"https://user:word@host", b"postgres:\\/\\/a:b@c", b"redis://:word@host",
)  # fmt: skip
"""What each of the rules finds, whole."""

FILLERS = (
    b"",
    b" ",
    b"the order arrived - at 7: ",
    b'{"content":"yes","created":1,"stop":"end_turn"},',
    b"x@y.z:/",
    b"_",
    b"=",
)


def alike_suspicious(data: bytes, start: int, end: int) -> bool:
    found = mask_rules.suspicious(data, start, end)
    assert found is mask_rules.interpreted(data, start, end), (data[start:end][:300], start, end)
    return found


@needs_it
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("size", [0, 300, 9000])
def test_what_is_suspicious_is_so_for_both(filler, size) -> None:
    before = (filler * (size // max(len(filler), 1) + 1))[:size]
    assert not alike_suspicious(before + filler, 0, len(before + filler))
    for shape in SHAPES:
        data = before + shape + filler
        for length in range(len(shape) + 1) if size < 9000 else (len(shape) - 1, len(shape)):
            alike_suspicious(data, 0, len(before) + length)
        alike_suspicious(data, len(before) + 1, len(data))
        alike_suspicious(data, 0, len(data) + 5)


@needs_it
def test_no_shape_goes_by_unseen() -> None:
    for shape in SHAPES:
        assert alike_suspicious(shape + b"0" * 20, 0, len(shape) + 20), shape


@needs_it
@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from((*SHAPES, *FILLERS, *(bytes((byte,)) for byte in b'-_AJGB="\\$?&:@b'))), max_size=9),
    st.data(),
)
def test_any_mixture_is_as_suspicious_for_both(pieces, draw) -> None:
    data = b"".join(piece[: draw.draw(st.integers(0, len(piece)))] if len(piece) > 4 else piece for piece in pieces)
    alike_suspicious(data, 0, len(data))
    alike_suspicious(b"word " * 60 + data, 0, 300 + len(data))


@needs_it
def test_a_word_is_found_wherever_it_stands() -> None:
    for before in range(40):
        for after in range(40):
            data = b"b" * before + b"bearer " + b" " * after
            assert alike_suspicious(data, 0, len(data))
            assert not alike_suspicious(data, before + 1, len(data))
            assert not alike_suspicious(data, 0, before + 6)


@needs_it
def test_many_places_that_are_none_take_no_longer() -> None:
    """More of them than are looked at one by one."""
    data = b'"created_' * 2000
    assert not alike_suspicious(data, 0, len(data))
    assert alike_suspicious(data + b'"password"', 0, len(data) + 10)


WITHOUT = """
import sys
sys.modules["otel_agent_replay.recording._compiled"] = None
import pytest
from otel_agent_replay.recording.compiled import PART
assert PART is None
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-n", "0", *sys.argv[1:]]))
"""


def test_what_it_does_is_done_without_it(request) -> None:
    """The tests of what uses it, in an interpreter that cannot import it."""
    folder = request.path.parent
    files = [str(folder / f"test_{name}.py") for name in ("contents", "frames", "payload")]
    command = [sys.executable, "-c", WITHOUT, *files]
    done = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
