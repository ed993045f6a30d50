"""Exceptions as JSON, and back: same type, arguments, attributes, cause, context and notes.

Where they were raised is written too where the encoder is asked for it (`tracebacks`).

An exception is made by the ``__new__`` of its nearest ancestor written in C, without arguments; what it holds is
then set, attribute by attribute. None of its own code is run. What cannot be written in one of its attributes is
an `Opaque` there, for an exception has to be raised again whatever it carries.
"""

from __future__ import annotations

import importlib
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from otel_agent_replay.errors import ReplayedError
from otel_agent_replay.recording import tracebacks
from otel_agent_replay.recording.allowed import ref
from otel_agent_replay.recording.building import can_be_built, get_state, set_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_agent_replay.recording.decoder import Decoder
    from otel_agent_replay.recording.encoder import Encoder
    from otel_agent_replay.recording.values import Json

DEEPEST_CHAIN = 100
"""Levels of JSON at which no further cause or context is written …"""

MOST_ERRORS = 100
"""… nor after so many exceptions in one value."""

_MEMBERS: dict[type[BaseException], tuple[str, ...]] = {
    OSError: ("errno", "strerror", "filename", "filename2", "characters_written"),
    UnicodeEncodeError: ("encoding", "object", "start", "end", "reason"),
    UnicodeDecodeError: ("encoding", "object", "start", "end", "reason"),
    UnicodeTranslateError: ("object", "start", "end", "reason"),
    SystemExit: ("code",),
    StopIteration: ("value",),
    ImportError: ("msg", "name", "path", "name_from"),
    AttributeError: ("name",),
    NameError: ("name",),
    SyntaxError: ("msg", "filename", "lineno", "offset", "text", "end_lineno", "end_offset", "print_file_and_line"),
}
"""What exceptions written in C hold beside their arguments. The object of an AttributeError is not kept: it may be
anything, and is there for the interpreter's suggestions only."""


def encode(error: BaseException, encoder: Encoder, depth: int) -> Json:
    """The JSON of an exception."""
    encoder.errors += 1
    found: dict[str, Json] = {"$": "error", "c": ref(type(error))}
    message = _message(error)
    found["m"] = encoder.encode(message, depth)
    if _is_invalid_model(type(error)):
        found["p"] = _invalid_model(cast("Any", error), encoder, depth + 1)
    elif isinstance(error, BaseExceptionGroup):
        inner = [encode(one, encoder, depth + 3) for one in error.exceptions[:MOST_ERRORS]]
        found["g"] = [encoder.encode(error.message, depth), inner]
    elif len(error.args) == 1 and type(error.args[0]) is str and error.args[0] == message:
        found["a"] = 1  # the message alone, as it mostly is
    elif error.args:
        found["a"] = [encoder.leniently(argument, depth + 2) for argument in error.args]
    members = {name: member.__get__(error) for name, member in _members(type(error)).items() if _is_set(member, error)}
    if members:
        found["s"] = encoder.leniently(members, depth + 1)
    state = get_state(error)
    if state:
        found["d"] = encoder.leniently(state, depth + 1)
    if encoder.traces and (frames := tracebacks.frames_of(error.__traceback__)):
        found["t"] = frames
    found.update(_chain(error, encoder, depth))
    return found


def _chain(error: BaseException, encoder: Encoder, depth: int) -> Iterator[tuple[str, Json]]:
    cause, context = error.__cause__, error.__context__
    if error.__suppress_context__:
        yield "u", 1
    for key, other in (("k", cause), ("l", context)):
        if other is None or depth >= DEEPEST_CHAIN or encoder.errors >= MOST_ERRORS:
            continue
        if key == "l" and other is cause:
            yield "l", 1
        else:
            yield key, encode(other, encoder, depth + 1)


