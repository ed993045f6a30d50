"""Where an exception was raised, as JSON, and back as a traceback whose text is the same.

A program may show a traceback to its model, or print it. The code below a boundary does not run in a replay, so the
frames that lay there are written down, and come back as frames of code that only raises: file, function, lines and
columns are the recorded ones; locals are not kept. Frames of the recorder, and of other instrumentations (which a
replay does not load), are no part of the program: nobody is shown them.
"""

from __future__ import annotations

import ast
import os
import traceback
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import otel_agent_replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from otel_agent_replay.recording.values import Json

MOST_FRAMES = 1000
"""Frames that are written of a traceback: from its beginning, and from its end, half of them each."""

OWN = str(Path(otel_agent_replay.__file__).parent) + os.sep
OWN_PROGRAMS = OWN + "demo" + os.sep
"""What is the recorder's own, and what of it is a program like the user's."""

INSTRUMENTATIONS = tuple(
    f"{os.sep}{path.replace('/', os.sep)}{os.sep}"
    for path in ("opentelemetry/instrumentation", "opentelemetry/util/genai", "openinference/instrumentation")
)
"""In the paths of files of other instrumentations."""
_NO_COLUMN = -1


@lru_cache(4096)
def is_hidden(filename: str) -> bool:
    """Whether frames of this file are no part of the program."""
    if filename.startswith(OWN):
        return not filename.startswith(OWN_PROGRAMS)
    return any(folder in filename for folder in INSTRUMENTATIONS)


def shown(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without what is no part of the program."""
    inner = None
    for entry in reversed(_shown(trace)):
        inner = TracebackType(inner, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return inner


def hide_in(error: BaseException) -> None:
    """Take what is no part of the program out of the traceback of an exception, and of all that it holds."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in found:
            continue
        found[id(one)] = one
        one.__traceback__ = shown(one.__traceback__)
        waiting += (one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()))


def frames_of(trace: TracebackType | None) -> list[Json]:
    """The frames of a traceback that are the program's, outermost first, for `rebuilt`.

    Each is a list of file, qualified name, line, last line, column and last column; of file, name and line where the
    code does not know its columns.
    """
    entries = _shown(trace)
    if len(entries) > MOST_FRAMES:
        entries = entries[: MOST_FRAMES // 2] + entries[-MOST_FRAMES // 2 :]
    return [_frame_of(entry) for entry in entries]


def listed(trace: TracebackType | None, keep: Callable[[FrameType], bool] = lambda _: True) -> list[str]:
    """A traceback as `traceback` formats it, of the frames to `keep`; those of the recorder are shown too."""
    return traceback.format_list(
        [
            traceback.FrameSummary(
                entry.tb_frame.f_code.co_filename, entry.tb_lineno, entry.tb_frame.f_code.co_qualname
            )
            for entry in _entries(trace)
            if keep(entry.tb_frame)
        ]
    )


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _shown(trace: TracebackType | None) -> list[TracebackType]:
    return [entry for entry in _entries(trace) if not is_hidden(entry.tb_frame.f_code.co_filename)]


def _frame_of(entry: TracebackType) -> Json:
    code = entry.tb_frame.f_code
    where: list[Json] = [code.co_filename, code.co_qualname, entry.tb_lineno]
    line, end_line, column, end_column = next(islice(code.co_positions(), entry.tb_lasti // 2, None))
    if line == entry.tb_lineno and end_line is not None and column is not None and end_column is not None:
        where += (end_line, column, end_column)
    return where


def rebuilt(frames: list[Any]) -> TracebackType | None:
    """The traceback of such frames.

    Raises:
        TypeError, ValueError, OverflowError: they are not what `frames_of` gives.
    """
    inner = None
    for filename, name, line, *rest in reversed(frames):
        end_line, column, end_column = rest or (line, _NO_COLUMN, _NO_COLUMN)
        found = _raised_at(_raising(filename, name, line, end_line, column, end_column), filename)
        inner = TracebackType(inner, found.tb_frame, found.tb_lasti, line)
    return inner


@lru_cache(256)
def _raising(filename: str, name: str, line: int, end_line: int, column: int, end_column: int) -> CodeType:
    """Code that does nothing but raise, in this place."""
    where = {"lineno": line, "end_lineno": end_line, "col_offset": column, "end_col_offset": end_column}
    raising = ast.Raise(exc=ast.Name(id="Placed", ctx=ast.Load(), **where), cause=None, **where)
    code = compile(ast.Module(body=[raising], type_ignores=[]), filename, "exec")
    return code.replace(co_name=name.rpartition(".")[2], co_qualname=name)


class _PlacedError(Exception):
    """Raised to have a frame."""


def _raised_at(code: CodeType, filename: str) -> TracebackType:
    scope = {"__name__": "", "__file__": filename, "__builtins__": {}, "Placed": _PlacedError}
    try:
        exec(code, scope)  # noqa: S102 (made above)
    except _PlacedError as error:
        trace = error.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    return trace.tb_next
