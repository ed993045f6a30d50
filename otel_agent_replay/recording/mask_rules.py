"""What is a credential: names that hold one, and shapes that are one. And what a user adds to that.

The shapes are the public ones: OpenAI, Anthropic and Google keys as their documentation shows them; AWS access key
ids as in "IAM identifiers" of the IAM User Guide; GitHub tokens as in "About authentication to GitHub"; GitLab,
Slack, Stripe, Hugging Face, npm and SendGrid tokens as in the rules of gitleaks and of GitHub secret scanning; JSON
Web Tokens as in RFC 7519; PEM as in RFC 7468; `Bearer` as in RFC 6750; user information of URLs as in RFC 3986.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

from otel_agent_replay.recording.compiled import PART

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Hook: TypeAlias = "Callable[[str], Iterable[str]]"
"""Given a text, names the parts of it that are to be masked."""

Path: TypeAlias = "tuple[str | int | None, ...]"
"""Steps of a JSON path: a name, an index, None for any one step, and `DEEP` for any number of steps."""

DEEP = "\0.."

SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.ASCII))
    for kind, pattern in (
        (
            "private-key",
            r"-----BEGIN (?P<of>[A-Z0-9 ]{0,40})PRIVATE KEY(?P<block> BLOCK)?-----"
            r"(?:[\s\S]{0,40000}?-----END (?P=of)PRIVATE KEY(?: BLOCK)?-----|(?:[A-Za-z0-9+/=:, \r\n\t-]|\\[nrt])*)",
        ),
        ("jwt", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*(?:\.[\w-]+){0,2}"),
        ("anthropic-key", r"(?<![A-Za-z0-9])sk-ant-[\w-]{12,}"),
        ("openai-key", r"(?<![A-Za-z0-9])sk-(?:(?=[A-Za-z_-]*[0-9])[\w-]{16,}|[\w-]{20,})"),
        ("aws-key", r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"),
        ("google-key", r"(?<![\w-])AIza[\w-]{35}"),
        ("github-token", r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,})"),
        ("gitlab-token", r"(?<![A-Za-z0-9])glpat-[\w-]{20,}"),
        ("slack-token", r"(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{10,}"),
        ("stripe-key", r"(?<![A-Za-z0-9])[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"),
        ("huggingface-token", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}"),
        ("groq-key", r"(?<![A-Za-z0-9])gsk_[A-Za-z0-9]{40,}"),
        ("npm-token", r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}"),
        ("sendgrid-key", r"(?<![\w-])SG\.[\w-]{20,24}\.[\w-]{40,46}"),
        (
            "bearer",
            r"\b[Bb](?:earer|EARER)\s+(?P<secret>(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{8,}|[A-Za-z._~+/=-]{24,})",
        ),
        (
            "url-password",
            r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{0,30}:(?:\\?/){2}[^\s/?#@:\"'<>\\]{0,200}:"
            r"(?P<secret>[^\s/?#\"'<>]{1,400})@",
        ),
        (
            "query",
            r"[?&](?:[\w.-]{0,40}[-_])?(?:(?i:api-?key|key|access_?key|token|sig|signature|secret|password|passwd|auth"
            r"|credential))=(?P<secret>[^&#\s\"'<>\\]+)",
        ),
        (
            "query",
            r"\A(?:[\w.-]{0,40}[-_])?(?:(?i:api[-_]?key|access[-_]?key|(?:access|refresh|id|auth|session)[-_]token"
            r"|secret|password|passwd))=(?P<secret>[^&#\s\"'<>\\]+)(?=&|\Z)",
        ),
        (
            "environment",
            r"(?m:^)[ \t]*(?:export[ \t]+)?[A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|_PASS|_PWD|_PAT|API_?KEY|_KEY|SECRET"
            r"|TOKEN)=(?P<quote>[\"']?)(?P<secret>[^\s\"'#()\[\]{}$<>=][^\s\"'#()\[\]{}$<>]{5,})(?P=quote)[ \t]*(?m:$)",
        ),
    )
)
"""Kind and pattern; the group `secret` is what is masked, else all of it. Earlier ones name what later ones find."""

_HEADER = re.compile(
    r"(?:.*-)?(?:authorization|cookie2?|(?:api|access|auth|subscription|functions|secret|private|app)-?(?:key|token)"
    r"|token|secret|passwo?r?d|signature)"
)
"""Names of headers whose whole value is a credential, in lower case."""

HEADER_NAMES = frozenset(
    "authorization proxy-authorization cookie set-cookie api-key apikey x-api-key x-apikey x-goog-api-key "  # noqa: SIM905
    "x-amz-security-token x-auth-token".split()
)
"""Of these, the ones that are looked for wherever a name stands beside a value."""

_WORDS = (
    "password passwd passphrase client-secret access-token refresh-token id-token session-token auth-token "
    "private-key secret-key secret-access-key aws-secret-access-key aws-session-token openai-api-key anthropic-api-key"
)

KEY_NAMES = HEADER_NAMES | frozenset(_WORDS.split()) | frozenset(_WORDS.replace("-", "").split())
"""Keys of JSON objects whose texts are credentials; `_` counts as `-`, capitals and a leading ``HTTP_`` do not
count, so that `clientSecret` is one as well."""


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """A name as it is compared: `API_Key` and `http_api_key` as `api-key`."""
    return name.lower().replace("_", "-").removeprefix("http-")


@lru_cache(maxsize=4096)
def is_header(name: str) -> bool:
    """Whether a header of this name holds a credential."""
    return _HEADER.fullmatch(plain_name(name)) is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """What is masked."""

    defaults: bool = True
    keys: frozenset[str] = frozenset()
    """Keys of JSON objects, as `plain_name` gives them, whose values are masked, whatever they hold."""
    paths: tuple[Path, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    hook: Hook | None = None
    named: re.Pattern[bytes] | None = field(init=False)
    """Finds text that may hold one of `keys`."""
    everywhere: bool = field(init=False)
    """Whether every text has to be looked at, as nothing tells beforehand where there is something."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(map(plain_name, self.keys)))
        object.__setattr__(self, "named", _any_of(self.keys) if self.keys else None)
        object.__setattr__(self, "everywhere", bool(self.paths or self.patterns or self.hook))

    @property
    def active(self) -> bool:
        """Whether anything is masked at all."""
        return self.defaults or self.everywhere or bool(self.keys)

    def suspicious(self, data: bytes, start: int, end: int) -> bool:
        """Whether something that is masked by shape or name may stand between two offsets."""
        if self.defaults and suspicious(data, start, end):
            return True
        return self.named is not None and self.named.search(data, start, end) is not None


