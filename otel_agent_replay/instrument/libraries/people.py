"""`input`, `sys.stdin`, `getpass`: what people type, recorded and given back without a terminal.

`sys.stdin` is replaced by one whose reads from the descriptor are crossings; that is done only where the whole process
is recorded or replayed, for it belongs to the process. A debugger reads the terminal as ever.
"""

from __future__ import annotations

import builtins
import getpass as passwords
import io
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary.session import Call
from otel_agent_replay.instrument import _typed
from otel_agent_replay.instrument._ambient import Installation, Patches, like, unbindable
from otel_agent_replay.instrument._asking import PEOPLE, asking, cross
from otel_agent_replay.instrument._typed import Typed
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_THROUGH: Final = frozenset({"getpass", "fileinput", "codecs"})


def install() -> Callable[[], None]:
    """Patch the functions. Gives what undoes it; several installations patch once."""
    return _installation.install()


def _put(patches: Patches) -> None:
    patches.put(builtins, "input", unbindable(_input(builtins.input), builtins.input, "builtins"))
    getpass = _getpass(passwords.getpass)
    like(getpass, passwords.getpass, "getpass")
    patches.put(passwords, "getpass", getpass)


_installation = Installation(_put)


def watch_stdin() -> None:
    """Let what the program reads of its standard input be crossings, from now on."""
    stdin: Any = sys.stdin
    buffer = getattr(stdin, "buffer", None)
    if not isinstance(buffer, io.BufferedReader) or isinstance(buffer.raw, Typed):
        return
    try:
        number = stdin.fileno()
    except (OSError, ValueError):
        return
    raw = Typed(number, "rb", closefd=False)
    raw.name = "<stdin>"
    text = io.TextIOWrapper(
        io.BufferedReader(raw), encoding=stdin.encoding, errors=stdin.errors, line_buffering=stdin.line_buffering
    )
    text.mode = "r"  # type: ignore[misc]  # as the interpreter sets it
    _typed.watching.append(True)
    _kept.append(stdin)  # who closes the old one closes the descriptor
    sys.stdin = sys.__stdin__ = text  # type: ignore[misc]


_kept: list[Any] = []


def _input(original: Callable[..., str]) -> Callable[..., str]:
    def ask(_: object, prompt: Any = "", /) -> str:
        found = asking(PEOPLE, _THROUGH)
        if found is None:
            return original(prompt)
        lane, frame = found
        at_terminal = bool(lane.session.read(lane, "human:terminal", frame, lambda: int(_is_terminal())))
        if not lane.session.replaying and not at_terminal:
            return original(prompt)  # it reads `sys.stdin`, and those reads are the crossings
        if at_terminal:
            line: str = cross(lane, Call(Kind.HUMAN, "human:input", {"prompt": str(prompt)}), lambda: original(prompt))
            if lane.session.replaying:
                _show(f"{prompt}{line}\n")
            return line
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError("EOF when reading a line")
        return line.removesuffix("\n")

    return ask


def _is_terminal() -> bool:
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False


def _show(text: str) -> None:
    """Let a replay look as the recording did; what the terminal showed of it was not the program's output."""
    out: Any = sys.stdout
    type(out).write(out, text)


def _getpass(original: Callable[..., str]) -> Callable[..., str]:
    def getpass(prompt: str = "Password: ", stream: Any = None, **options: Any) -> str:
        found = asking(PEOPLE, _THROUGH)
        if found is None:
            return original(prompt, stream, **options)
        # Kept under a name that says what it is, so that it is masked as every password.
        told: dict[str, str] = cross(
            found[0],
            Call(Kind.HUMAN, "human:getpass", {"prompt": prompt}),
            lambda: {"password": original(prompt, stream, **options)},
        )
        return told["password"]

    return getpass
