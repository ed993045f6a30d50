"""Recorded exceptions come back as the same type, with the same attributes, and none of their code is run."""

import asyncio
import concurrent.futures
import json
import re
import socket
import sqlite3
import ssl
import subprocess
import urllib.error
import zipfile
from pathlib import Path

import anthropic
import click
import httpx
import httpx2
import jinja2
import openai
import orjson
import pydantic
import pytest
import requests
import yaml
from pydantic_core import PydanticCustomError

from otel_agent_replay.errors import ReplayedError, Unencodable
from otel_agent_replay.recording import codec


def caught(function) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class CustomError(Exception):
    made = 0

    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        CustomError.made += 1


class CountedError(OSError):
    def __new__(cls, *given, **named):
        CustomError.made += 1
        return super().__new__(cls, *given)

    def __init__(self, number, text, *, more=None):
        super().__init__(number, text)
        self.more = more


class SlottedError(ValueError):
    __slots__ = ("place",)

    def __init__(self, place):
        self.place = place

    def __str__(self):
        return f"at {self.place}"


class Grouped(ExceptionGroup):
    def __new__(cls, errors, code):
        self = super().__new__(cls, f"code {code}", errors)
        self.code = code
        return self


class Model(pydantic.BaseModel):
    a: int
    b: list[str] = []
    c: str = pydantic.Field(default="x", max_length=3)

    @pydantic.field_validator("c")
    @classmethod
    def checked(cls, value):
        if value == "bad":
            raise ValueError("no {braces} here")
        if value == "odd":
            raise PydanticCustomError("odd", "it is {how}", {"how": "odd"})
        return value


def status_error(library, http, name, status=429, body=None):
    request = http.Request(
        "POST",
        "https://api.example.com/v1/chat?key=SECRET",
        headers={"authorization": "Bearer SECRET", "x-api-key": "SECRET"},
        content=b"{}",
    )
    response = http.Response(
        status,
        headers=[("x-request-id", "r1"), ("retry-after", "3"), ("set-cookie", "a=SECRET"), ("via", "1"), ("via", "2")],
        json=body or {"error": {"message": "m", "code": "c", "param": None, "type": "t"}},
        request=request,
    )
    return getattr(library, name)(
        "told", response=response, body=(body or {"error": {"code": "c", "param": None, "type": "t"}})["error"]
    )


REQUEST = httpx2.Request(
    "POST", "https://api.example.com/v1/chat", headers={"authorization": "Bearer SECRET"}, content=b"{}"
)
RESPONSE = httpx2.Response(
    500, content=b"\xff\0", request=REQUEST, extensions={"http_version": b"HTTP/2", "reason_phrase": b"Oops"}
)


def chained():
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def in_context():
    try:
        raise KeyError("inner")
    except KeyError:
        raise RuntimeError("outer")  # noqa: B904


def from_none():
    try:
        raise KeyError("inner")
    except KeyError:
        raise RuntimeError("outer") from None


def noted():
    error = ValueError("x")
    error.add_note("one")
    error.add_note("two")
    return error


def grouped():
    return ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b"), CustomError(1, detail="d")])])


