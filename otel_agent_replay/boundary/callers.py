"""Who reads: whether a reading of the clock or of entropy belongs to the program, by the code that makes it.

Only the agent's own code and its libraries' business reads are recorded. Event loops, timeouts, transports,
logging, telemetry, debuggers and test tools keep the real clock: they would hang, expire or drift on a virtual
one. It is decided by the code that calls, once for each code object, and never by whole stacks: whatever an
instrumentation wraps would fall out of the recording.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_agent_replay.recording.tracebacks import OWN, OWN_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType, ModuleType

AGENT: Final = 0
"""The program's own code."""
LIBRARY: Final = 1
"""A library that the program uses, or code that a library generated."""
DISPATCH: Final = 2
"""Calls what the program handed over (a thread's target, a pool's item): stands for the program."""
SEEN_THROUGH: Final = 3
"""A standard module whose clock ends up in what the program gets: its caller reads."""
STDLIB: Final = 4
"""Any other standard module: keeps the real clock; entropy is read by its caller."""
TRANSPORT: Final = 5
"""Clients, pools and drivers: keep the real clock for their timeouts and expiries."""
EXCLUDED: Final = 6
"""What the user excluded: keeps its clock, its entropy and its sleeps."""
OUTSIDE: Final = 7
"""Telemetry, debuggers, servers, test tools: stand outside of every boundary."""
BASE: Final = 8
"""What a program runs upon (event loops, launchers, this package): outside too, and a strand of control begins here."""

FARTHEST: Final = 64
"""So many frames are looked at for the one that reads."""

_BASE_NAMES = """
asyncio bdb cProfile cmd code codeop concurrent doctest importlib linecache logging multiprocessing pdb profile pydoc
queue runpy selectors socket socketserver ssl subprocess threading trace traceback unittest warnings
"""
_SEEN_THROUGH_FILES = """
email/message.py email/generator.py email/utils.py gzip.py sched.py tarfile.py timeit.py zipfile.py zipfile/__init__.py
"""
_DEBUGGER_NAMES = """
debugpy pydevd _pydevd_bundle _pydevd_frame_eval _pydev_bundle _pydev_runfiles pydev_ipython ipdb pudb
"""
_OUTSIDE_NAMES = {
    "telemetry and crash reporters": """
        ddtrace elasticapm langfuse langsmith logfire newrelic openinference opentelemetry posthog rollbar sentry_sdk
    """,
    "test tools": """
        _pytest coverage execnet freezegun hypothesis pluggy pytest pytest_asyncio pytest_cov pytest_randomly
        pytest_timeout time_machine vcr xdist
    """,
    "servers, loops and shells, which run before, between and after the runs": """
        IPython curio daphne eventlet gevent granian gunicorn hypercorn ipykernel jupyter_client jupyter_core
        prompt_toolkit tornado traitlets trio uvicorn uvloop waitress watchdog watchfiles zmq
    """,
    "what a person looks at while it runs": "alive_progress rich tqdm",
    "masks each frame with random bytes that nobody sees": "websockets wsproto",
}
_PRINTING = frozenset(("rich.console",))
"""Modules of those that print for the program: `Console.log` says when it is, which is part of the output."""
_TRANSPORT_NAMES = """
aio_pika aiobotocore aiohttp aiokafka aiomysql aiormq aiosignal amqp anthropic anyio asyncpg boto3 botocore cerebras
certifi confluent_kafka groq grpc h11 h2 hpack httpcore httpcore2 httpx httpx2 kafka kombu motor msal openai pika
psycopg psycopg2 psycopg_pool pymongo pymysql redis requests s3transfer sniffio urllib3 werkzeug
"""
_TRANSPORT_MODULES = ("azure.core", "azure.identity", "google.api_core", "google.auth", "sqlalchemy.pool")
_DISPATCH = frozenset(
    {
        ("asyncio/events.py", "Handle._run"),
        ("concurrent/futures/process.py", "_process_worker"),
        ("concurrent/futures/thread.py", "WorkerContext.run"),
        ("concurrent/futures/thread.py", "_WorkItem.run"),
        ("multiprocessing/pool.py", "mapstar"),
        ("multiprocessing/pool.py", "worker"),
        ("multiprocessing/process.py", "BaseProcess.run"),
        ("threading.py", "Thread.run"),
        ("threading.py", "Timer.run"),
    }
)
DEBUGGERS = frozenset(_DEBUGGER_NAMES.split())
"""Packages of debuggers that are no part of Python."""
TELEMETRY = frozenset(_OUTSIDE_NAMES["telemetry and crash reporters"].split())
"""Packages that tell others what the program does."""
BASES = frozenset(_BASE_NAMES.split())
"""Standard modules that a program runs upon: these keep the real clock whatever the user says."""
_SEEN_THROUGH = frozenset(_SEEN_THROUGH_FILES.split())
_OUTSIDE = DEBUGGERS.union(*(names.split() for names in _OUTSIDE_NAMES.values()))
_TRANSPORT = frozenset(_TRANSPORT_NAMES.split())

