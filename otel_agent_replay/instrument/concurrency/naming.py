"""What a lane is called: the qualified name of what was spawned, whoever wraps it on the way."""

from __future__ import annotations

import functools
import sys
import threading
from contextvars import Context
from types import CodeType, FrameType, ModuleType
from typing import Any

from otel_agent_replay.boundary import callers

WRAPPERS = {
    "_wrap_awaitable": "awaitable",
    "TaskHandle._run_coro": "self",
    "TaskGroup._run_wrapped_task": "coro",
}
"""Coroutines that only carry another one, by qualified name, and the local variable that holds it."""

UNLANED = frozenset({"asyncio", "concurrent", "multiprocessing", "logging", "anyio", "grpc"})
"""Top-level modules whose threads serve the program, such as the workers of an executor: they are no lanes."""


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


def of_function(function: Any, *args: Any) -> str:
    """Name of a pool item or a thread's target, which is to be called with `args`."""
    while True:
        if args and _runs_in_context(function):
            function, args = args[0], args[1:]
        elif isinstance(function, functools.partial):  # asyncio.to_thread submits one of `Context.run`
            function, args = function.func, (*function.args, *args)
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
        return of_function(thread.function, *thread.args)
    target = getattr(thread, "_target", None)
    if target is not None and type(thread).run is threading.Thread.run:
        return of_function(target, *getattr(thread, "_args", ()))
    return type(thread).run.__qualname__


def serves(thread: threading.Thread) -> bool:
    """Whether a thread is no lane, but the worker of an executor, or the like."""
    return not UNLANED.isdisjoint(_packages(thread))


def outside(thread: threading.Thread) -> bool:
    """Whether a thread belongs to no run: a debugger's, an exporter's."""
    if getattr(thread, "is_pydev_daemon_thread", False):
        return True
    modules = (sys.modules.get(name) for name in _modules(thread))
    return any(callers.kind_of_module(module) == callers.OUTSIDE or own(module) for module in modules if module)


def own(module: ModuleType) -> bool:
    """Whether a module is ours, and no program of ours."""
    return module.__name__.startswith("otel_agent_replay.") and callers.kind_of_module(module) != callers.AGENT


def _packages(thread: threading.Thread) -> set[str]:
    return {name.partition(".")[0] for name in _modules(thread)}


def _modules(thread: threading.Thread) -> set[str]:
    target = getattr(thread, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    owner = getattr(target, "__self__", None)
    names = {type(thread).__module__, getattr(target, "__module__", None) or ""}
    if owner is not None:
        names.add(type(owner).__module__)
    return names - {"threading", ""}
