"""Masking: credentials, and what else a user names, become tokens before anything is written.

Equal values become equal tokens, under a key that stays where the recording was made, so a recording tells which
values were equal and nothing else of them. `variables` says how tokens look and how a replay compares them.
"""

from __future__ import annotations

import hmac
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from otel_agent_replay.recording.exact import dumps, loads
from otel_agent_replay.recording.mask_bodies import Bodies, put, put_in_pieces
from otel_agent_replay.recording.mask_find import Finder, Span, replaced
from otel_agent_replay.recording.mask_rules import is_header, plain_name
from otel_agent_replay.recording.values import Attempt, WireHead, WireRequest
from otel_agent_replay.recording.variables import ANYTHING, HEX, token

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_agent_replay.recording.mask_rules import Rules
    from otel_agent_replay.recording.values import Headers, Json, RunRecord

T = TypeVar("T")

MOST_KNOWN = 2000
"""Headers, URLs and values that are remembered."""

SHORT = 200
"""Characters of texts that are remembered."""

RECALLED = 6
"""Characters of a masked value that is looked for in how a run ended; shorter ones may stand there by chance."""

_NUMBERS = frozenset((int, float, bool))

FAULT = "fault"
"""Kind of a value that is masked whole because looking into it failed."""

UNREADABLE = "unreadable"
"""Kind of a body that is masked whole because its content coding cannot be undone here."""


