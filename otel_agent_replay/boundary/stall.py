"""Finds threads that are blocked where no patch can see it: one sampler for the process.

A gate is attended while something waits in it for a thread that has not settled. Each look reads what the
operating system knows of every thread of this process: its state, and how long it has run so far. A thread
that was asleep in two looks and has not run in between has been blocked, not merely without the GIL: the
sampler gave that up meanwhile. One that was woken and has no processor yet is not asleep. Whatever must not
be mistaken asks for more looks than two.

A look is over when something is made of it, and threads have run since. So it tells nothing of a thread that
was woken after the look began: looks are numbered, and whoever is woken is marked with the number of the latest.
Nor does a look tell for how long a thread would sleep, where another one wants to run and has no processor.

While a thread stands in a debugger it is not blocked, however long that lasts.
"""

# ruff: noqa: SLF001 (it looks into what it patches)

from __future__ import annotations

import errno
import os
import sys
import sysconfig
import threading
from _thread import allocate_lock, start_new_thread
from itertools import count
from pathlib import Path
from threading import RLock, get_ident
from typing import TYPE_CHECKING, ClassVar

from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.shield import fault
from otel_agent_replay.recording import tracebacks

if TYPE_CHECKING:
    from types import FrameType

    from otel_agent_replay.boundary.delivery import Delivery

FASTEST = 0.0001
"""Seconds between two looks, at first."""

SLOWEST = 0.02
"""Seconds before the next look after one that failed."""

CHARGED = 0.01
"""Seconds after which a thread that runs has been charged with it by the operating system."""

UNKNOWN = "?"
"""Stands for the state of a thread that cannot be read."""

GONE = 1 << 30
"""Looks since which a thread that has ended has been asleep."""

DEBUGGERS = frozenset({"bdb", "pdb", "pydevd", "debugpy", "ipdb", "pudb", "_pydevd_bundle", "_pydev_bundle"})
"""Top-level modules of debuggers."""

_TASKS = Path("/proc/self/task")
_USER, _SYSTEM = 10, 11
"""Which of the numbers in a thread's `stat`, after its state, are the times that it has run, in ticks."""
_TICK = 10_000_000
"""Nanoseconds of a tick."""

_numbers = count(1)


class Look:
    """What is known of the threads of this process, over several looks."""

    latest: ClassVar[int] = 0
    """Number of the look that began last in this process."""

    def __init__(self) -> None:
        self.available = _TASKS.is_dir()
        self.started = False
        self.number = 0
        """Of the look that began last here."""
        self.began = 0.0
        """When it did, in seconds of the real monotonic clock."""
        self.still = 0
        """Looks in a row in which no thread but this one ran."""
        self.delta: dict[int, int] = {}
        """Nanoseconds that a thread has run since the previous look, by the operating system's id."""
        self._ran: dict[int, int] = {}
        self._asleep: dict[int, int] = {}

    def again(self) -> None:
        """Look."""
        self.number = Look.latest = next(_numbers)
        previous, self.began = self.began, real.monotonic()
        own = threading.get_native_id()
        threads = self._threads()
        quiet, starving = threads is not None, False
        ran: dict[int, int] = {}
        asleep: dict[int, int] = {}
        for native in threads or ():
            if native == own:
                continue
            state, runtime = _read(native)
            ran[native] = runtime
            before = self._ran.get(native)
            self.delta[native] = 0 if before is None else max(0, runtime - before)
            if state == "S" and runtime == before:
                asleep[native] = self._asleep.get(native, 0) + 1
            else:
                asleep[native] = 0
                quiet = False
                starving = starving or (state == "R" and runtime == before)
        if starving and self.began - previous >= CHARGED:
            asleep = {native: looks and looks - 1 for native, looks in asleep.items()}  # they may wait for that one
        self._ran, self._asleep = ran, asleep
        self.still = self.still + 1 if quiet else 0

    def asleep(self, native: int) -> int:
        """Looks in a row since which a thread has been asleep; many where it has ended."""
        if not self.available:
            return self.still
        found = self._asleep.get(native)
        if found is None:  # it has begun since the look, or is no more
            return 0 if (_TASKS / str(native)).exists() else GONE
        return found

    def _threads(self) -> list[int] | None:
        """The threads of this process; None where they cannot be listed, as when no more files may be opened."""
        if not self.available:
            return []
        try:
            return [int(path.name) for path in _TASKS.iterdir()]
        except OSError:
            return None


