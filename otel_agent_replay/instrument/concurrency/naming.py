"""What a lane is called: the qualified name of what was spawned, whoever wraps it on the way."""

from __future__ import annotations

import functools
import threading
from contextvars import Context
from types import CodeType, FrameType
from typing import Any

WRAPPERS = {
    "_wrap_awaitable": "awaitable",
    "TaskHandle._run_coro": "self",
    "TaskGroup._run_wrapped_task": "coro",
}
"""Coroutines that only carry another one, by qualified name, and the local variable that holds it."""

OUTSIDE_MODULES = frozenset(
    {
        "asyncio",
        "concurrent",
        "multiprocessing",
        "logging",
        "anyio",
        "opentelemetry",
        "otel_agent_replay",
        "debugpy",
        "pydevd",
        "_pydevd_bundle",
        "_pydev_bundle",
        "sentry_sdk",
        "langsmith",
        "posthog",
        "ddtrace",
        "tqdm",
        "grpc",
    }
)
"""Top-level modules whose threads serve the program or watch it: they are no lanes, and belong to no run."""


def of_coroutine(coroutine: Any) -> str:
    """Name of a task, from its coroutine."""
    for _ in range(len(WRAPPERS)):
        code, frame = _inside(coroutine)
        variable = None if code is None else WRAPPERS.get(code.co_qualname)
        if variable is None or frame is None or variable not in frame.f_locals:
            break
        inner = frame.f_locals[variable]
        coroutine = getattr(inner, "_coro", inner)
    code, _ = _inside(coroutine)
    if code is not None:
        return code.co_qualname
    return str(getattr(coroutine, "__qualname__", None) or type(coroutine).__qualname__)


def _inside(coroutine: Any) -> tuple[CodeType | None, FrameType | None]:
    for prefix in ("cr", "gi", "ag"):
        code = getattr(coroutine, f"{prefix}_code", None)
        if isinstance(code, CodeType):
            return code, getattr(coroutine, f"{prefix}_frame", None)
    return None, None


def of_function(function: Any) -> str:
    """Name of a pool item or a thread's target."""
    while True:
        if isinstance(function, functools.partial):
            # asyncio.to_thread submits `Context.run` with the function as its first argument
            carried = _runs_in_context(function.func) and function.args
            function = function.args[0] if carried else function.func
        elif isinstance(getattr(function, "__wrapped__", None), functools.partial):
            function = function.__wrapped__
        else:
            break
    name = getattr(function, "__qualname__", None)
    return str(name) if name else type(function).__qualname__


def _runs_in_context(function: Any) -> bool:
    return getattr(function, "__name__", "") == "run" and isinstance(getattr(function, "__self__", None), Context)


def in_context(function: Any) -> bool:
    """Whether this is `Context.run` with its function, as asyncio.to_thread submits it."""
    return isinstance(function, functools.partial) and _runs_in_context(function.func) and bool(function.args)


def of_thread(thread: threading.Thread) -> str:
    """Name of a thread: its target, or the `run` of its class."""
    if isinstance(thread, threading.Timer):
        return of_function(thread.function)
    target = getattr(thread, "_target", None)
    if target is not None and type(thread).run is threading.Thread.run:
        return of_function(target)
    return type(thread).run.__qualname__


def serves(thread: threading.Thread) -> bool:
    """Whether a thread is no lane: the worker of an executor, an exporter, a debugger's."""
    if getattr(thread, "is_pydev_daemon_thread", False):
        return True
    if type(thread).__module__.partition(".")[0] in OUTSIDE_MODULES:
        return True
    target = getattr(thread, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    owner = getattr(target, "__self__", None)
    modules = {getattr(target, "__module__", None) or "", type(owner).__module__ if owner is not None else ""}
    return any(module.partition(".")[0] in OUTSIDE_MODULES for module in modules)
