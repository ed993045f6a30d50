"""What the looks at the threads prove, and what they do not. The test looks itself; no sampler comes in between."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from otel_agent_replay.boundary import lanes, real, stall
from otel_agent_replay.boundary.completions import NEVER, Completion, State, WaitTurn
from otel_agent_replay.boundary.gate import Gate
from otel_agent_replay.boundary.regate import BLOCKED_ALONE, PATIENCE, SURE, ReplayGate
from otel_agent_replay.boundary.stall import GONE, Look
from otel_agent_replay.instrument.concurrency.waits import block
from tests.concurrency.conftest import PATIENCE as LONGEST
from tests.concurrency.tiny import Replayer, pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_agent_replay.boundary.delivery import Delivery
    from otel_agent_replay.boundary.lanes import Lane
    from otel_agent_replay.boundary.parties import Party


class Replaying(ReplayGate):
    """At which only the test looks. Place 0 is never asked for."""

    def __init__(self) -> None:
        super().__init__(lambda *_: NEVER)

    def _attend(self) -> None:
        """The test does."""


class Recording(Gate):
    """At which only the test looks."""

    def __init__(self) -> None:
        super().__init__(strict=True, log=lambda *_: None)

    def _attend(self) -> None:
        """The test does."""


def session_of(gate: Delivery) -> Any:
    session = Replayer({"crossings": [], "events": [], "readings": {}})
    session.order = gate  # type: ignore[assignment]
    return session


class Thread:
    """One of the program: waits to be notified, then for a lock that no gate knows of."""

    def __init__(self, gate: Delivery, lane: Lane) -> None:
        self.turn = WaitTurn(gate, lane, "wait", -1, NEVER)
        self.lock = allocate_lock()
        self.lock.acquire()
        self._gate, self._lane = gate, lane
        self._thread = threading.Thread(target=contextvars.Context().run, args=(self._run,), daemon=True)
        self._thread.start()
        until(lambda: bool(gate.parties) and self.party.quiet)

    def _run(self) -> None:
        lanes.LANE.set(lanes.OUTSIDE)
        block(self._gate, self._lane, self.turn, None)
        self.lock.acquire()

    @property
    def party(self) -> Party:
        return next(iter(self._gate.parties.values()))

    def end(self) -> None:
        self.lock.release()
        self._thread.join(LONGEST)


def until(happened: Callable[[], bool]) -> None:
    end = real.monotonic() + LONGEST
    while not happened():
        assert real.monotonic() < end
        real.sleep(0.001)


class Own(Look):
    """At the threads that a test has begun: others of this process, which other tests have left, may run for ever."""

    others: ClassVar[frozenset[int]] = frozenset()

    def _threads(self) -> list[int] | None:
        found = super()._threads()
        return None if found is None else [native for native in found if native not in self.others]


@pytest.fixture(autouse=True)
def _others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "others", frozenset(Look()._threads() or ()) - {threading.get_native_id()})


def looked(look: Look, times: int = BLOCKED_ALONE + 5) -> Look:
    """Look until everything has been still for long enough to prove anything."""

    def again() -> bool:
        look.again()
        return look.still >= times

    until(again)
    return look


def waiting(gate: ReplayGate, lane: Lane) -> Completion:
    """A completion that is there before its turn: place 0 is still to come."""
    completion = Completion(gate, lane, "call", 0, 1)
    completion.state = State.QUEUED
    completion.wake = lambda: None
    gate.expect(completion)
    return completion


def test_a_thread_that_was_woken_after_the_look_is_not_blocked() -> None:
    gate = Replaying()
    session = session_of(gate)
    thread = Thread(gate, session.root.spawn("thread", "worker"))
    completion = waiting(gate, session.root)
    look = looked(Own())
    thread.turn.release()
    assert gate.tick(look)
    assert thread.party in gate.busy
    assert (gate.skipped, completion.state) == ([], State.QUEUED)
    until(lambda: look.again() or not gate.tick(look) or bool(gate.skipped))  # type: ignore[func-returns-value]
    assert (gate.skipped, completion.state) == ([0], State.GRANTED)
    assert look.number - thread.party.since > SURE
    thread.end()


def test_recording_holds_back_for_a_thread_that_was_woken_after_the_look() -> None:
    gate = Recording()
    session = session_of(gate)
    thread = Thread(gate, session.root.spawn("thread", "worker"))
    look = looked(Own())
    thread.turn.release()
    completion = Completion(gate, session.root, "call", 0)
    completion.party, completion.wake = thread.party, lambda: None
    with gate.lock:
        gate._enqueue(completion)
    assert gate.tick(look)
    assert thread.party in gate.busy
    assert completion.state is not State.GRANTED
    until(lambda: look.again() or not gate.tick(look))  # type: ignore[func-returns-value]
    assert completion.state is State.GRANTED
    thread.end()


def test_patience_with_the_world_is_what_was_seen_to_pass() -> None:
    """The thread that looks may itself wait for a processor: what it saw before tells nothing of that time."""
    gate = Replaying()
    session = session_of(gate)

    def run() -> None:
        lanes.LANE.set(session.root)
        asyncio.run(pause(0.5))

    thread = threading.Thread(target=contextvars.Context().run, args=(run,), daemon=True)
    thread.start()
    until(lambda: bool(gate.parties) and all(party.quiet for party in gate.parties.values()))
    completion = waiting(gate, session.root)
    look = looked(Own(), SURE)
    for _ in range(3):
        assert gate.tick(look)
        real.sleep(2 * PATIENCE)
    assert (gate.skipped, completion.state) == ([], State.QUEUED)
    looked(look, look.still + 1)
    gate.tick(look)
    assert gate.skipped == [0]
    thread.join(LONGEST)


def test_what_was_performed_is_over_and_its_thread_busy_at_once() -> None:
    gate = Replaying()
    session = session_of(gate)
    lane = session.root.spawn("call", "tool")
    lane.beneath = Any
    seen: list[bool] = []

    def come_between() -> None:
        seen.append(gate.lock.acquire(blocking=False))
        if seen[-1]:
            gate.lock.release()

    def woken(party: Party) -> None:
        other = threading.Thread(target=come_between)
        other.start()
        other.join(LONGEST)
        ReplayGate.woken(gate, party)

    gate.away(lane, blocks=True)
    assert not gate.busy
    gate.woken = woken  # type: ignore[method-assign]
    gate.back(lane, blocks=True)
    assert seen == [False], "another thread could come between"
    assert gate.busy == set(gate.parties.values())
    gate.leave(gate.here(lane))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[str, int]]:
    """What the operating system tells of each thread."""
    threads: dict[int, tuple[str, int]] = {}
    monkeypatch.setattr(Look, "_threads", lambda _: list(threads))
    monkeypatch.setattr(stall, "_read", threads.__getitem__)
    monkeypatch.setattr(stall, "CHARGED", 0.0)
    return threads


def test_a_thread_that_waits_for_a_processor_may_be_what_others_wait_for(told: dict[int, tuple[str, int]]) -> None:
    look = Look()
    look.available = True
    told |= {1: ("S", 5), 2: ("R", 7)}
    for _ in range(100):
        look.again()
    assert (look.still, look.asleep(1), look.asleep(2)) == (0, 0, 0)
    for ran in range(10):
        told[2] = "R", 8 + ran
        look.again()
    assert (look.still, look.asleep(1)) == (0, 10)
    for _ in range(100):
        look.again()
    assert look.asleep(1) == 10
    told[2] = "S", 17
    look.again()
    assert (look.still, look.asleep(1), look.asleep(2)) == (1, 11, 1)


def test_a_thread_that_has_not_been_charged_yet_runs(
    told: dict[int, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a processor: its time is added up now and then only."""
    monkeypatch.setattr(stall, "CHARGED", 1000.0)
    look = Look()
    told |= {1: ("S", 5), 2: ("R", 7)}
    for _ in range(11):
        look.again()
    assert (look.still, look.asleep(1)) == (0, 10)