ERRORS = {
    "value": lambda: ValueError("x"),
    "no arguments": lambda: ValueError(),
    "several arguments": lambda: ValueError("a", 2, (3, [4])),
    "one that is no text": lambda: ValueError({"a": (1,)}),
    "surrogates": lambda: ValueError("\ud800"),
    "key": lambda: KeyError("k"),
    "file": lambda: FileNotFoundError(2, "No such file", "/nope"),
    "open": lambda: caught(lambda: Path("/nope/at/all").read_text()),
    "two files": lambda: caught(lambda: __import__("os").rename("/nope/a", "/nope/b")),
    "reset": lambda: ConnectionResetError(104, "reset"),
    "blocking": lambda: BlockingIOError(11, "again", 7),
    "timeout": lambda: TimeoutError(),
    "os with one argument": lambda: OSError("just text"),
    "cancelled": lambda: asyncio.CancelledError("why"),
    "incomplete": lambda: asyncio.IncompleteReadError(b"ab", 5),
    "pool": lambda: concurrent.futures.BrokenExecutor("x"),
    "decode": lambda: caught(lambda: b"a\xff".decode()),
    "encode": lambda: caught(lambda: "é".encode("ascii")),
    "translate": lambda: UnicodeTranslateError("abc", 1, 2, "no"),
    "json": lambda: caught(lambda: json.loads("{")),
    "syntax": lambda: caught(lambda: compile("a = (", "f.py", "exec")),
    "stop": lambda: StopIteration(5),
    "stop async": lambda: StopAsyncIteration(),
    "exit": lambda: SystemExit(3),
    "exit with a tuple": lambda: SystemExit(3, 4),
    "interrupt": lambda: KeyboardInterrupt(),
    "import": lambda: caught(lambda: __import__("nope_mod")),
    "attribute": lambda: caught(lambda: (1).nope),
    "name": lambda: caught(lambda: nope),  # noqa: F821
    "division": lambda: caught(lambda: 1 / 0),
    "custom": lambda: CustomError(7, detail=("d", 1)),
    "custom os": lambda: CountedError(2, "gone", more=[1]),
    "slots": lambda: SlottedError("here"),
    "group": grouped,
    "base group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("a")]),
    "custom group": lambda: Grouped([ValueError("a")], 4),
    "process": lambda: subprocess.CalledProcessError(2, ["ls"], output=b"o\xff", stderr="e"),
    "process timeout": lambda: subprocess.TimeoutExpired(["x"], 3),
    "resolve": lambda: socket.gaierror(-2, "Name"),
    "ssl": lambda: ssl.SSLError(1, "ssl"),
    "certificate": lambda: caught(lambda: ssl.create_default_context(cafile=__file__)),
    "sqlite": lambda: caught(lambda: sqlite3.connect(":memory:").execute("nope")),
    "url": lambda: urllib.error.URLError("refused"),
    "zip": lambda: zipfile.BadZipFile("bad"),
    "from": lambda: caught(chained),
    "in context": lambda: caught(in_context),
    "from none": lambda: caught(from_none),
    "notes": noted,
    "openai status": lambda: status_error(openai, httpx2, "RateLimitError"),
    "openai status by httpx": lambda: status_error(openai, httpx, "BadRequestError", 400),
    "openai connection": lambda: openai.APIConnectionError(request=REQUEST),
    "openai timeout": lambda: openai.APITimeoutError(request=REQUEST),
    "openai length": lambda: openai.LengthFinishReasonError(
        completion=openai.types.chat.ChatCompletion.model_construct(id="x", usage=None)
    ),
    "anthropic status": lambda: status_error(
        anthropic, httpx2, "OverloadedError" if hasattr(anthropic, "OverloadedError") else "RateLimitError"
    ),
    "anthropic bad request": lambda: status_error(anthropic, httpx2, "BadRequestError", 400, {"error": {"type": "x"}}),
    "httpx2 timeout": lambda: httpx2.ReadTimeout("t", request=REQUEST),
    "httpx2 status": lambda: httpx2.HTTPStatusError("s", request=REQUEST, response=RESPONSE),
    "httpx connect": lambda: httpx.ConnectError("c"),
    "httpx unread": lambda: httpx.ResponseNotRead(),
    "requests": lambda: requests.exceptions.ConnectTimeout("z"),
    "yaml": lambda: caught(lambda: yaml.safe_load("a: [")),
    "template": lambda: caught(lambda: jinja2.Template("{% if %}")),
    "undefined": lambda: caught(lambda: jinja2.Template("{{ a.b }}").render()),
    "click": lambda: click.BadParameter("no", param_hint="--x"),
    "invalid": lambda: caught(lambda: Model(a="x", b=[1], c="long")),
    "invalid by a validator": lambda: caught(lambda: Model(a=1, c="bad")),
    "invalid by a custom error": lambda: caught(lambda: Model(a=1, c="odd")),
    "invalid json": lambda: caught(lambda: Model.model_validate_json('{"a": [], "b": {}}')),
    "missing": lambda: caught(lambda: Model()),
}


def known(error: BaseException) -> dict[str, type]:
    classes: dict[str, type] = {}
    todo = [error]
    while todo:
        one = todo.pop()
        classes[codec.ref(type(one))] = type(one)
        todo += [*getattr(one, "exceptions", ()), *filter(None, (one.__cause__, one.__context__))]
        todo += [value for value in vars(one).values() if isinstance(value, BaseException)]
        classes |= {
            codec.ref(type(value)): type(value) for value in vars(one).values() if type(value).__module__ != "builtins"
        }
    return classes


def there_and_back(error, allowed=None):
    return codec.decode(orjson.loads(orjson.dumps(codec.encode(error))), known(error) if allowed is None else allowed)


def shown(value) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def same_error(a, b):
    """Everything about them that can be asked for, but the traceback."""
    if a is None or b is None:
        assert a is b
        return
    assert type(a) is type(b)
    assert str(a) == str(b)
    assert a.__suppress_context__ == b.__suppress_context__
    if isinstance(a, BaseExceptionGroup):
        assert a.message == b.message
        for x, y in zip(a.exceptions, b.exceptions, strict=True):
            same_error(x, y)
    else:
        assert shown(a.args) == shown(b.args)
    for name in dir(a):
        if name in {"obj", "errors", "json", "exceptions", "args", "with_traceback"} or (
            name.startswith("__") and name != "__notes__"
        ):
            continue
        try:
            before = getattr(a, name)
        except Exception as error:
            assert type(caught(lambda name=name: getattr(b, name))) is type(error)
            continue
        after = getattr(b, name)
        if callable(before):
            continue
        if isinstance(before, httpx.Response | httpx2.Response | httpx.Request | httpx2.Request):
            same_http(before, after)
        elif isinstance(before, BaseException):
            same_error(before, after)
        else:
            assert before == after or shown(before) == shown(after), name
    same_error(a.__cause__, b.__cause__)
    same_error(a.__context__, b.__context__)