class Masker:
    """Masks what one run writes. Never raises: what cannot be looked into is masked whole, and `note` is told.

    Not thread-safe where bodies are given a stream; everything else is.

    Attributes:
        said: what `note` was told; it names no value, and is not masked itself.
        found: kind by digest, of everything that was masked: what found a value first names it in all of a run.
    """

    def __init__(self, rules: Rules, key: bytes, note: Callable[[str], None] = lambda _: None) -> None:
        self.rules = rules
        self.found: dict[str, str] = {}
        self.note = note
        self.said: dict[str, None] = {}
        self._key = key
        self._tokens: dict[str, str] = {}
        self._headers: dict[tuple[str, str], tuple[str, str]] = {}
        self._urls: dict[str, str] = {}
        self._attributes: dict[tuple[str, str], str] = {}
        """What short texts of attributes become, by the attribute's name."""
        self._texts: dict[str, str] = {}
        """What short texts become; empty for those that stay."""
        self._finder = Finder(rules, self.token, self._hook_failed)
        self._bodies = Bodies(self._finder)

    def another(self) -> Masker:
        """The same rules and key, for another run."""
        return Masker(self.rules, self._key)

    def counts(self) -> dict[str, int]:
        """How many different values were masked, by kind, the most first."""
        return dict(Counter(self.found.values()).most_common())

    def token(self, value: str, kind: str) -> str:
        """The token of a value, the same each time; counted once."""
        known = self._tokens.get(value)
        if known is None:
            digest = hmac.digest(self._key, value.encode("utf-8", "surrogatepass"), "sha256").hex()[:HEX]
            kind = self.found.setdefault(digest, kind)
            known = token(kind, digest)
            if len(self._tokens) >= MOST_KNOWN:
                self._tokens.clear()
            self._tokens[value] = known
        return known

    # -- texts and values ----------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Any text: a message, a name, a log line; the same object where nothing is masked."""
        return self._remembered(text) if len(text) <= SHORT else self._shielded(text, self._text)

    def _remembered(self, text: str) -> str:
        """The same for a short text, of which many come again and again."""
        known = self._texts.get(text)
        if known is None:
            made = self._shielded(text, self._text)
            if len(self._texts) >= MOST_KNOWN:
                self._texts.clear()
            known = self._texts[text] = "" if made == text else made
        return known or text

    def value(self, value: Json) -> Json:
        """A value as the codec wrote it; the same object where nothing is masked."""
        return self._shielded(value, self._value)

    def attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Attributes of a span, each by its name and by what it holds; None where nothing is masked."""
        known = self._attributes
        changed: dict[str, Any] = {}
        for name, held in attributes.items():
            made = held
            if type(held) is str:
                made = known.get((name, held)) or self._new_attribute(name, held)
            elif type(held) is list:
                made = [
                    known.get((name, one)) or self._new_attribute(name, one)
                    if type(one) is str
                    else self.attribute(name, one)
                    for one in held
                ]
            elif self.rules.keys or type(held) not in _NUMBERS:
                made = self.attribute(name, held)
            if made is not held and made != held:
                changed[name] = made
        return {**attributes, **changed} if changed else None

    def _new_attribute(self, name: str, text: str) -> str:
        """A text that is not among those remembered."""
        made: str = text if self._is_plain(name, text) else self.attribute(name, text)
        if len(text) <= SHORT:
            if len(self._attributes) >= MOST_KNOWN:
                self._attributes.clear()
            self._attributes[name, text] = made
        return made

    def attribute(self, name: str, held: Any) -> Any:
        """One attribute, or the body of a log record; the same object where nothing is masked."""
        if isinstance(held, str):
            return (
                self._shielded(held, lambda text: self._named(name, text)) if self._is_named(name) else self.text(held)
            )
        if isinstance(held, bytes):
            return self.body(held)
        if isinstance(held, Mapping):
            return self.attributes(held) or held
        if isinstance(held, Sequence) and held:
            made = [self.attribute(name, one) for one in held]
            same = all(one is other for one, other in zip(made, held, strict=True))
            return held if same else type(held)(made) if isinstance(held, list | tuple) else tuple(made)
        if isinstance(held, int | float) and not isinstance(held, bool) and self.rules.keys:
            last = plain_name(name.rpartition(".")[2])
            return self.token(str(held), last) if last in self.rules.keys else held
        return held

    def argv(self, words: list[Json]) -> list[Json]:
        """The words of a command: an option whose name says so is a credential, as is what follows it."""
        made: list[Json] = []
        before = ""
        for word in words:
            if not isinstance(word, str):
                made.append(word)
                continue
            option, equals, held = word.partition("=") if word.startswith("-") else ("", "", word)
            name = plain_name((option or before).lstrip("-"))
            if (
                held
                and name
                and (equals or before)
                and (name in self.rules.keys or (self.rules.defaults and is_header(name)))
            ):
                made.append(f"{option}{equals}" + self._shielded(held, lambda text: self._by_name(text, name)))  # noqa: B023
            else:
                made.append(self.text(word))
            before = word if word.startswith("-") and not equals else ""
        return made

    def begun(self, run: RunRecord) -> None:
        """What a run begins with: its name, its entry and its world, in place."""
        run.name = self.text(run.name)
        run.entry, run.world = self._begun(run.entry), self._begun(run.world)

    def _begun(self, found: dict[str, Json]) -> dict[str, Json]:
        made = self.value({name: held for name, held in found.items() if name != "argv"})
        if not isinstance(made, dict):
            made = {"masked_whole": made}
        argv = found.get("argv")
        return {
            name: self.argv(argv) if isinstance(argv, list) and name == "argv" else made.get(name) for name in found
        }

    def ended(self, outcome: dict[str, Json]) -> dict[str, Json]:
        """How a run ended, with how many values were masked under `masked`.

        Where the text beside a digest holds something that is masked, the digest is masked too: whoever guesses the
        text could tell by it.
        """
        made = self.value({name: self._ended(held) for name, held in outcome.items()})
        if not isinstance(made, dict):
            made = {"masked_whole": made}
        counts = self.counts()
        return {**made, "masked": {**counts}} if counts else made

    def _ended(self, held: Json) -> Json:
        """A part of an outcome: what was masked before anywhere in the run is masked in it too."""
        if isinstance(held, list):
            return [self._ended(inner) for inner in held]
        if isinstance(held, str):
            return self._recalled(held)
        if not isinstance(held, dict):
            return held
        text, length = held.get("text"), held.get("length")
        if "digest" not in held or not isinstance(text, str) or not isinstance(length, int):
            return {name: self._ended(inner) for name, inner in held.items()}
        masked = self.text(self._recalled(text))
        if masked == text:
            return held
        whole = length <= len(text.encode("utf-8", "surrogatepass"))
        return {**held, "text": masked if whole else masked + ANYTHING, "digest": ANYTHING, "length": ANYTHING}

    def _recalled(self, text: str) -> str:
        """A text with the tokens of values that were masked before by their place, which it does not tell."""
        known = [value for value in self._tokens if len(value) >= RECALLED and value in text]
        if not known:
            return text
        pattern = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        return re.sub(pattern, lambda match: self._tokens.get(match[0], match[0]), text)

    def _text(self, text: str) -> str:
        if not self._worth(text):
            return text
        return replaced(text, self._finder.text(text))

    def _value(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._named("", value)
        if value is None or isinstance(value, int | float):
            return value
        text = dumps(value)
        if not self._worth(text):
            return value
        spans = self._finder.json(text)
        return loads(replaced(text, spans)) if spans else value

    def value_text(self, text: str) -> str:
        """The JSON of a value; the same object where nothing is masked."""
        return self._shielded(text, self._value_text)

    def _value_text(self, text: str) -> str:
        spans = self._finder.json(text) if self._worth(text) else []
        return replaced(text, spans) if spans else text

    def _named(self, name: str, text: str) -> str:
        if self._is_named(name):
            return self._by_name(text, plain_name(name.rpartition(".")[2]))
        return self._text(text)

    def _is_named(self, name: str) -> bool:
        """Whether what has this name is masked whatever it is."""
        last = name.rpartition(".")[2]
        return (self.rules.defaults and is_header(last)) or plain_name(last) in self.rules.keys

    def _is_plain(self, name: str, text: str) -> bool:
        """Whether nothing is masked in what has this name, as is soon seen of most."""
        return not self._worth(text) and not self._is_named(name)

    def _by_name(self, text: str, name: str) -> str:
        return replaced(text, self._finder.value(text, name))

    def _worth(self, text: str) -> bool:
        """Whether a text has to be looked at closely."""
        if self.rules.everywhere:
            return True
        data = b'"' + text.encode("utf-8", "surrogatepass")
        return self.rules.suspicious(data, 0, len(data))

    # -- HTTP ----------------------------------------------------------------------------------------------

    def request(self, request: WireRequest, stream: str) -> WireRequest:
        """A request; the same object where nothing is masked."""
        url = self.url(request.url)
        headers = self.headers(request.headers)
        body = request.body
        if body:
            coding = _coding(headers)
            if coding not in ("", "identity"):
                body = self._coded(body, coding)
                if body is not request.body:
                    headers = [pair for pair in headers if pair[0].lower() != "content-encoding"]
            else:
                body = self.body(body, stream)
        if url is request.url and headers is request.headers and body is request.body:
            return request
        return WireRequest(request.method, url, headers, body)

    def response(self, attempt: Attempt) -> Attempt:
        """An attempt with its response, and the error that ended it, masked; the same object where nothing is."""
        head, chunks, error = attempt.head, attempt.chunks, attempt.error
        if head is not None:
            headers = self.headers(head.headers)
            if headers is not head.headers:
                head = WireHead(head.status, head.reason, headers, head.http_version)
        if chunks:
            chunks = self.chunks(chunks)
        if error is not None:
            error = self.value(error)
        if head is attempt.head and chunks is attempt.chunks and error is attempt.error:
            return attempt
        made = Attempt(attempt.request, head, chunks, attempt.offsets, attempt.end, error)
        made.seqs, made.signal = attempt.seqs, attempt.signal
        return made

    def headers(self, headers: Headers) -> Headers:
        """Headers, credentials by name masked but for their scheme, cookies but for their names."""
        known = self._headers
        made = list(map(known.get, headers))
        if None in made:
            if len(known) + len(headers) > MOST_KNOWN:
                known.clear()
            for place, pair in enumerate(headers):
                if made[place] is None:
                    made[place] = known[pair] = self._header(pair)
        return headers if made == headers else cast("Headers", made)

    def _header(self, pair: tuple[str, str]) -> tuple[str, str]:
        if self._is_plain(*pair):
            return pair
        made = self._shielded(pair[1], lambda text: self._named(pair[0], text))
        return pair if made is pair[1] else (pair[0], made)

    def url(self, url: str) -> str:
        """A URL; passwords, credentials by name and by shape are masked."""
        known = self._urls.get(url)
        if known is None:
            known = self._shielded(url, lambda text: replaced(text, self._finder.url(text)))
            if len(self._urls) >= MOST_KNOWN:
                self._urls.clear()
            self._urls[url] = known
        return url if known == url else known

    def chunks(self, chunks: list[bytes]) -> list[bytes]:
        """A body in pieces, looked at joined; each piece keeps its place, and what was masked stands in the first."""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        spans = self._all_of_it(data, self._bodies.spans)
        return put_in_pieces(data, chunks, spans) if spans else chunks

    def body(self, body: bytes, stream: str = "") -> bytes:
        """A body; the same object where nothing is masked.

        `stream` names the conversation that it belongs to: of what its last body held too, nothing is looked at again.
        """
        bodies = self._bodies
        spans = self._all_of_it(body, bodies.spans_after, stream) if stream else self._all_of_it(body, bodies.spans)
        return put(body, spans) if spans else body

    def _coded(self, body: bytes, coding: str) -> bytes:
        """A body whose content coding is undone where that shows something to be masked; else as it is."""
        if coding not in ("gzip", "x-gzip", "deflate"):
            self._tell(f"a request body is {coding}, which is not looked into, so it is masked whole")
            return self.token(body.decode("latin-1"), UNREADABLE).encode()
        try:
            plain = zlib.decompress(body, zlib.MAX_WBITS | 32)
        except zlib.error:
            return self.body(body)
        made = self.body(plain)
        return body if made is plain else made

    # -- faults --------------------------------------------------------------------------------------------

    def _shielded(self, value: T, look: Callable[[T], T]) -> T:
        """What `look` gives of a text or a value; a token for all of it where that fails."""
        try:
            return look(value)
        except Exception as error:  # noqa: BLE001 (what cannot be looked into is not written)
            self._fault(error)
            whole = value if isinstance(value, str) else repr(value)
            return cast("T", self.token(whole, FAULT))

    def _all_of_it(self, body: bytes, look: Callable[..., list[Span]], *more: str) -> list[Span]:
        """What `look` finds in a body; all of it where that fails."""
        try:
            return look(body, *more)
        except Exception as error:  # noqa: BLE001 (what cannot be looked into is not written)
            self._fault(error)
            return [Span(0, len(body), self.token(body.decode("latin-1"), FAULT))]

    def _fault(self, error: Exception) -> None:
        self._tell(f"a value could not be looked into and was masked whole ({type(error).__name__})")

    def _tell(self, what: str) -> None:
        if what not in self.said:
            self.said[what] = None
            self.note(what)

    def _hook_failed(self, error: Exception) -> None:
        self._tell(f"the masking hook raised {type(error).__name__}, so a text was masked whole")


def _coding(headers: Headers) -> str:
    """The content coding that headers name, in lower case."""
    for name, value in headers:
        if len(name) == len("content-encoding") and name.lower() == "content-encoding":
            return value.strip().lower()
    return ""
