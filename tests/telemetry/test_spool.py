"""The spool: what was written is there, whatever becomes of the process, the disk or the descriptor."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.recording import frames
from otel_agent_replay.recording.frames import Frame
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.telemetry.behind import WriteBehind
from otel_agent_replay.telemetry.spool import SpoolWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 30
"""Seconds that nothing here may take."""


def frame(number: int, size: int = 50, thread: int = 0) -> Frame:
    attributes = {"agent_replay.payload": "x" * size, "thread": thread, "number": number}
    return Frame(FrameKind.CROSSING, 1, number + 1, 0, f"n{number}", 5, 6, dict(attributes))


def encoded(number: int, size: int = 50, thread: int = 0) -> list[bytes]:
    return frames.encode(frame(number, size, thread))


def never() -> None:
    raise AssertionError("this write must not fail")


def numbers(path: Path) -> list[int]:
    found = list(frames.scan(path.read_bytes()))
    assert all(isinstance(one, Frame) for one in found), found
    return [int(str(one.attributes["number"])) for one in found if isinstance(one, Frame)]


def only(directory: Path) -> Path:
    (path,) = spool_files(directory)
    return path


def spool_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.spool"))


@pytest.fixture
def faults() -> list[str]:
    return []


@pytest.fixture
def writer(tmp_path: Path, faults: list[str]) -> Iterator[SpoolWriter]:
    made = SpoolWriter(tmp_path / "home" / "spool", faults.append)
    yield made
    made.close()


def test_the_file_is_made_at_the_first_write_for_this_user_only(writer: SpoolWriter) -> None:
    assert not writer.directory.exists()
    assert writer.path is None
    before = time.time_ns()
    writer.write(encoded(0), never)
    writer.write(encoded(1), never)
    path = only(writer.directory)
    assert path == writer.path
    began, pid, _ = path.name.split("-")
    assert before <= int(began) <= time.time_ns()
    assert int(pid) == os.getpid()
    assert path.stat().st_mode & 0o777 == 0o600
    assert writer.directory.stat().st_mode & 0o777 == 0o700
    assert writer.directory.parent.stat().st_mode & 0o777 == 0o700
    assert numbers(path) == [0, 1]
    assert list(writer.directory.iterdir()) == [path]


def test_more_parts_than_one_writev_takes(writer: SpoolWriter) -> None:
    writer.write([part for number in range(3000) for part in encoded(number)], never)
    assert numbers(only(writer.directory)) == list(range(3000))


def test_readers_see_whether_the_writer_lives(writer: SpoolWriter) -> None:
    writer.write(encoded(0), never)
    path = only(writer.directory)
    assert is_held(path)
    assert is_held(path)
    writer.close()
    assert not is_held(path)
    writer.write(encoded(1), never)
    assert len(spool_files(writer.directory)) == 2
    assert [is_held(found) for found in spool_files(writer.directory)] == [False, True]


def test_threads_never_mix(writer: SpoolWriter) -> None:
    def work(thread: int) -> None:
        for number in range(150):
            writer.write(encoded(number, 20_000 if number % 10 == 0 else 60, thread), never)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    found = [one for one in frames.scan(only(writer.directory).read_bytes()) if isinstance(one, Frame)]
    assert len(found) == 8 * 150
    for thread_number in range(8):
        mine = [one.attributes["number"] for one in found if one.attributes["thread"] == thread_number]
        assert mine == list(range(150))


_CHILD = """
import os, resource, sys
from pathlib import Path
from otel_agent_replay.recording import frames
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.telemetry.spool import SpoolWriter
def encoded(number, size=50):
    attributes = {"agent_replay.payload": "x" * size, "number": number}
    return frames.encode(frames.Frame(FrameKind.CROSSING, 1, number + 1, 0, "n", 5, 6, attributes))
def never():
    raise AssertionError
