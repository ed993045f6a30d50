"""Answers the questions that `rewrite` put into a program's code, and looks at what else it does. One process.

Everything that is found goes to a file, a line of JSON each; nothing here changes what the program does.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib.machinery
import json
import linecache
import os
import re
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.callers import AGENT, STDLIB, caller, frames, kind_of
from otel_agent_replay.doctor import rewrite
from otel_agent_replay.doctor.findings import Finding, Leak
from otel_agent_replay.instrument.libraries.environment import who_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import CodeType, FrameType

MOST: Final = 1000
"""So many findings are written at most."""

LOOKED_AT: Final = 200
"""So many elements of a set are looked at."""

SOON: Final = 5.0
"""Seconds by which what a function gives may miss the clock and be a reading of it all the same."""

ALL: Final = "*"
"""Stands for every variable of the environment."""

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
_DEVICES = ("/dev/urandom", "/dev/random", "/dev/hwrng")
_SYSTEM = ("/proc/", "/sys/")
_CLOCKS = frozenset(("time", "clock", "clock_gettime", "clock_gettime64", "gettimeofday", "ftime", "timespec_get"))
_DRAWS = frozenset(
    (
        "rand",
        "rand_r",
        "random",
        "random_r",
        "drand48",
        "lrand48",
        "getrandom",
        "getentropy",
        "arc4random",
        "RAND_bytes",
    )
)
_SCALES = (1, 1_000, 1_000_000, 1_000_000_000)
_WEAK = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_COLLECTOR = frozenset(("get_objects", "get_referrers", "get_count", "get_stats"))
_COLLECTIONS = frozenset((list, dict, set, deque))
_CHANGES = frozenset("add append appendleft extend insert setdefault update".split())  # noqa: SIM905 (names)
_THREADS = (threading.Thread, ThreadPoolExecutor)
_EVENTS = frozenset(("open", "ctypes.dlsym"))


class Watch:
    """Looks at one program.

    Args:
        tell: is given each finding once, and each fact: a variable of the environment that is read, a thread that
            is started, with where.
    """

    def __init__(self, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._tell = tell
        self._asked: set[str] = set()
        """Names that were looked up in C libraries, and told of."""
        self._changed: dict[int, tuple[Any, int]] = {}
        """Collections, by id, and the thread that changed each first."""
        self._seen: set[tuple[str, str, str]] = set()
        self._collecting = False
        self._busy = False

    def install(self) -> None:
        """Look from now on. It cannot be undone: the process is this program's."""
        for name, answer in (
            (rewrite.OVER, self.over),
            (rewrite.HELD, self.held),
            (rewrite.TEXT, self.text),
            (rewrite.SHOWN, self.shown),
            (rewrite.CALLED, self.called),
            (rewrite.FINALISED, self.finalised),
        ):
            setattr(builtins, name, answer)
        gc.callbacks.append(self._collects)
        _read_environment(self._environment)
        sys.addaudithook(self._event)

    def found(self, kind: Leak, what: str, frame: FrameType | None, library: str = "") -> None:
        """Say it once for each place."""
        for outer in frames(frame):
            if kind_of(outer) == AGENT:
                self._found(kind, what, outer.f_code.co_filename, outer.f_lineno, library)
                return

    def _found(self, kind: Leak, what: str, file: str, line: int, library: str = "") -> None:
        where = f"{file}:{line}"
        if self._is_new(kind, where, what):
            text = linecache.getline(file, line).strip()
            self._tell("finding", Finding(kind, what, where, library, text).as_json())

    def _is_new(self, kind: str, where: str, what: str = "") -> bool:
        new = (kind, where, what) not in self._seen and len(self._seen) < MOST
        if new:
            self._seen.add((kind, where, what))
        return new

    # -- questions -----------------------------------------------------------------------------------------

    def over(self, held: Any) -> Any:
        """What is iterated over, or unpacked, or joined."""
        if type(held) in (set, frozenset) and len(held) > 1:
            kind = next((type(each) for each in _some(held) if _by_address(each)), None)
            if kind is not None:
                what = f"the order of a set of {kind.__qualname__} objects, which hash by their address, is used"
                self.found(Leak.SET_ORDER, what, caller())
        elif isinstance(held, _WEAK):
            self._dwindles(held, caller())
        return held

    def held(self, held: Any) -> Any:
        """What is counted or sorted."""
        if isinstance(held, _WEAK):
            self._dwindles(held, caller())
        return held

    def text(self, text: Any) -> Any:
        """A text that was made of values."""
        if type(text) is str and (match := _ADDRESS.search(text)) is not None:
            begin = text.rfind("<", 0, match.start()) + 1
            self._address(text[begin : match.start()].strip().removeprefix("__main__."), caller())
        return text

    def shown(self, held: Any) -> Any:
        """What is printed."""
        for each in [held, *(_some(held) if isinstance(held, list | tuple) else ())]:
            kind = type(each)
            plain = _inherited(kind, "__str__") and _inherited(kind, "__repr__")
            if plain or isinstance(each, FunctionType | MethodType):
                self._address(f"{kind.__qualname__} object", caller())
        return held

    def called(self, function: Any) -> Any:
        """What is called; a function of C that nobody records is watched."""
        if type(function) is FunctionType or type(function) is MethodType:
            return function
        if function is weakref.ref or function is weakref.finalize:
            return self._weak(function)
        if isinstance(function, type) and issubclass(function, _THREADS):
            self._thread(caller())
            return function
        if getattr(function, "__name__", "") in _CHANGES and type(held := function.__self__) in _COLLECTIONS:
            self._changes(held, caller())
            return function
        module = _module(function)
        if module == "gc" and getattr(function, "__name__", "") in _COLLECTOR:
            self.found(Leak.GARBAGE, f"gc.{function.__name__}() tells of objects that are collected at will", caller())
        if _is_foreign(function, module):
            return self._watched(function, module)
        return function

    def finalised(self) -> None:
        """A `__del__` of the program begins."""
        if self._collecting:
            self._unordered("a __del__ runs", caller())

    # -- what else it does ---------------------------------------------------------------------------------

    def _dwindles(self, held: Any, frame: FrameType | None) -> None:
        what = f"what a {type(held).__name__} still holds depends on when garbage is collected"
        self.found(Leak.GARBAGE, what, frame)

    def _address(self, what: str, frame: FrameType | None) -> None:
        self.found(Leak.ADDRESS, f"the address of a {what.removesuffix(' object')} becomes text", frame)

    def _unordered(self, what: str, frame: FrameType | None) -> None:
        self.found(Leak.GARBAGE, f"{what} when the garbage collector gets to it", frame)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        frame = caller()
        asked = (
            frame is not None
            and kind_of(frame) == AGENT
            and "collect" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        )
        self._collecting = phase == "start" and not asked

    def _changes(self, held: Any, frame: FrameType | None) -> None:
        """A collection is changed: by more than one thread, beside the main one, that is a race."""
        thread = threading.get_ident()
        if thread == threading.main_thread().ident or frame is None:
            return
        known = self._changed.get(id(held))
        if known is None:
            if len(self._changed) < MOST:
                self._changed[id(held)] = (held, thread)  # held, so that no id is used again
        elif known[1] != thread:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if self._is_new("race", where):
                line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                self._tell("race", {"what": type(held).__name__, "where": where, "line": line})

    def _thread(self, frame: FrameType | None) -> None:
        where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if self._is_new("thread", where):
            self._tell("thread", {"where": where})

    def _weak(self, make: Any) -> Any:
        """`weakref.ref` or `weakref.finalize`, whose callback tells when it runs."""

        def made(target: Any, call: Any = None, *rest: Any, **named: Any) -> Any:
            if type(call) is not FunctionType:
                return make(target, *(() if call is None else (call,)), *rest, **named)
            place = caller()
            where = None if place is None else (place.f_code.co_filename, place.f_lineno)

            def told(*args: Any, **kwargs: Any) -> Any:
                if self._collecting and where is not None:
                    kind = "a callback of weakref runs when the garbage collector gets to it"
                    self._found(Leak.GARBAGE, kind, *where)
                return call(*args, **kwargs)

            return make(target, told, *rest, **named)

        return made

    def _watched(self, function: Any, module: str) -> Callable[..., Any]:
        """The same function, with a look at what it gives."""
        frame = caller(2)
        name = getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if name not in self._asked and _is_now(result):
                what = f"{name}() reads the clock by itself, outside of Python's"
                self.found(Leak.CLOCK, what, frame, module.partition(".")[0])
            return result

        return call

    def _environment(self, name: str) -> None:
        asking = caller(2)
        frame, by_name = who_reads(asking)
        if frame is None:
            return
        if not by_name:  # a copy is what commands are given; one that is gone through item by item is looked at
            if asking is None or asking.f_code.co_name != "__iter__":
                return
            name = ALL
        if self._is_new("environment", name):
            self._tell("environment", {"name": name, "where": f"{frame.f_code.co_filename}:{frame.f_lineno}"})

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS or self._busy:
            return
        self._busy = True
        try:
            frame = caller()
            if event == "open":
                self._opened(args[0], frame)
            elif (name := str(args[1])) in _CLOCKS | _DRAWS:
                kind = Leak.CLOCK if name in _CLOCKS else Leak.ENTROPY
                self._asked.add(name)
                self.found(kind, f"{name}() of a C library is asked by itself, outside of Python's", frame, "ctypes")
        except Exception:  # noqa: BLE001 (looking never hurts the program)
            return
        finally:
            self._busy = False

    def _opened(self, path: Any, frame: FrameType | None) -> None:
        if not isinstance(path, str | bytes):
            return
        name = os.fsdecode(path)
        if name.startswith((*_DEVICES, *_SYSTEM)) and _direct(frame):
            what = "gives other bytes each time" if name in _DEVICES else "is this machine's own"
            self.found(Leak.DEVICE, f"{name} is read, which {what}", frame)