def _read(native: int) -> tuple[str, int]:
    """State letter of a thread, and nanoseconds that it has run; a thread that is gone sleeps for good.

    The letter is UNKNOWN where it cannot be read, as when no more files may be opened.
    """
    try:
        state, *numbers = _content(f"/proc/self/task/{native}/stat").rpartition(b")")[2].split()
        try:
            ran = int(_content(f"/proc/self/task/{native}/schedstat").split()[0])
        except FileNotFoundError:  # a kernel that does not count so finely
            ran = (int(numbers[_USER]) + int(numbers[_SYSTEM])) * _TICK
        return state.decode("ascii"), ran
    except OSError as error:
        return ("S", 0) if error.errno in (errno.ENOENT, errno.ESRCH) else (UNKNOWN, 0)
    except (IndexError, ValueError):
        return UNKNOWN, 0


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 400)
    finally:
        os.close(file)


class _Sampler:
    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin anew: in a forked child the sampler's thread is not there."""
        self.lock = RLock()  # a finaliser may come back here
        self.gates: set[Delivery] = set()
        self.awake = allocate_lock()
        self.awake.acquire()
        self.running = False
        self.ident = 0
        self.pace = FASTEST

    def attend(self, gate: Delivery) -> None:
        with self.lock:
            if gate in self.gates:
                return
            self.gates.add(gate)
            self.pace = FASTEST
            if not self.running:
                self.running = True
                start_new_thread(self.run, ())
            elif self.awake.locked():
                self.awake.release()

    def run(self) -> None:
        from otel_agent_replay.boundary.lanes import LANE, OUTSIDE  # noqa: PLC0415 (a cycle)

        self.ident = get_ident()
        LANE.set(OUTSIDE)
        while True:
            try:
                self._watch()
            except Exception as error:  # noqa: BLE001 (without a sampler, whatever waits would wait for ever)
                _failed(error)
            else:
                self.awake.acquire()

    def _watch(self) -> None:
        """Look at the threads as long as a gate wants it."""
        look, progress = Look(), -1
        while True:
            real.sleep(self.pace)
            with self.lock:
                gates = tuple(self.gates)
            if not gates:
                return
            moved = sum(gate.grants for gate in gates)
            if moved != progress:
                progress, look = moved, Look()
                self.pace = max(FASTEST, min(gate.pace for gate in gates))
                if self.pace > FASTEST:
                    continue
            look.again()
            for gate in gates:
                if not self._tick(gate, look):
                    with self.lock:
                        self.gates.discard(gate)
            slowest = min(gate.slowest for gate in gates)
            self.pace = min(slowest, self.pace * 1.5) if look.started else FASTEST
            look.started = True

    def _tick(self, gate: Delivery, look: Look) -> bool:
        try:
            return gate.tick(look)
        except Exception as error:  # noqa: BLE001 (the sampler serves other runs too)
            _failed(error)
            return True


def _failed(error: Exception) -> None:
    """Say so, and go on a little later."""
    try:
        fault("watching threads", error)
    except Exception:  # noqa: BLE001 (it is raised where faults are to be seen, and there is nobody to catch it here)
        sys.stderr.write("".join([*tracebacks.listed(error.__traceback__), f"{type(error).__name__}: {error}\n"]))
    real.sleep(SLOWEST)


_sampler = _Sampler()


def attend(gate: Delivery) -> None:
    """Look at the threads until `gate.tick` says that it is enough."""
    if gate not in _sampler.gates:
        _sampler.attend(gate)


def threads() -> int:
    """How many threads run Python code, our sampler not counted once it runs."""
    frames = sys._current_frames()
    return len(frames) - (_sampler.ident in frames)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sampler.forked)


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = str(Path(__file__).parents[1])


def stack(ident: int) -> list[FrameType]:
    """Frames of a thread, innermost first."""
    frames = []
    frame = sys._current_frames().get(ident)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def in_debugger(ident: int) -> bool:
    """Whether a thread stands in a debugger: nearer to where it is than any code of the program."""
    for frame in stack(ident):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in DEBUGGERS:
            return True
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, _OWN, "<")):
            return False
    return False


def describe(ident: int, deepest: int = 8) -> list[str]:
    """Where a thread is, innermost last, one line a frame, our own frames left out."""
    frames = [frame for frame in stack(ident) if not frame.f_code.co_filename.startswith(_OWN)]
    return [place(frame) for frame in reversed(frames[:deepest])]


def place(frame: FrameType) -> str:
    """One line that says where a frame is."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