_SEPARATOR = os.sep
_STDLIB = str(Path(os.__file__).parent) + _SEPARATOR
_PACKAGES = (f"{_SEPARATOR}site-packages{_SEPARATOR}", f"{_SEPARATOR}dist-packages{_SEPARATOR}")

KINDS: dict[int, int] = {}
"""What each code object is, by its id; `kind_of` fills it. Here so that a hot path can look by itself."""

_alive: list[CodeType] = []
"""The code objects above, kept so that no id is used again."""

_MOST_CODE = 100_000
"""Code beyond this is judged each time: only a program that makes code without end has so much."""


def kind_of(frame: FrameType) -> int:
    """Which of the kinds above the code in `frame` is."""
    code = frame.f_code
    kind = KINDS.get(id(code))
    if kind is None:
        kind = _judge(code, frame.f_globals.get("__name__"))
        if len(_alive) < _MOST_CODE:
            _alive.append(code)
            KINDS[id(code)] = kind
    return kind


def clock_reader(frame: FrameType) -> FrameType | None:
    """The frame whose reading of the clock this is; None where it is nobody's of the program."""
    for outer in frames(frame):
        kind = kind_of(outer)
        if kind <= DISPATCH:
            return outer
        if kind != SEEN_THROUGH:
            return None
    return None


def entropy_reader(frame: FrameType) -> FrameType | None:
    """The frame whose reading of entropy this is: the nearest outside of the standard library."""
    outer: FrameType | None = frame
    for _ in range(FARTHEST):
        if outer is None:
            break
        kind = KINDS.get(id(outer.f_code))
        if kind is None:
            kind = kind_of(outer)
        if kind <= DISPATCH or kind == TRANSPORT:
            return outer
        if kind >= EXCLUDED:
            break
        outer = outer.f_back
    return None


def timeout_reader(frame: FrameType) -> FrameType:
    """Whose reading of the clock it is that a timeout is compared with.

    The nearest code that is no loop's, queue's or lock's; where there is none, `frame` itself.
    """
    for outer in frames(frame):
        kind = kind_of(outer)
        if kind <= LIBRARY:
            return outer
        if kind == DISPATCH:
            break
    return frame


def sleeps_really(frame: FrameType) -> bool:
    """Whether a sleep of this code takes its time in a replay too."""
    return kind_of(frame) in (STDLIB, EXCLUDED, OUTSIDE, BASE)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """`frame` and those that called it, innermost first, as far as anybody looks."""

    def outwards() -> Iterator[FrameType]:
        outer = frame
        while outer is not None:
            yield outer
            outer = outer.f_back

    return islice(outwards(), FARTHEST)


def caller(depth: int = 1) -> FrameType | None:
    """The frame that called the function that asks; None where C code called it from no frame at all."""
    try:
        return sys._getframe(depth + 1)  # noqa: SLF001 (there is no other way to it)
    except ValueError:
        return None


def kind_of_module(module: ModuleType) -> int:
    """Which of the kinds above the code of a module is, as a whole."""
    file = getattr(module, "__file__", None)
    return _choice_of(module.__name__, _judge_file(file, module.__name__, "")) if isinstance(file, str) else STDLIB