faults, failed = [], []
writer = SpoolWriter(Path(sys.argv[1]), faults.append)
"""

_KILLED = """
number = 0
while True:
    writer.write(encoded(number, 200_000 if number % 7 == 0 else 300), never)
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
"""


def test_nothing_that_was_written_is_lost_to_a_kill(tmp_path: Path) -> None:
    for kill in range(6):
        directory = tmp_path / f"killed-{kill}"
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD + _KILLED, str(directory)],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    if int(line) >= 20 + 13 * kill:
                        break
            finally:
                child.send_signal(signal.SIGKILL)
            said = [int(rest) for rest in child.stdout.read().split("\n")[:-1] if rest]
        last = max([20 + 13 * kill, *said])
        path = only(directory)
        assert not is_held(path)
        found = list(frames.scan(path.read_bytes()))
        whole = [one.attributes["number"] for one in found if isinstance(one, Frame)]
        assert whole[: last + 1] == list(range(last + 1))
        assert [one.harm for one in found if isinstance(one, frames.Damage)] in ([], [frames.Harm.TORN])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_its_own_file(writer: SpoolWriter) -> None:
    writer.write(encoded(0), never)
    parent = only(writer.directory)
    reader, sender = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            for number in range(100, 103):
                writer.write(encoded(number), never)
            os.write(sender, b"written")
            status = 0
        finally:
            os._exit(status)
    os.close(sender)
    assert os.read(reader, 10) == b"written"
    os.close(reader)
    writer.write(encoded(1), never)
    assert os.waitpid(child, 0)[1] == 0
    files = {path: numbers(path) for path in spool_files(writer.directory)}
    assert files.pop(parent) == [0, 1]
    ((path, held),) = files.items()
    assert held == [100, 101, 102]
    assert f"-{child}-" in path.name
    assert not is_held(path)
    assert is_held(parent)


def test_a_child_does_not_keep_its_parents_file_alive(tmp_path: Path) -> None:
    program = """
