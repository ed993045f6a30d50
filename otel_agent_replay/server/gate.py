"""What a statement from outside may be.

The engine itself parses the statement and writes it down again (`formatQuery`), so that comments, quoting, several
statements and whatever else could hide something are gone. What it wrote is looked through here, and is also what
runs: nothing is judged in one form and run in another.

A reader may SELECT, SHOW, DESCRIBE, EXPLAIN and EXISTS; `readonly=1` holds that in the engine as well. The writer
may also change data and tables. Nobody reaches files, addresses, processes, other users or the server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from otel_agent_replay.server import limits
from otel_agent_replay.server.engine import Handle, SqlError, escaped

TABLE_FUNCTIONS = frozenset(
    {
        "format",
        "generaterandom",
        "generate_series",
        "generateseries",
        "merge",
        "mergetreeindex",
        "null",
        "numbers",
        "numbers_mt",
        "primes",
        "sqlstandardvalues",
        "values",
        "view",
        "zeros",
        "zeros_mt",
    }
)
"""Table functions that reach nothing outside of the tables. Every other one that the engine has is refused."""

FUNCTIONS = frozenset(
    {
        "addresstoline",
        "addresstolinewithinlines",
        "addresstosymbol",
        "catboostevaluate",
        "currentrequesturl",
        "demangle",
        "disk",
        "evalmlmethod",
        "file",
        "getclienthttpheader",
        "hascolumnintable",  # takes the address of a server
        "logtrace",
        "showcertificate",
        "sleep",
        "sleepeachrow",
    }
)
"""Functions that are refused, beside the table functions and those that ask a model (``ai…``)."""

SYSTEM_TABLES = frozenset({"stack_trace", "zookeeper"})
"""Tables of `system` that do something when they are read: interrupt every thread, ask a server."""

HEAD_BYTES = 64 << 10
"""Bytes in which an INSERT has to name its table, its columns and its format."""

REMEMBERED = 512
"""So many statements are remembered …"""

REMEMBERED_BYTES = 8192
"""… of so many characters at most."""

_READ = frozenset({"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS"})
_STREAMED = frozenset({"SELECT", "WITH"})
_WRITE = frozenset({"ALTER", "DELETE", "UPDATE", "DROP", "TRUNCATE", "OPTIMIZE", "RENAME", "EXCHANGE", "INSERT"})
_CREATED = frozenset({"DATABASE", "TABLE", "VIEW", "MATERIALIZED"})
_TOKEN = re.compile(
    r"""
    (?P<string>'(?:[^'\\]|\\.|'')*')
  | (?P<quoted>`(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*")
  | (?P<word>[^\W\d]\w*)
  | (?P<other>\d\w* | \s+ | .)
    """,
    re.VERBOSE | re.DOTALL,
)


class Kind(StrEnum):
    """What a statement is for."""

    STREAM = "a result that can be streamed"
    WHOLE = "a result, whole"
    WRITE = "a change"
    SET = "settings of the session"
    USE = "the database of the session"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that may run."""

    kind: Kind
    sql: str
    """As it is to run, without FORMAT."""
    form: str = ""
    """The format that it asks for; empty where it asks for none."""
    settings: tuple[tuple[str, str], ...] = ()
    """Of SET: what is set, unchecked. Of USE: the name of the database, as the only value."""


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT whose rows come with it."""

    head: str
    """Up to the columns."""
    form: str
    body: bytes
    settings: str = ""
    """``SETTINGS …``; empty where there are none."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A token that is no space."""

    text: str
    """Upper case for a bare word; the name itself for a quoted one; a string as it stands."""
    start: int
    end: int
    bare: bool
    string: bool = False


class Gate:
    """Judges statements; what it has judged it remembers."""

    def __init__(self, handle: Handle) -> None:
        """Ask the engine which table functions it has."""
        listed = handle.query("SELECT DISTINCT lower(name) FROM system.table_functions").decode().split()
        self._refused = (frozenset(listed) - TABLE_FUNCTIONS) | FUNCTIONS
        self._known: dict[str, Statement] = {}

    def judge(self, handle: Handle, sql: str, *, writer: bool) -> Statement:
        """The statement that is to run. Raises SqlError where it may not."""
        if len(sql) > limits.SQL_TEXT_BYTES:
            raise SqlError.refused(62, "SYNTAX_ERROR", f"A statement may take {limits.SQL_TEXT_BYTES:,} bytes")
        if "\0" in sql:
            raise SqlError.refused(62, "SYNTAX_ERROR", "A statement may hold no NUL")
        statement = self._known.get(sql)
        if statement is None:
            formatted = handle.query("SELECT formatQuery({q:String})", "TSVRaw", {"q": escaped(sql)})
            statement = _read(formatted.decode("utf-8", "replace").removesuffix("\n"), self._refused)
            if len(sql) <= REMEMBERED_BYTES:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[sql] = statement
        if statement.kind is Kind.WRITE and not writer:
            raise read_only()
        return statement

    def check_head(self, head: str) -> None:
        """Look through the beginning of an INSERT. Raises SqlError."""
        words = _words(head)
        _check(words, self._refused)
        if any(word.bare and word.text in ("INFILE", "FUNCTION", "SELECT", ";") for word in words):
            raise SqlError.refused(497, "ACCESS_DENIED", "Rows come with the statement, and go into a table")


def read_only() -> SqlError:
    """What a reader is told that tries to write."""
    return SqlError.refused(
        164, "READONLY", "Cannot execute query in readonly mode: writing needs the writer's token as the password"
    )


def split_insert(text: bytes) -> Insert | None:
    """An INSERT that brings its rows: ``INSERT INTO t (a, b) FORMAT Name`` or ``… VALUES``, then the rows.

    None where it is something else, INSERT … SELECT among them.
    """
    start = _LEADING.match(text)
    begin = start.end() if start else 0
    if text[begin : begin + 6].upper() != b"INSERT":
        return None
    head = text[begin : begin + HEAD_BYTES].decode("utf-8", "surrogateescape")
    depth, previous, at_format, at_settings = 0, "", 0, 0
    for match in _TOKEN.finditer(head):
        word = match[0].upper()
        if match.lastgroup == "other":
            depth += (word == "(") - (word == ")")
            continue
        if match.lastgroup != "word" or depth:
            continue
        if previous == "FORMAT" or word == "VALUES":
            form, end = ("Values", match.start()) if word == "VALUES" else (match[0], at_format)
            columns = at_settings or end
            settings = _clean(head[columns:end])
            return Insert(_clean(head[:columns]), form, _after(text, begin, head, match.end()), settings)
        if word in ("SELECT", "WITH", "INFILE", "FROM", "WATCH"):
            return None
        if word == "SETTINGS":
            at_settings = match.start()
        previous, at_format = word, match.start()
    return None


_LEADING = re.compile(rb"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


def _clean(head: str) -> str:
    """The beginning of an INSERT, which has to be valid UTF-8."""
    try:
        return head.encode("utf-8", "surrogateescape").decode().rstrip()
    except UnicodeDecodeError:
        raise SqlError.refused(62, "SYNTAX_ERROR", "A statement has to be UTF-8") from None


def _after(text: bytes, begin: int, head: str, end: int) -> bytes:
    """The rows: what follows the head and, at most, one end of line after spaces."""
    at = begin + len(head[:end].encode("utf-8", "surrogateescape"))
    rest = _SPACES.match(text, at)
    return text[rest.end() if rest else at :]


_SPACES = re.compile(rb"[ \t\f]*\r?\n?")


def _read(sql: str, refused: frozenset[str]) -> Statement:
    words = _words(sql)
    _check(words, refused)
    first = next((word.text for word in words if word.text != "("), "")
    if first == "SET":
        return Statement(Kind.SET, sql, settings=_assignments(words, sql))
    if first == "USE":
        name = words[-1]
        return Statement(Kind.USE, sql, settings=(("", sql[name.start : name.end] if name.bare else name.text),))
    if first in _READ:
        sql, form = _without_format(sql, words)
        return Statement(Kind.STREAM if first in _STREAMED else Kind.WHOLE, sql, form)
    if first == "CREATE":
        made = [word.text for word in words[1:4] if word.text not in ("OR", "REPLACE")]
        if made and made[0] in _CREATED:
            return Statement(Kind.WRITE, sql)
    if first in _WRITE:
        return Statement(Kind.WRITE, sql)
    raise SqlError.refused(497, "ACCESS_DENIED", f"{first[:40] or 'Nothing'} is not to be had here")


def _words(sql: str) -> list[_Word]:
    found = []
    for match in _TOKEN.finditer(sql):
        text = match[0]
        if match.lastgroup == "other" and text.isspace():
            continue
        if match.lastgroup == "quoted":
            found.append(_Word(text[1:-1].replace("\\", ""), match.start(), match.end(), bare=False))
        else:
            string = match.lastgroup == "string"
            found.append(_Word(text if string else text.upper(), match.start(), match.end(), bare=True, string=string))
    return found


def _check(words: list[_Word], refused: frozenset[str]) -> None:
    """Raise SqlError where a name is used that may not be. A function is a name before a parenthesis."""
    for at, word in enumerate(words):
        if word.string:
            continue
        after = words[at + 1].text if at + 1 < len(words) else ""
        name = word.text.lower()
        if after == "(" and (name in refused or (name.startswith("ai") and name[2:3].isalpha())):
            raise SqlError.refused(497, "ACCESS_DENIED", f"The function {name} is not to be had here")
        if name.rpartition(".")[2] in SYSTEM_TABLES:
            raise SqlError.refused(497, "ACCESS_DENIED", f"The table {name} is not to be had here")
        if word.bare and word.text == "INTO" and after == "OUTFILE":
            raise SqlError.refused(497, "ACCESS_DENIED", "INTO OUTFILE is not to be had here")
        if word.bare and word.text == "INFILE" and at + 1 < len(words) and words[at + 1].string:
            raise SqlError.refused(497, "ACCESS_DENIED", "FROM INFILE is not to be had here")


def _without_format(sql: str, words: list[_Word]) -> tuple[str, str]:
    """A query without its FORMAT, and what that was. It is the last of the statement but for settings."""
    depth = 0
    for at in range(len(words) - 1, 0, -1):
        word = words[at]
        depth += (word.text == ")" and word.bare) - (word.text == "(" and word.bare)
        if depth == 0 and word.bare and word.text == "FORMAT" and at + 1 < len(words) and _begins_line(sql, word):
            form = words[at + 1]
            return sql[: word.start].rstrip() + sql[form.end :], sql[form.start : form.end].strip('`"')
    return sql, ""


def _begins_line(sql: str, word: _Word) -> bool:
    """Whether a word begins a line without indent: there the engine writes clauses of the whole statement only."""
    return word.start > 0 and sql[word.start - 1] == "\n"


def _assignments(words: list[_Word], sql: str) -> tuple[tuple[str, str], ...]:
    """The settings of a SET. Raises SqlError where a value is no plain one."""
    found = []
    rest = words[1:]
    while len(rest) >= 3 and rest[1].text == "=":
        name, value = sql[rest[0].start : rest[0].end], rest[2]
        text = sql[value.start : value.end]
        rest = rest[3:]
        if text == "-" and rest:
            text, rest = "-" + sql[rest[0].start : rest[0].end], rest[1:]
        if rest and rest[0].text == ".":
            text, rest = text + "." + (sql[rest[1].start : rest[1].end] if len(rest) > 1 else ""), rest[2:]
        found.append((name, unquoted(text) if value.string else text))
        if rest and rest[0].text == ",":
            rest = rest[1:]
    if rest or not found:
        raise SqlError.refused(497, "ACCESS_DENIED", "Such a SET is not to be had here")
    return tuple(found)


def unquoted(text: str) -> str:
    """The value of a literal that the engine wrote."""
    return re.sub(r"\\(.)", lambda match: _NAMED.get(match[1], match[1]), text[1:-1], flags=re.DOTALL)


_NAMED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}