def decode(found: dict[str, Any], decoder: Decoder) -> BaseException:
    """The exception of such JSON; a ReplayedError where its class may not come back."""
    cls = decoder.cls(found["c"])
    message = decoder.decode(found["m"])
    error: BaseException
    if "p" in found:
        error = _rebuilt_invalid(found["p"], message, decoder) or ReplayedError(found["c"], message)
    elif cls is None or not issubclass(cls, BaseException) or not can_be_built(cls):
        error = ReplayedError(found["c"], message)
    else:
        error = _rebuilt(cls, found, message, decoder)
    if "k" in found:
        error.__cause__ = decode(found["k"], decoder)
    if "l" in found:
        error.__context__ = error.__cause__ if found["l"] == 1 else decode(found["l"], decoder)
    error.__suppress_context__ = "u" in found
    if "t" in found:
        error.__traceback__ = tracebacks.rebuilt(found["t"])
    return error


def _rebuilt(cls: type[BaseException], found: dict[str, Any], message: object, decoder: Decoder) -> BaseException:
    make = next(
        vars(base)["__new__"]
        for base in cls.__mro__
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)
    )
    if issubclass(cls, BaseExceptionGroup):
        text, inner = found["g"]
        error = make(cls, decoder.decode(text), [decode(one, decoder) for one in inner])
    else:
        error = make(cls)
        given = found.get("a", [])
        BaseException.args.__set__(error, (message,) if given == 1 else tuple(decoder.decode(given)))  # type: ignore[attr-defined]
    members = _members(cls)
    for name, value in decoder.mapping(found.get("s", {})).items():
        if name in members:
            members[name].__set__(error, value)
    set_state(error, decoder.mapping(found.get("d", {})))
    return cast("BaseException", error)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 (it is the program's own code)
        return f"<{type(error).__name__}, whose message raises {type(failure).__name__}>"


def _members(cls: type) -> dict[str, Any]:
    """Descriptors, written in C, of what exceptions like this hold beside their arguments."""
    return {
        name: vars(base)[name]
        for base, names in _MEMBERS.items()
        if issubclass(cls, base)
        for name in names
        if name in vars(base)
    }


def _is_set(member: Any, error: BaseException) -> bool:
    try:
        return member.__get__(error) is not None
    except (AttributeError, TypeError):
        return False


def _is_invalid_model(cls: type) -> bool:
    """Whether this is pydantic's ValidationError, all of which is written in Rust."""
    return cls.__name__ == "ValidationError" and cls.__module__.partition(".")[0] == "pydantic_core"


def _invalid_model(error: Any, encoder: Encoder, depth: int) -> Json:
    lines = [
        [line["type"], list(line["loc"]), line["msg"], line.get("input"), line.get("ctx")]
        for line in error.errors(include_url=False)
    ]
    return [encoder.leniently(error.title, depth), encoder.leniently(lines, depth + 1)]


def _rebuilt_invalid(found: Any, message: object, decoder: Decoder) -> BaseException | None:
    """One that tells the same: with lines of pydantic's own types if such can, else with custom ones."""
    try:
        core = importlib.import_module("pydantic_core")
    except ImportError:
        return None
    title, lines = decoder.decode(found)
    error = None
    for line_of in (_own_line, _custom_line):
        for mode, hidden in (("python", False), ("json", False), ("python", True), ("json", True)):
            with suppress(KeyError, TypeError, ValueError):
                error = core.ValidationError.from_exception_data(
                    title, [line_of(core, *line) for line in lines], mode, hidden
                )
                BaseException.args.__set__(error, ())  # type: ignore[attr-defined]
                if str(error) == message:
                    return cast("BaseException", error)
    return error


def _own_line(_: Any, kind: str, where: list[str | int], message: str, given: object, context: Any) -> dict[str, Any]:
    line = {"type": kind, "loc": tuple(where), "input": given}
    return line if context is None else {**line, "ctx": context}


def _custom_line(
    core: Any, kind: str, where: list[str | int], message: str, given: object, context: Any
) -> dict[str, Any]:
    """Of its own type where that tells the same message by itself."""
    line = _own_line(core, kind, where, message, given, context)
    with suppress(KeyError, TypeError, ValueError):
        if core.ValidationError.from_exception_data("", [line]).errors(include_url=False)[0]["msg"] == message:
            return line
    line["type"] = core.PydanticCustomError(kind, message.replace("{", "{{").replace("}", "}}"), context)
    line.pop("ctx", None)
    return line