def _direct(frame: FrameType | None) -> bool:
    """Whether it is the program itself that opens a file, through no library."""
    for outer in frames(frame):
        kind = kind_of(outer)
        if kind == AGENT:
            return True
        if kind < STDLIB or kind > STDLIB:
            if outer.f_globals.get("__name__", "").startswith("otel_agent_replay."):
                continue
            return False
    return False


def _some(held: Iterable[Any]) -> Iterable[Any]:
    return (each for each, _ in zip(held, range(LOOKED_AT), strict=False))


def _by_address(held: Any) -> bool:
    """Whether the hash of a value is its address, or is made of one."""
    if isinstance(held, tuple | frozenset):
        return any(map(_by_address, _some(held)))
    return _inherited(type(held), "__hash__") or isinstance(held, BuiltinFunctionType | MethodType)


def _inherited(kind: type, method: str) -> bool:
    """Whether a class has a method as `object` has it."""
    return bool(getattr(kind, method) is getattr(object, method))


def _module(function: Any) -> str:
    if isinstance(function, ctypes._CFuncPtr):  # type: ignore[attr-defined]  # noqa: SLF001 (it has no other name)
        return "ctypes"
    name = getattr(function, "__module__", None)
    if not isinstance(name, str):
        owner = getattr(function, "__self__", function)
        name = (owner if isinstance(owner, type) else type(owner)).__module__
    return name if isinstance(name, str) else ""