def _any_of(keys: Iterable[str]) -> re.Pattern[bytes]:
    forms = "|".join(re.escape(key).replace(r"\-", "[-_]") for key in sorted(keys))
    return re.compile(rf'"(?i:http[-_])?(?i:{forms})\\*"'.encode())


def parse_path(text: str) -> Path:
    """The steps of ``$.user.email``, ``$.items[0]``, ``$['a b']``, ``$.items[*].ssn`` or ``$..ssn``.

    Raises ValueError where it is none of that.
    """
    if not text.startswith("$") or len(text) < 2:
        raise ValueError("a path begins with $ and has a step")
    steps: list[str | int | None] = []
    at = 1
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"{text[at:]!r} is no step")
        at = match.end()
        deep, name, quoted, index = match["deep"], match["name"], match["quoted"], match["index"]
        if deep:
            steps.append(DEEP)
        found = name or (quoted[1:-1] if quoted else None)
        steps.append(int(index) if index else None if found in ("*", None) else found)
    return tuple(steps)


_STEP = re.compile(
    r"(?P<deep>\.\.)?(?:(?(deep)|\.)(?P<name>[^.\[\]'\"\s]+)|\[(?:(?P<index>\d+)|(?P<quoted>'[^']*'|\"[^\"]*\")|\*)\])"
)


def fits(path: Path, place: tuple[str | int, ...]) -> bool:
    """Whether a place in a document is the one that a path names, or lies in it."""
    reached = {0}
    for step in place:
        following: set[int] = set()
        for at in reached:
            if at == len(path):
                return True
            wanted = path[at]
            if wanted == DEEP:
                following.add(at)
                wanted, at = path[at + 1], at + 1
            if wanted is None or (wanted == step and type(wanted) is type(step)):
                following.add(at + 1)
        reached = following
    return len(path) in reached


# -- what is looked at closely ---------------------------------------------------------------------------

_FEW = 60
"""So many places are looked at one by one; where there are more, the rest is searched in one go …"""

_SHORT = 8192
"""… as is a stretch of no more bytes than this."""