SECRETS = {"authorization", "x-api-key", "set-cookie"}


def same_http(a, b):
    assert type(a) is type(b)
    assert a.content == b.content
    assert [(k, v) for k, v in a.headers.multi_items() if k not in SECRETS] == [
        (k, v) for k, v in b.headers.multi_items() if k not in SECRETS
    ]
    if hasattr(a, "status_code"):
        assert (a.status_code, a.reason_phrase, a.http_version) == (b.status_code, b.reason_phrase, b.http_version)
        assert a.is_closed == b.is_closed
        same_http(a.request, b.request)
    else:
        assert a.method == b.method
        assert str(a.url).replace("SECRET", "") == str(b.url).replace("%5Bmasked%5D", "").replace("[masked]", "")


@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_comes_back_as_it_was(name):
    error = ERRORS[name]()
    made = CustomError.made
    back = there_and_back(error)
    assert CustomError.made == made, "neither __new__ nor __init__ of the class is run"
    same_error(error, back)
    assert back.__traceback__ is None
    same_error(error, caught(lambda: (_ for _ in ()).throw(back)) if not isinstance(back, StopIteration) else back)
    if isinstance(error, pydantic.ValidationError):
        assert back.error_count() == error.error_count()
        told, before = back.errors(), error.errors()
        assert [{**line, "ctx": str(line.get("ctx"))} for line in told] == [
            {**line, "ctx": str(line.get("ctx"))} for line in before
        ]


@pytest.mark.parametrize("name", ERRORS)
def test_credentials_are_masked(name):
    assert "SECRET" not in orjson.dumps(codec.encode(ERRORS[name]())).decode()


OF_THE_LIBRARY = {
    "builtins",
    "json.decoder",
    "asyncio.exceptions",
    "subprocess",
    "socket",
    "ssl",
    "sqlite3",
    "urllib.error",
}
STANDARD = [name for name in ERRORS if {cls.__module__ for cls in known(ERRORS[name]()).values()} <= OF_THE_LIBRARY]


@pytest.mark.parametrize("name", [*STANDARD, "invalid"])
def test_an_exception_of_the_standard_library_needs_no_permission(name):
    error = ERRORS[name]()
    assert type(there_and_back(error, {})) is type(error)


def test_there_are_enough_of_the_standard_library():
    assert len(STANDARD) >= 25


def test_an_exception_that_may_not_come_back_is_stood_for():
    error = CustomError(7, detail="d")
    error.__cause__ = ValueError("why")
    back = there_and_back(error, {})
    assert type(back) is ReplayedError
    assert back.recorded_type == f"{__name__}:CustomError"
    assert back.recorded_message == "7: d"
    same_error(error.__cause__, back.__cause__)


def test_what_cannot_be_written_in_an_exception_is_opaque_there():
    error = ValueError("x", object())
    error.handle = socket.socket()
    with error.handle:
        back = there_and_back(error)
    assert type(back) is ValueError
    assert back.args[0] == "x"
    for use in (lambda: back.args[1].name, lambda: back.handle.close()):
        with pytest.raises(Unencodable, match="record again"):
            use()


def test_a_message_that_raises_is_said_to():
    class BadError(ValueError):
        def __str__(self):
            raise KeyError("no")

    back = there_and_back(BadError(1), {})
    assert "KeyError" in back.recorded_message


def test_causes_that_go_round_end():
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    back = there_and_back(a, {})
    assert str(back.__cause__) == "b"


def test_causes_that_unfold_without_end_end():
    error: BaseException = ValueError("x")
    for number in range(60):
        outer = ValueError(str(number))
        outer.__cause__, outer.__context__ = error, RuntimeError("beside")
        outer.__context__.__cause__ = error
        error = outer
    assert str(there_and_back(error, {})) == "59"


def test_a_response_that_was_not_read_says_so():
    def body():
        yield b"abc"

    error = httpx2.HTTPStatusError("s", request=REQUEST, response=httpx2.Response(200, content=body(), request=REQUEST))
    back = there_and_back(error)
    with pytest.raises(httpx2.ResponseNotRead):
        _ = back.response.content


@pytest.mark.parametrize(
    "hostile",
    [
        {"$": "error", "c": f"{__name__}:Model", "m": "x"},
        {"$": "error", "c": "builtins:int", "m": "x", "a": [5]},
        {"$": "error", "c": "subprocess:Popen", "m": "x", "a": [["touch", "/nope"]]},
    ],
)
def test_only_an_exception_is_raised(hostile):
    assert (
        type(codec.decode(hostile, {f"{__name__}:Model": Model, "subprocess:Popen": subprocess.Popen})) is ReplayedError
    )