def choose(include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
    """Have modules, and all below them, read for the program (as its libraries do) or keep the real clock and entropy.

    The longest name that fits a module decides. Names in `BASES` have no effect.

    Args:
        include: dotted names of modules whose readings count.
        exclude: of those whose readings do not.
    """
    chosen = {**dict.fromkeys(include, LIBRARY), **dict.fromkeys(exclude, EXCLUDED)}
    if chosen != _chosen:
        _chosen.clear()
        _chosen.update(chosen)
        for forget in (KINDS.clear, *forgetting):
            forget()


_chosen: dict[str, int] = {}

forgetting: list[Callable[[], None]] = []
"""What else depends on what code is, and has to be forgotten where that changes."""


@atexit.register
def _let_go() -> None:
    """The process ends: code that is kept beyond that outlives what tells of its end, as torch's compiler does."""
    for forget in (KINDS.clear, _alive.clear, *forgetting):
        forget()


def _choice_of(module: str, kind: int) -> int:
    """What a module is by the user's choice, where `kind` is what it is without one."""
    if not _chosen or kind == BASE or (name := module) == "":
        return kind
    while name not in _chosen:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return kind
    return min(kind, LIBRARY) if _chosen[name] == LIBRARY else EXCLUDED


def _judge(code: CodeType, module: object) -> int:
    name = module if isinstance(module, str) else ""
    if code.co_filename.startswith("<"):
        return _choice_of(name, _judge_unfiled(code, name))
    return _choice_of(name, _judge_file(code.co_filename, name, code.co_qualname))


def _judge_file(filename: str, name: str, qualname: str) -> int:
    if filename.startswith(OWN):
        return AGENT if filename.startswith(OWN_PROGRAMS) else BASE
    for folder in _PACKAGES:
        _, found, path = filename.rpartition(folder)
        if found:
            kind = _judge_package(path.removesuffix(".py").replace(_SEPARATOR, "."))
            ours = kind == LIBRARY and path.removesuffix(".py").partition(_SEPARATOR)[0] in _local(
                filename[: -len(path)]
            )
            return AGENT if ours else kind
    if filename.startswith(_STDLIB):
        return _judge_standard(filename[len(_STDLIB) :].replace(_SEPARATOR, "/"), qualname)
    return OUTSIDE if name.partition(".")[0] in DEBUGGERS else AGENT


@cache
def _local(folder: str) -> frozenset[str]:
    """What was installed here from a folder or file of this machine: the program itself, as a rule.

    Args:
        folder: where packages are installed.
    """
    names: set[str] = set()
    for origin in Path(folder).glob("*.dist-info/direct_url.json"):
        with suppress(OSError, ValueError):
            if b'"file:' not in origin.read_bytes():
                continue
            for line in (origin.parent / "RECORD").read_text("utf-8").splitlines():
                path = line.partition(",")[0].strip('"')
                name = path.partition("/")[0]
                if path.endswith(".py") and not name.endswith((".dist-info", ".data")) and name != "..":
                    names.add(name.removesuffix(".py"))
    return frozenset(names)


def _judge_unfiled(code: CodeType, module: str) -> int:
    if code.co_filename.startswith("<frozen "):
        return _judge_standard(code.co_filename[len("<frozen ") : -1].replace(".", "/") + ".py", code.co_qualname)
    generated = code.co_name.startswith("__") and code.co_name.endswith("__")  # as a dataclass's __init__ is
    return AGENT if module == "__main__" and not generated else LIBRARY


def _judge_standard(path: str, qualname: str) -> int:
    if (path, qualname) in _DISPATCH:
        return DISPATCH
    if path in _SEEN_THROUGH:
        return SEEN_THROUGH
    return BASE if path.partition("/")[0].removesuffix(".py") in BASES else STDLIB


def _judge_package(module: str) -> int:
    top = module.partition(".")[0]
    if top in _OUTSIDE and module not in _PRINTING:
        return OUTSIDE
    if top in _TRANSPORT or module.startswith(_TRANSPORT_MODULES):
        return TRANSPORT
    return LIBRARY