_ANCHORED: tuple[tuple[bytes, re.Pattern[bytes]], ...] = tuple(
    (anchor, re.compile(pattern, re.DOTALL))
    for anchor, pattern in (
        (b"-", rb"-(?:(?<=sk-)[\w-]{12}|(?<=xox[a-z]-)\w|(?<=glpat-)\w|----BEGIN [A-Z0-9 ]{0,40}PRIVATE)"),
        (b"_", rb"_(?:[A-Za-z0-9]{16}(?:(?<=gh[pousr]_.{16})|(?<=github_pat_.{16})|(?<=hf_.{16})|(?<=gsk_.{16})"
               rb"|(?<=npm_.{16}))|(?:live|test)_(?<=[sr]k_.{5}))"),
        (b"A", rb"A(?:(?:KIA|SIA)[A-Z0-9]{16}|Iza[\w-]{35})"),
        (b"J", rb"J(?<=eyJ)[\w-]{8,}\.[\w-]{8}"),
        (b"G", rb"G(?<=SG)\.[\w-]{20}"),
        (b"B", rb"B(?:earer|EARER)\s"),
        (b"=", rb"=(?:(?<=WORD=)|(?<=SSWD=)|(?<=RASE=)|(?<=_PASS=)|(?<=_PWD=)|(?<=_PAT=)|(?<=KEY=)|(?<=CRET=)"
               rb"|(?<=OKEN=))"),
        (b'"', rb'"[AaPpCcXxRrIiHhSsOoQq][UuPpCcNnWwRrAaOoLlEeDdTt_-][TtIiCcSsOoAaGgFfEe_-]'
               rb'(?i:horization|(?:xy|p)[-_](?:authorization|cookie|api|x)|[-_]?key|[-_]?api[-_]?key|h[-_]?token|[-_]cookie|kie'
               rb'|pi[-_]?key|oog[-_]api|mz[-_]sec|uth[-_]token|s(?:word|wd|phrase)|ent[-_]?secret|ess[-_]?token|resh[-_]?token'
               rb'|t?oken|sion[-_]?token|vate[-_]?key|ret[-_]?(?:key|access)|[-_]?se(?:cret|ssion)|nai[-_]?api|hropic[-_]?api'
               rb'|ry[-_]string)'),
        (b"\\", rb"\\u00[2-7]"),
        (b"$", rb'\$\\*"\s*:\s*\\*"(?:bytes|bytearray|str)\\*"\s*,\s*\\*"v\\*"'),
    )
)  # fmt: skip
"""What may be found by default: for each pattern the rare byte that it begins with, which is looked for first."""

_QUERY = re.compile(
    rb"[?&](?:[\w.-]{0,40}[-_])?(?:(?i:api-?key|key|access_?key|token|sig|signature|secret|password|passwd|auth"
    rb"|credential))="
)
_USERINFO = re.compile(rb":\\?/\\?/[^\s/?#@:\"'<>\\]*:[^\s/?#\"'<>]+@")


_ONE_BY_ONE = (*_ANCHORED, (b"?", _QUERY), (b"&", _QUERY))
_BEARER = b"bearer "
_FEW_WORDS = 256
_ALL = re.compile(
    b"|".join((*(pattern.pattern for _, pattern in _ANCHORED), _USERINFO.pattern, _QUERY.pattern, _BEARER)), re.DOTALL
)
"""All of it in one pattern, which takes less time only in texts of up to so many bytes."""


_PATTERNS = tuple((anchor[0], pattern.match, pattern.search) for anchor, pattern in (*_ONE_BY_ONE, (b":", _USERINFO)))


def interpreted(data: bytes, start: int, end: int) -> bool:
    """`suspicious`, without the compiled part."""
    if end - start <= _FEW_WORDS:
        return _ALL.search(data, start, end) is not None
    find = data.find
    for anchor, pattern in _ONE_BY_ONE:
        at = find(anchor, start, end)
        if at >= 0 and _anchored(data, anchor, pattern, at, end):
            return True
    if (
        find(b"@", start, end) >= 0
        and (at := find(b":", start, end)) >= 0
        and _anchored(data, b":", _USERINFO, at, end)
    ):
        return True
    return find(_BEARER, start, end) >= 0


def _anchored(data: bytes, anchor: bytes, pattern: re.Pattern[bytes], at: int, end: int) -> bool:
    """Whether the pattern is found from `at` on, where its first byte stands."""
    find, match = data.find, pattern.match
    for _ in range(_FEW if end - at > _SHORT else 0):
        if match(data, at, end):
            return True
        at = find(anchor, at + 1, end)
        if at < 0:
            return False
    return pattern.search(data, at, end) is not None


suspicious: Callable[[bytes, int, int], bool] = (
    interpreted if PART is None else partial(PART.suspicious, _PATTERNS, _BEARER)
)
"""Whether something that is masked by default may stand between two offsets."""