writer.write(encoded(0), never)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(writer.path, flush=True)
os._exit(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD + program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        path = Path(parent.stdout.readline().strip())
        assert parent.wait(LIMIT) == 0
        deadline = time.monotonic() + LIMIT
        while is_held(path) and time.monotonic() < deadline:  # the child closes it on its first step
            time.sleep(0.01)
        assert not is_held(path)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forks_while_threads_write(writer: SpoolWriter) -> None:
    stop = threading.Event()

    def work(thread: int) -> None:
        number = 0
        while not stop.is_set():
            writer.write(encoded(number, 5000, thread), never)
            number += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    children = []
    try:
        for number in range(10):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    signal.alarm(LIMIT)
                    writer.write(encoded(number, 10, 99), never)
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 10
    assert len(spool_files(writer.directory)) == 11
    for path in spool_files(writer.directory):
        assert numbers(path)


def test_a_full_disk_costs_the_frame_and_nothing_else(tmp_path: Path, faults: list[str]) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    try:
        writer = SpoolWriter(mount / "spool", faults.append)
        failed: list[int] = []
        for number in range(40):
            writer.write(encoded(number, 3000), lambda number=number: failed.append(number))  # type: ignore[misc]
        assert failed
        assert failed[0] > 10
        assert writer.lost == len(failed)
        (said,) = faults
        assert said.startswith("recording stopped: ")
        assert "No space left on device" in said
        path = only(writer.directory)
        assert numbers(path) == [number for number in range(40) if number not in failed]
        writer.write(encoded(77, 10), lambda: failed.append(77))
        writer.close()
        assert numbers(path)[-1] == (77 if 77 not in failed else failed[0] - 1)
    finally:
        subprocess.run(["umount", str(mount)], check=False)


_SMALL_FILES = """
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for number in range(10):
    writer.write(encoded(number, 3000), lambda: failed.append(number))
print(len(faults), faults[0], failed)
"""


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD + _SMALL_FILES, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert done.stdout.startswith("1 recording stopped: "), done.stdout
    assert "File too large" in done.stdout
    assert done.stdout.strip().endswith("[6, 7, 8, 9]")
    assert numbers(only(tmp_path)) == list(range(6))


@pytest.mark.parametrize("what", ["a file stands there", "nothing can be made there"])
def test_a_home_that_cannot_be_written_is_said_once(tmp_path: Path, faults: list[str], what: str) -> None:
    if what == "a file stands there":
        (tmp_path / "home").write_text("in the way")
        home = tmp_path / "home"
    else:
        home = Path("/proc/nothing/here")
    writer = SpoolWriter(home / "spool", faults.append)
    failed: list[int] = []
    for number in range(5):
        writer.write(encoded(number), lambda: failed.append(1))
    assert len(failed) == writer.lost == 5
    assert len(faults) == 1
    assert faults[0].startswith(f"nothing is recorded: {home / 'spool'} cannot be written (")
    assert faults[0].endswith("set OTEL_AGENT_REPLAY_HOME to a directory that can")
    writer.close()


def test_a_read_only_file_system_is_said_once(tmp_path: Path, faults: list[str]) -> None:
    mount = tmp_path / "read-only"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(mount)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a read-only file system cannot be mounted here")
    try:
        writer = SpoolWriter(mount / "spool", faults.append)
        writer.write(encoded(0), lambda: None)
        writer.write(encoded(1), lambda: None)
        (said,) = faults
        assert os.strerror(errno.EROFS) in said
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def test_a_descriptor_that_became_another_file_is_never_written_to(writer: SpoolWriter, tmp_path: Path) -> None:
    writer.write(encoded(0), never)
    first = only(writer.directory)
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    number = writer._descriptor
    os.close(number)
    opened = os.open(theirs, os.O_WRONLY | os.O_APPEND)
    try:
        if opened != number:
            os.dup2(opened, number)
        writer.write(encoded(1), never)
        writer.close()
        assert theirs.read_text() == "precious"
        os.fstat(number)  # still theirs: it was not closed either
    finally:
        for descriptor in {opened, number}:
            with suppress(OSError):
                os.close(descriptor)
    second = next(path for path in spool_files(writer.directory) if path != first)
    assert (numbers(first), numbers(second)) == ([0], [1])


def test_a_removed_file_is_replaced(writer: SpoolWriter) -> None:
    writer.write(encoded(0), never)
    only(writer.directory).unlink()
    writer.write(encoded(1), never)
    assert numbers(only(writer.directory)) == [1]


def test_a_write_from_within_a_write_comes_after_it(writer: SpoolWriter) -> None:
    class Part(bytes):
        """Comes back while it is being measured, as a finaliser or a signal handler may."""

        done = False

        def __len__(self) -> int:
            if not Part.done:
                Part.done = True
                writer.write(encoded(1), never)
            return super().__len__()

    (part,) = encoded(0)
    writer.write([Part(part)], never)
    assert numbers(only(writer.directory)) == [0, 1]


def test_large_writes_leave_the_event_loop_and_keep_their_order(writer: SpoolWriter) -> None:
    held = threading.Event()

    def large() -> list[bytes]:
        held.wait(LIMIT)
        return encoded(0, 5 << 20)

    async def program() -> None:
        writer.write_behind(large, 5 << 20, never)
        writer.write(encoded(1), never)
        threads = [threading.Thread(target=writer.write, args=(encoded(2), never))]
        for thread in threads:
            thread.start()
            thread.join(LIMIT)
        assert not spool_files(writer.directory)
        held.set()

    asyncio.run(program())
    writer.drain()
    assert numbers(only(writer.directory)) == [0, 1, 2]
    writer.write(encoded(3), never)
    assert numbers(only(writer.directory)) == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_what_was_written_behind_is_there_after_a_fork_and_after_close(writer: SpoolWriter) -> None:
    writer.write_behind(lambda: encoded(0, 1 << 20), 1 << 20, never)
    child = os.fork()
    if child == 0:
        writer.write(encoded(9), never)
        os._exit(0)
    os.waitpid(child, 0)
    writer.write_behind(lambda: encoded(1, 1 << 20), 1 << 20, never)
    writer.close()
    assert sorted(numbers(path) for path in spool_files(writer.directory)) == [[0, 1], [9]]


def test_a_queue_that_fails_says_so_and_goes_on() -> None:
    written: list[bytes] = []
    failed: list[str] = []

    def write(parts: list[bytes], _vital: bool) -> bool:
        written.extend(parts)
        return parts != [b"bad"]

    def broken() -> list[bytes]:
        raise ValueError("cannot be made")

    queue = WriteBehind(write)  # type: ignore[arg-type]
    assert queue.add(broken, 1, lambda: failed.append("broken"))
    queue.add(lambda: [b"bad"], 1, lambda: failed.append("bad"))
    queue.add(lambda: [b"good"], 1, never)
    assert queue.drain(LIMIT)
    assert (written, failed) == ([b"bad", b"good"], ["broken", "bad"])
    assert not queue.busy
    assert queue.drain(0)


def test_locks_are_not_needed(writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    writer.write(encoded(0), never)
    assert numbers(only(writer.directory)) == [0]
