"""Signals: when the program's handlers are called, what it waits for, and the timers that send them.

A handler is put in behind one of ours, which tells the order of the run and calls it; `getsignal` and what `signal`
gives back are the program's own. In a replay no timer is set: the recorded signal comes in its recorded place. What
`sigwait` and its kin wait for is a call like others, with the signal as its answer.
"""

from __future__ import annotations

import signal as signals
import threading
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary.order import call_handler, comes_anyway, timers_change
from otel_agent_replay.boundary.session import Call
from otel_agent_replay.boundary.signals import key_of
from otel_agent_replay.instrument._ambient import Installation, Patches, clock_reading, unbindable
from otel_agent_replay.instrument._asking import COMMANDS, asking, cross
from otel_agent_replay.recording.values import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def install() -> Callable[[], None]:
    """Patch the module. Gives what undoes it; several installations patch once."""
    return _installation.install()


class _Handler:
    """Stands before the handler of a signal."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        return call_handler(number, frame, self.handler)


def _put(patches: Patches) -> None:
    originals = {name: getattr(signals, name) for name in ("signal", "getsignal")}
    for name, made in (("signal", _signal), ("getsignal", _getsignal)):
        patches.put(signals, name, made(originals[name]))
    for name, timer in (("setitimer", _setitimer), ("getitimer", _getitimer), ("alarm", _alarm)):
        if original := getattr(signals, name, None):
            patches.put(signals, name, unbindable(timer(original), original, "signal"))
    for name in ("sigwait", "sigwaitinfo", "sigtimedwait"):
        if original := getattr(signals, name, None):
            patches.put(signals, name, unbindable(_waiting(name, original), original, "signal"))
    for name in ("raise_signal", "pthread_kill"):
        if original := getattr(signals, name, None):
            patches.put(signals, name, unbindable(_sending(original), original, "signal"))
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may set a handler
    if originals["getsignal"](signals.SIGINT) is signals.default_int_handler:
        originals["signal"](signals.SIGINT, _Handler(signals.default_int_handler))
    patches.on_undo(lambda: _restore(originals))


def _restore(originals: dict[str, Callable[..., Any]]) -> None:
    for number in signals.valid_signals():
        handler = originals["getsignal"](number)
        if isinstance(handler, _Handler):
            originals["signal"](number, handler.handler)


_installation = Installation(_put)


def _own(handler: Any) -> Any:
    """The program's handler."""
    return handler.handler if isinstance(handler, _Handler) else handler


def _signal(original: Callable[..., Any]) -> Callable[..., Any]:
    def signal(signalnum: Any, handler: Any) -> Any:
        timers_change()
        stands = callable(handler) and not isinstance(handler, signals.Handlers)
        return _own(original(signalnum, _Handler(handler) if stands else handler))

    signal.__doc__ = original.__doc__
    return signal


def _getsignal(original: Callable[..., Any]) -> Callable[..., Any]:
    def getsignal(signalnum: Any) -> Any:
        return _own(original(signalnum))

    getsignal.__doc__ = original.__doc__
    return getsignal


def _sending(original: Callable[..., None]) -> Callable[..., None]:
    def send(_: object, *given: Any) -> None:
        if not (given and comes_anyway(given[-1])):
            original(*given)

    return send


def _waiting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(_: object, sigset: Any, *timeout: Any) -> Any:
        found = asking(COMMANDS, frozenset())
        if found is None:
            return original(sigset, *timeout)
        lane, _ = found
        wanted = sorted(set(sigset))
        call = Call(Kind.PROCESS, f"process:signal.{name}", {"signals": [key_of(number, None) for number in wanted]})
        given = cross(lane, call, lambda: _plain(original(wanted, *timeout)))
        if given is None:
            return None
        number, *rest = given
        return signals.struct_siginfo((number, *rest)) if rest else _member(number)

    return wait


def _plain(given: Any) -> list[int] | None:
    """A signal, or what is known of it, as plain numbers."""
    if given is None:
        return None
    return list(given) if isinstance(given, signals.struct_siginfo) else [int(given)]


def _member(number: int) -> int:
    try:
        return signals.Signals(number)
    except ValueError:  # a real-time signal that has no name
        return number


def _timer(source: str, original: Callable[..., tuple[float, float]], given: tuple[Any, ...]) -> tuple[float, float]:
    """What is left of a timer, and its interval, in seconds."""
    timers_change()
    found = clock_reading(1)
    if found is None:
        return original(*given)
    lane, frame = found
    text: str = lane.session.read(lane, source, frame, lambda: _text(original(*given)))
    left, _, interval = text.partition(" ")
    return float(left), float(interval)


def _text(timer: tuple[float, float]) -> str:
    return " ".join(map(repr, timer))


def _setitimer(original: Callable[..., tuple[float, float]]) -> Callable[..., tuple[float, float]]:
    def setitimer(_: object, *given: Any) -> tuple[float, float]:
        return _timer("clock:signal.setitimer", original, given)

    return setitimer


def _getitimer(original: Callable[..., tuple[float, float]]) -> Callable[..., tuple[float, float]]:
    def getitimer(_: object, *given: Any) -> tuple[float, float]:
        return _timer("clock:signal.getitimer", original, given)

    return getitimer


def _alarm(original: Callable[[Any], int]) -> Callable[..., int]:
    def alarm(_: object, seconds: Any, /) -> int:
        timers_change()
        found = clock_reading()
        if found is None:
            return original(seconds)
        lane, frame = found
        return lane.session.read(lane, "clock:signal.alarm", frame, lambda: original(seconds))

    return alarm