def _is_foreign(function: Any, module: str) -> bool:
    """Whether it is code of C that is neither Python's nor made of Python."""
    if module == "ctypes":
        return isinstance(function, ctypes._CFuncPtr)  # type: ignore[attr-defined]  # noqa: SLF001
    top = module.partition(".")[0]
    if not top or top in sys.stdlib_module_names or top in ("builtins", "otel_agent_replay"):
        return False
    if isinstance(function, type):
        return not any(
            "__init__" in vars(each) and type(vars(each)["__init__"]) is FunctionType for each in function.__mro__
        ) and _is_compiled(function.__module__)
    return isinstance(function, BuiltinFunctionType) or type(function).__name__ == "cython_function_or_method"


def _is_compiled(module: str) -> bool:
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None) or ""
    return module == "numpy" or file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def _is_now(value: Any) -> bool:
    """Whether a value is what a clock says just now."""
    if type(value).__name__ == "datetime64":
        with suppress(Exception):
            value = value.astype("datetime64[ms]").astype(float)
    if isinstance(value, datetime):
        with suppress(Exception):
            here = value if value.tzinfo is not None else value.astimezone()
            return abs((here - datetime.fromtimestamp(real.time_ns() / 1e9, UTC)).total_seconds()) < SOON
        return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    now, running = real.time_ns() / 1e9, real.monotonic()
    if any(abs(value / scale - now) < SOON for scale in _SCALES):
        return True
    exact = _SCALES if isinstance(value, float) else _SCALES[1:]
    return running > 60 and any(abs(value / scale - running) < 0.05 for scale in exact)


def _read_environment(tell: Callable[[str], None]) -> None:
    """Let it be told what is read of the environment, by name."""
    kind = type(os.environ)
    original = kind.__getitem__

    def __getitem__(self: Any, key: Any) -> Any:  # noqa: N807 (it stands for one)
        if isinstance(key, str):
            tell(key)
        return original(self, key)

    kind.__getitem__ = __getitem__  # type: ignore[method-assign]


def to_file(path: Path) -> Callable[[str, dict[str, Any]], None]:
    """Writes what is told into a file as it comes, a JSON object a line."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    write = os.write

    def tell(about: str, what: dict[str, Any]) -> None:
        write(descriptor, (json.dumps({"about": about, **what}) + "\n").encode())

    return tell


def compiled(source: bytes, filename: str) -> CodeType:
    """The code of a file with the questions in it; as it is where they cannot be put in."""
    try:
        return compile(rewrite.rewritten(source, filename), filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return compile(source, filename, "exec", dont_inherit=True)