def test_a_thread_that_cannot_be_read_is_not_asleep(told: dict[int, tuple[str, int]]) -> None:
    look = Look()
    told |= {1: (stall.UNKNOWN, 0)}
    for _ in range(10):
        look.again()
    assert (look.still, look.asleep(1)) == (0, 0)


NO_FILES = """
import resource, threading, time
from otel_agent_replay.boundary.stall import Look
lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=lock.acquire, daemon=True)
thread.start()
look = Look()
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
for _ in range(10):
    look.again()
print(look.still, look.asleep(thread.native_id), look.asleep(1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from files of Linux")
def test_where_no_more_files_may_be_opened_nobody_is_asleep(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_FILES], capture_output=True, text=True, timeout=LONGEST)
    assert done.stdout.split() == ["0", "0", str(GONE)], done.stderr


def test_threads_are_all_but_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken off before it has begun."""
    monkeypatch.setattr(stall._sampler, "running", True)
    monkeypatch.setattr(stall._sampler, "ident", 0)
    assert stall.threads() == len(sys._current_frames())
    monkeypatch.setattr(stall._sampler, "ident", threading.get_ident())
    assert stall.threads() == len(sys._current_frames()) - 1


class Counting(Gate):
    """Wants a few looks, one of which fails."""

    def __init__(self) -> None:
        super().__init__(strict=True, log=lambda *_: None)
        self.looked = 0
        self.enough = threading.Event()

    def tick(self, look: Look) -> bool:
        self.looked += 1
        if self.looked == 2:
            raise RuntimeError("a look at a gate that fails")
        if self.looked >= 4:
            self.enough.set()
        return self.looked < 4


@pytest.mark.parametrize("raises", [True, False], ids=["raising faults", "swallowing faults"])
def test_looks_that_fail_are_followed_by_others(monkeypatch, capfd, raises: bool) -> None:
    """Without its sampler, whatever waits in a process would wait for ever."""
    if raises:
        monkeypatch.setenv("OTEL_AGENT_REPLAY_RAISE", "1")
    else:
        monkeypatch.delenv("OTEL_AGENT_REPLAY_RAISE", raising=False)
    failures = iter([RuntimeError("a look that fails"), OSError("another")])
    original = Look.again

    def again(self: Look) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        original(self)

    monkeypatch.setattr(Look, "again", again)
    gate = Counting()
    stall.attend(gate)
    assert gate.enough.wait(30)
    if raises:
        assert "a look that fails" in capfd.readouterr().err
