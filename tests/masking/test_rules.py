"""What is masked by default, what is not, and what a user adds."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode

import pytest

from otel_agent_replay.recording import codec
from otel_agent_replay.recording.mask_rules import KEY_NAMES, Rules, fits, parse_path
from otel_agent_replay.recording.masking import Masker
from otel_agent_replay.recording.values import Attempt, WireHead, WireRequest
from otel_agent_replay.recording.variables import TOKEN

KEY = b"k" * 32
D = "abcDEF0123456789abcDEF0123456789abcDEF01234567"


def masker(**rules) -> Masker:
    return Masker(Rules(**rules), KEY, note=lambda what: pytest.fail(what))


SHAPES = {
    "openai-key": ["sk-" + D, "sk-proj-" + D, "sk-svcacct-ab_cd-" + D],
    "anthropic-key": ["sk-ant-api03-" + D],
    "aws-key": ["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"],
    "google-key": ["AIza" + D[:35]],
    "github-token": ["ghp_" + D[:36], "gho_" + D[:36], "ghs_" + D[:36], "github_pat_" + D[:22] + "_" + D],
    "gitlab-token": ["glpat-" + D[:20]],
    "slack-token": ["xoxb-1234567890-abcdefgh", "xoxp-1234567890-abcdefgh"],
    "stripe-key": ["sk_live_" + D[:24], "rk_test_" + D[:24]],
    "huggingface-token": ["hf_" + "a1B" * 12],
    "groq-key": ["gsk_" + "a1B2" * 13],
    "npm-token": ["npm_" + "a1B2" * 9],
    "sendgrid-key": ["SG." + D[:22] + "." + D[:43]],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"],
    "private-key": [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabc+/=\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg",
    ],
}
PLACES = {
    "alone": "{}",
    "in a sentence": "Use {} for it.",
    "in quotes": "it's '{}'",
    "after a sign": "KEY={}",
    "in JSON": '{{"a": ["x", "{}"]}}',
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in SHAPES.items() for value in values])
def test_shapes_are_found_wherever_they_stand(kind: str, value: str, place: str) -> None:
    text = PLACES[place].format(json.dumps(value)[1:-1] if place == "in JSON" else value)
    found = masker()
    made = found.text(text)
    assert value not in made
    assert made.startswith(PLACES[place].format("\0").partition("\0")[0])
    assert found.counts() == {kind: 1}
    assert found.body(text.encode()) == made.encode()
    assert found.text(made) == made  # a token is nothing that is masked again
    assert found.body(made.encode()) == made.encode()


@pytest.mark.parametrize(
    "text",
    [
        "a task-oriented agent, disk-based, with sk-learn",
        "sk-short",
        "the bearer of this letter; Bearer authentication is needed",
        "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----",
        "https://example.test/path?page=2&sort=key",
        "mail me@example.test at 12:30, or see http://example.test:8080/@me",
        "AKIA is a prefix; eyJ too",
        '{"token": "Hel", "logprob": -0.1, "key": "value", "max_tokens": 5}',
        '{"required": ["user", "password", "remember"], "properties": {"password": {"type": "string"}}}',
        '{"tokens": [1, 2], "cookies": "yes", "keyboard": "us"}',
        "call_abcDEF0123456789abcDEF01 toolu_01abcDEF0123456789abcDEF",
        "x_of_sixteen_or_more_letters = snake_case_name_is_long",
    ],
)
def test_what_only_looks_alike_stays(text: str) -> None:
    assert masker().text(text) == text
    body = text.encode()
    assert masker().body(body) is body


NAMED = [
    ("https://me:{}@example.test/x", "pass@word1"),
    ("postgres://me:{}@db/x and more", "hunter2"),
    ("https://example.test/a?page=1&api_key={}&x=2", "hunter2"),
    ("https://example.test/a?X-Amz-Signature={}", "0123abcd"),
    ("curl -H 'Authorization: Bearer {}'", "opaque-token-1"),
    ('{{"password": "{}"}}', "hunter2"),
    ('{{"a": {{"client_secret": "{}", "b": 1}}}}', "hunter2"),
    ('{{"Authorization": "Basic {}"}}', "bWU6aHVudGVyMg=="),
    ('[["x-api-key", "{}"], ["x", "y"]]', "hunter2"),
    ('{{"cookie": "sid={}; theme=dark"}}', "hunter2"),
    ('{{"arguments": "{{\\"password\\": \\"{}\\"}}"}}', "hunter2"),
    ('{{"access_token" : "{}"}}', "opaque"),
]


@pytest.mark.parametrize(("text", "value"), NAMED)
def test_names_make_a_credential(text: str, value: str) -> None:
    made = masker().text(text.format(value))
    assert value not in made
    pattern = re.escape(text.replace("{{", "{").replace("}}", "}")).replace(
        re.escape("{}"), TOKEN.pattern.partition("|")[0]
    )
    assert re.fullmatch(pattern.replace("dark", r"\S+"), made)


CAMEL = [
    "clientSecret",
    "refreshToken",
    "idToken",
    "sessionToken",
    "SessionToken",
    "authToken",
    "privateKey",
    "secretKey",
    "SecretAccessKey",
]


@pytest.mark.parametrize("name", sorted({*KEY_NAMES, *(name.replace("-", "_").upper() for name in KEY_NAMES), *CAMEL}))
def test_every_key_that_names_a_credential_does(name: str) -> None:
    for text in (f'{{"{name}": "hunter2"}}', f'{{"{"a" * 300}": [{{"{name}":"hunter2"}}]}}'):
        assert "hunter2" not in masker().text(text), text
        assert b"hunter2" not in masker().body(text.encode())


def test_headers_keep_what_is_no_credential() -> None:
    given = [
        ("Authorization", "Bearer opaque"),
        ("Proxy-Authorization", "hunter2"),
        ("Cookie", "a=1; b=2"),
        ("Set-Cookie", "a=1; Path=/; HttpOnly"),
        ("X-Vault-Token", "s.abc"),
        ("x-ratelimit-remaining-tokens", "100"),
        ("content-type", "application/json"),
        ("x-note", "sk-proj-" + D),
    ]
    found = masker()
    made = dict(found.headers(given))
    token = r"masked\.[a-z-]+\.[0-9a-f]{20}"
    wanted = {
        "Authorization": f"Bearer {token}", "Proxy-Authorization": token, "Cookie": f"a={token}; b={token}",
        "Set-Cookie": f"a={token}; Path=/; HttpOnly", "X-Vault-Token": token, "x-ratelimit-remaining-tokens": "100",
        "content-type": "application/json", "x-note": token,
    }  # fmt: skip
    assert made.keys() == wanted.keys()
    assert [name for name, pattern in wanted.items() if not re.fullmatch(pattern, made[name])] == []
    assert made["Cookie"].split("; ")[0] == made["Set-Cookie"].split("; ")[0]
    plain = [("accept", "*/*")]
    assert found.headers(plain) is plain


def test_equal_values_have_equal_tokens_and_keys_change_them() -> None:
    text = f"sk-proj-{D} and again sk-proj-{D}, not sk-proj-{D}x"
    first = TOKEN.findall(masker().text(text))
    assert first[0] == first[1] != first[2]
    assert TOKEN.findall(masker().text(text)) == first
    assert set(TOKEN.findall(Masker(Rules(), b"another key").text(text))).isdisjoint(first)


def test_bytes_around_what_is_masked_stay() -> None:
    secret = "sk-proj-" + D
    body = b'{ "a":\t1.0,"b" : "\\u00e9\xc3\xa9 %s \\/ \\ud83d\\ude00", "c":[ ] }\n' % secret.encode()
    made = masker().body(body)
    assert re.fullmatch(
        re.escape(body).replace(secret.replace("-", "\\-").encode(), b"masked.openai-key.[0-9a-f]{20}"), made
    )


def test_escapes_and_levels_are_seen_through() -> None:
    secret = "sk-proj-" + D
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in secret)
    deep: object = {"k": f"é {secret}"}
    for _ in range(4):
        deep = {"inner": json.dumps(deep)}
    for body in (f'{{"a": "{escaped}"}}', json.dumps(deep), json.dumps([json.dumps(f'{{"a": "{escaped}"}}')])):
        made = list(leaves(json.loads(masker().body(body.encode()))))
        assert secret not in "".join(made)
        assert TOKEN.search(made[-1])


def leaves(value: object) -> list[str]:
    """The texts of a document, and of the documents that are texts in it."""
    if isinstance(value, dict | list):
        return [text for held in (value.values() if isinstance(value, dict) else value) for text in leaves(held)]
    return leaves(json.loads(value)) if str(value)[:1] in ("{", "[") else [str(value)]


def test_coded_and_binary_bodies() -> None:
    secret = "sk-proj-" + D
    found = masker()
    plain = json.dumps({"a": secret}).encode()
    headers = [("Content-Encoding", "gzip")]
    request = found.request(WireRequest("POST", "http://x/", headers, gzip.compress(plain)), "s")
    assert request.body == found.body(plain)
    assert request.headers == []
    clean = WireRequest("POST", "http://x/", headers, gzip.compress(b"{}"))
    assert found.request(clean, "s") is clean
    parts = b"--x\r\n\r\n\xff\xfe%s\x00\r\n--x--" % secret.encode()
    made = found.body(parts)
    assert secret.encode() not in made
    assert made.startswith(b"--x\r\n\r\n\xff\xfe")
    value = codec.encode({"a": b"\xff" + secret.encode(), "b": "\udc00" + secret}, strict=False)
    masked = codec.decode(found.value(value))
    assert masked["a"][:1] == b"\xff"
    assert TOKEN.fullmatch(masked["a"][1:].decode())
    assert TOKEN.fullmatch(masked["b"][1:])


def test_a_coding_that_is_not_known_is_masked_whole() -> None:
    noted: list[str] = []
    found = Masker(Rules(), KEY, noted.append)
    request = found.request(WireRequest("POST", "http://x/", [("content-encoding", "br")], b"\x0b\x02"), "s")
    assert TOKEN.fullmatch(request.body.decode())
    assert len(noted) == 1


def event(**delta: object) -> str:
    return f"data: {json.dumps({'choices': [{'delta': delta, 'index': 0}]})}\n\n"


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("piece", [1, 3, 50])
def test_a_stream_is_masked_on_what_it_says_joined(size: int, piece: int) -> None:
    secret = "sk-proj-" + D
    said = f'so: {secret}. "é"'
    arguments = json.dumps({"cmd": f"echo {secret}", "password": "hunter2"})
    lines = [event(content=said[at : at + piece]) for at in range(0, len(said), piece)]
    lines += [
        event(tool_calls=[{"index": 0, "function": {"arguments": arguments[at : at + piece]}}])
        for at in range(0, len(arguments), piece)
    ]
    chunks = cut("".join(lines).encode(), size)
    made = masker().chunks(chunks)
    assert len(made) == len(chunks)
    events = [json.loads(line[6:]) for line in b"".join(made).decode().split("\n\n") if line]
    assert len(events) == len(lines)
    deltas = [event["choices"][0]["delta"] for event in events]
    text = "".join(delta.get("content", "") for delta in deltas)
    called = "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta)
    (token,) = {match[0] for match in TOKEN.finditer(text)}
    assert text == said.replace(secret, token)
    assert json.loads(called)["cmd"] == f"echo {token}"
    assert TOKEN.fullmatch(json.loads(called)["password"])


def test_texts_told_in_turn_are_kept_apart() -> None:
    secrets = ["sk-proj-" + D, "sk-proj-" + D[::-1]]
    lines = []
    for at in range(0, 60, 4):
        for index, secret in enumerate(secrets):
            choice = {"delta": {"content": secret[at : at + 4]}, "index": index}
            lines.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
    made = b"".join(masker().chunks(["".join(lines).encode()]))
    said = ["", ""]
    for line in made.decode().split("\n\n")[:-1]:
        choice = json.loads(line[6:])["choices"][0]
        said[choice["index"]] += choice["delta"]["content"]
    assert all(TOKEN.fullmatch(text) for text in said)
    assert said[0] != said[1]


@pytest.mark.parametrize("before", ["", "data: "])
def test_streams_of_lines(before: str) -> None:
    secret = "sk-proj-" + D
    pieces = [secret[at : at + 5] for at in range(0, len(secret), 5)]
    lines = "".join(f"{before}{json.dumps({'message': {'content': piece}, 'done': False})}\n" for piece in pieces)
    made = b"".join(masker().chunks([lines.encode()])).decode()
    said = "".join(json.loads(line.removeprefix(before))["message"]["content"] for line in made.splitlines())
    assert TOKEN.fullmatch(said)
    raw = "".join(f"data: {piece}\n\n" for piece in pieces)
    made = b"".join(masker().chunks([raw.encode()])).decode()
    assert TOKEN.fullmatch(made.replace("data: ", "").replace("\n", ""))


def test_a_growing_chat_is_masked_as_a_whole_body_is() -> None:
    found, whole = masker(), masker()
    messages = [{"role": "system", "content": "s" * 3000}]
    for turn in range(20):
        secret = f"sk-proj-{turn:04}{D}"
        text = f"é {secret} " if turn % 3 == 0 else f"turn {turn} "
        messages.append({"role": "user", "content": text + "x" * 400, "password": f"p{turn}"})
        if turn == 12:
            del messages[5]
        if turn == 15:
            messages[7]["content"] = f"other {secret}"
        body = json.dumps({"messages": messages, "model": "m", "tools": [{"a": 1}, {"b": f"AKIA{turn:016}"}]}).encode()
        assert found.body(body, "stream") == whole.body(body)


def test_what_a_user_names() -> None:
    found = masker(
        keys=frozenset({"SSN", "home-address"}),
        paths=(parse_path("$..email"), parse_path("$.items[0].id"), parse_path("$['a b'][*].c")),
        patterns=(re.compile(r"\b\d{3}-\d{2}-\d{4}\b"), re.compile(r"pin=(?P<secret>\d+)")),
        hook=lambda text: [word for word in text.split() if word.startswith("zz")],
    )
    body = {
        "ssn": 123, "Home_Address": {"street": "x", "n": [1, True, None]}, "user": {"email": "a@b.test"},
        "items": [{"id": "one"}, {"id": "two"}], "a b": [{"c": "y", "d": "z"}], "text": "call 123-45-6789 pin=42 zzfoo",
    }  # fmt: skip
    made = json.loads(found.body(json.dumps(body).encode()))

    def masked(value: object) -> bool:
        return isinstance(value, str) and TOKEN.fullmatch(value) is not None

    assert masked(made["ssn"]) and masked(made["Home_Address"]["street"]) and masked(made["Home_Address"]["n"][0])
    assert made["Home_Address"]["n"][1:] == [True, None]
    assert masked(made["user"]["email"]) and masked(made["items"][0]["id"]) and masked(made["a b"][0]["c"])
    assert (made["items"][1]["id"], made["a b"][0]["d"]) == ("two", "z")
    assert re.fullmatch(
        rf"call {TOKEN.pattern} pin={TOKEN.pattern} {TOKEN.pattern}".replace("|<masked>", ""), made["text"]
    )
    assert masked(found.attributes({"user.ssn": 5, "n": 5})["user.ssn"])
    assert found.argv(["x", "--ssn", "1", "--ssn=2", "3"])[-1] == "3"
    assert "a@b" in found.text("a@b")
    assert dict(found.headers([("ssn", "123")])) != {"ssn": "123"}
    assert "ssn=123" not in found.url("http://x/?ssn=123&b=1")


def test_a_value_of_several_parts_is_masked_as_one() -> None:
    from decimal import Decimal

    value = codec.encode({"salary": Decimal("12.50"), 5: "x"})
    made = codec.decode(masker(keys=frozenset({"salary"})).value(value))
    assert TOKEN.fullmatch(made["salary"])
    assert made[5] == "x"


def test_defaults_can_be_off() -> None:
    found = masker(defaults=False, keys=frozenset({"ssn"}))
    text = json.dumps({"a": "sk-proj-" + D, "password": "hunter2", "ssn": "1"}).encode()
    made = json.loads(found.body(text))
    assert (made["a"], made["password"]) == ("sk-proj-" + D, "hunter2")
    assert found.headers([("Authorization", "Bearer x")]) == [("Authorization", "Bearer x")]
    assert not Rules(defaults=False).active


@pytest.mark.parametrize("hook", [lambda text: 1 / 0, lambda text: [5], lambda text: 7])
def test_a_hook_that_fails_masks_the_text_whole(hook) -> None:
    noted: list[str] = []
    found = Masker(Rules(hook=hook), KEY, noted.append)
    made = json.loads(found.body(b'{"a": "some text"}'))
    assert all(TOKEN.fullmatch(text) for text in (*made, *made.values()))
    assert "hook raised" in noted[0]


def test_what_fails_in_masking_itself_is_masked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    found = Masker(Rules(), KEY, noted.append)
    monkeypatch.setattr(found._finder, "text", lambda *_: 1 / 0)
    monkeypatch.setattr(found._finder, "json", lambda *_: 1 / 0)
    secret = "sk-proj-" + D
    assert TOKEN.fullmatch(found.text(secret + "x" * 300))
    assert TOKEN.fullmatch(found.body(secret.encode()).decode())
    chunks = found.chunks([secret.encode(), b"more"])
    assert TOKEN.fullmatch(chunks[0].decode()) and chunks[1] == b""
    assert TOKEN.fullmatch(found.value({"a": secret}))
    attempt = Attempt(WireRequest("GET", "http://x/", [], b""), WireHead(200, "", []), [secret.encode()])
    assert secret not in str(found.response(attempt))
    assert noted


@pytest.mark.parametrize(
    ("path", "place", "held"),
    [
        ("$.a", ("a",), True), ("$.a", ("a", "b", 0), True), ("$.a", ("b",), False), ("$.a.b", ("a",), False),
        ("$..b", ("a", 0, "b"), True), ("$..b", ("a", "c"), False), ("$.a[1]", ("a", 1), True),
        ("$.a[1]", ("a", 0), False), ("$.a[*].b", ("a", 7, "b"), True), ("$[*]", (3,), True), ("$.*", ("x",), True),
        ("$['x.y']", ("x.y",), True), ('$["x"]', ("x",), True), ("$..[*]", ("x",), True),
    ],
)  # fmt: skip
def test_paths(path: str, place: tuple, held: bool) -> None:
    assert fits(parse_path(path), place) is held


@pytest.mark.parametrize("text", ["a", "$", "a.b", "$a", "$.", "$.a[", "$.a[x]", "$.a b", "$..", "$.a..", ""])
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_path(text)


def test_a_digest_beside_a_masked_text_is_masked_too() -> None:
    found = masker()
    kept = {"digest": "00", "length": 54, "text": "with sk-proj-" + D}
    ended = found.ended({"exit_status": 0, "stdout": kept, "declared": {"response": dict(kept)}})
    assert ended["stdout"]["digest"] == ended["declared"]["response"]["digest"] == "<masked>"
    assert ended["stdout"]["text"].endswith("<masked>") is (len(kept["text"]) < 54)
    assert ended["masked"] == {"openai-key": 1}
    plain = {"stdout": {"digest": "00", "length": 1, "text": "x"}}
    assert masker().ended(plain) == plain


def test_base64_of_anything_else_stays() -> None:
    value = {"$": "bytes", "v": b64encode(bytes(range(256))).decode()}
    assert masker().value(value) == value
