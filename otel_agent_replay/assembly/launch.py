"""Run a recorded command again, in a process of its own that can reach nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import otel_agent_replay
from otel_agent_replay.assembly import replays
from otel_agent_replay.assembly.handover import VARIABLE, Handover
from otel_agent_replay.assembly.signing import is_own
from otel_agent_replay.assembly.standing import standing
from otel_agent_replay.errors import EXIT_CANNOT_JUDGE, CannotStart, ReplayOfReplay, Untrusted, UsageError
from otel_agent_replay.recording import hashing
from otel_agent_replay.recording.assemble import assemble
from otel_agent_replay.recording.frames import Frame, scan
from otel_agent_replay.recording.names import FrameKind
from otel_agent_replay.recording.tally import CHILD
from otel_agent_replay.store import find

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_agent_replay.recording.values import Json, RunRecord
    from otel_agent_replay.settings import Settings

BOOTSTRAP = Path(otel_agent_replay.__file__).parent / "bootstrap"
"""Folder whose `sitecustomize` sets a replay up before the program is loaded."""

RUN_ENTRY = ("-m", "otel_agent_replay.assembly.entry")
"""How a function or a request, which have no command of their own, are called again."""

_EXPORTERS = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


_LAST_WORDS = 10.0
"""Seconds for a program that is ended to say where it stands."""

_LOADERS = ("LD_", "DYLD_", "GLIBC_", "PYTHON", "PATH", "BASH_", "ENV", "OTEL_")
"""Beginnings of the names of variables by which a loader, an interpreter or a shell is told what to run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A command to replay a run with."""

    command: list[str]
    directory: str
    hash_seed: str
    timezone: str | None
    """For `TZ`; None for this machine's own."""


def plan_of(run: RunRecord, command: Sequence[str], *, trusted: bool) -> Plan:
    """What to run: the recorded command in its directory, or `command` here.

    Raises:
        Untrusted: the recorded command would be run, and this user did not record it.
        CannotStart: its directory or its program is not here any more.
        UsageError: `command` starts Python in a way that no replay can be set up in.
    """
    seed = hashing.seed_of(str(run.world.get("hash_seed"))) or "0"
    zone = run.world.get("timezone")
    zone = zone if isinstance(zone, str) else None
    if command:
        check_program(command)
        return Plan(own_command(command), str(Path.cwd()), seed, zone)
    recorded = _recorded_command(run)
    directory = str(run.world.get("directory") or ".")
    if not trusted:
        raise Untrusted(run.run_id, f"cd {shlex.quote(directory)} && {shlex.join(recorded)}")
    if not Path(directory).is_dir():
        raise CannotStart(f"The directory {directory} that the run was recorded in is gone; give a command after `--`.")
    if _is_typed_in(recorded):
        raise CannotStart(
            f"The program of {run.run_id} came from standard input, which is not kept; give it again, as in "
            "`-- python - < FILE`."
        )
    program = _program(recorded)
    if program is not None and not (Path(directory) / program).exists():
        raise CannotStart(f"The program {program} is not in {directory} any more; give a command after `--`.")
    return Plan(recorded, directory, seed, zone)


@dataclass(slots=True)
class Replayed:
    """What came of a replay in a process of its own."""

    exit_code: int
    report: dict[str, Json]
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Probe:
    """A replay that looks for differences: calls that ask something else are answered by their place."""

    disturbance: str = ""
    """What is made different on purpose; see `disturbance`."""
    longest: float = 600.0
    """Seconds after which it is ended."""


def replay(
    settings: Settings,
    wanted: str,
    command: Sequence[str],
    *,
    expected: Sequence[str] = (),
    stop_at: str = "",
    strict: bool = False,
    free: Sequence[str] = (),
    trust: bool = False,
    record: bool | None = None,
    probe: Probe | None = None,
) -> Replayed:
    """Find a run, run its command (or `command`) against its recording, and judge how that ended.

    `free` names what is left to this machine though it was recorded, of `settings.CAPTURES`.

    `record` says whether the replay is recorded too; None for what the settings say. With a `probe` it is not, its
    output goes nowhere, and it is run as that says.

    Raises:
        RecordingError, StoreError: the run cannot be had.
        CannotStart: the command cannot be run here, or may not be unasked.
        UsageError: an expectation, a position or the command is not understood.
    """
    _check(expected, stop_at)
    with tempfile.TemporaryDirectory(prefix="agent-replay-") as name:
        folder = Path(name)
        run_id = find.find_run(settings, wanted)
        find.export_spool(settings, run_id, folder / "recording.spool")
        run = _run_of(folder / "recording.spool", run_id)
        if origin := run.entry.get("origin"):
            raise ReplayOfReplay(run_id, str(origin))
        trusted = trust or is_own(settings.home, run)
        plan = plan_of(run, command, trusted=trusted)
        recorded = probe is None and replays.wanted(record, settings, command=True)
        handover = Handover(
            recording=str(folder / "recording.spool"),
            run_id=run_id,
            report=str(folder / "report.json"),
            expected=tuple(expected),
            stop_at=stop_at,
            home=str(settings.home) if recorded else "",
            strict=strict,
            free=tuple(free),
            taken=str(folder / "taken"),
            pins=probe is not None,
            disturbance=probe.disturbance if probe is not None else "",
        )
        named = _named(run) if trusted and "environment" not in free else {}
        output = folder / "output" if probe is not None else None
        try:
            longest = None if probe is None else probe.longest
            status = _spawn(plan, handover, folder / "handover.json", named, output=output, longest=longest)
        except subprocess.TimeoutExpired as error:
            assert output is not None
            where = standing(output.read_text("utf-8", "replace"))
            why = f"the replay did not end within {error.timeout:.0f} s"
            return _unjudged(run, -signal.SIGABRT, f"{why}; it stood at {where}" if where else why)
        return _result(run, handover, status, expected)


def check_program(command: Sequence[str]) -> None:
    """Raises CannotStart where `command` runs a script of Python that is not there."""
    program = _program(command)
    if program is not None and not Path(program).exists():
        raise CannotStart(f"There is no program {program} here; give another command.")


def _named(run: RunRecord) -> dict[str, str]:
    """Variables of the environment that a setting named when the run was recorded, but none that load code."""
    recorded = run.world.get("environment")
    if not isinstance(recorded, dict):
        return {}
    return {k: v for k, v in recorded.items() if isinstance(v, str) and not k.upper().startswith(_LOADERS)}


def _spawn(
    plan: Plan,
    handover: Handover,
    path: Path,
    named: Mapping[str, str],
    *,
    output: Path | None = None,
    longest: float | None = None,
) -> int:
    """Run the plan to its end, with variables that are not here. Gives the exit status.

    Its output goes to a file, where one is given.

    Raises:
        CannotStart: the command cannot be run here.
        TimeoutExpired: it took longer than `longest` seconds, and was ended; what it says last is where it stood.
    """
    handover.write(path)
    environment = {
        **named,
        **os.environ,
        **_EXPORTERS,
        VARIABLE: str(path),
        "PYTHONHASHSEED": plan.hash_seed,
        **({} if plan.timezone is None else {"TZ": plan.timezone}),
        "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    if longest is not None:
        environment["PYTHONFAULTHANDLER"] = "1"
    try:
        with output.open("wb") if output is not None else nullcontext() as file:
            child = subprocess.Popen(plan.command, cwd=plan.directory, env=environment, stdout=file, stderr=file)
    except OSError as error:
        raise CannotStart(
            f"{shlex.join(plan.command)} cannot be started: {error.strerror}; give another command after `--`."
        ) from error
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child decides: a debugger lives on
    try:
        return child.wait(longest)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LAST_WORDS)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        if child.poll() is None:
            child.kill()
            child.wait()


def _result(run: RunRecord, handover: Handover, status: int, expected: Sequence[str]) -> Replayed:
    """What the child reported; where it could not, that it did not."""
    path = Path(handover.report)
    if path.exists():
        written = json.loads(path.read_text("utf-8"))
        return Replayed(written["report"]["exit_code"], written["report"], written["lines"])
    if status == EXIT_CANNOT_JUDGE:
        return _unjudged(run, status, "the replay could not begin")
    if not Path(handover.taken).exists():
        return _unjudged(run, status, "the command started no Python that could be replayed")
    how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
    return _unjudged(run, status, f"the program {how} before it could report")


def _unjudged(run: RunRecord, status: int, why: str) -> Replayed:
    report: dict[str, Json] = {
        "run_id": run.run_id,
        "trace_id": f"{run.trace_id:032x}",
        "verdict": "cannot-judge",
        "exit_code": EXIT_CANNOT_JUDGE,
        "reasons": [why],
        "divergences": [],
        "outcome": {"exit_status": status},
        "recorded_as": None,
    }
    return Replayed(EXIT_CANNOT_JUDGE, report, [f"{run.run_id}: {why}"])


def _check(expected: Sequence[str], stop_at: str) -> None:
    """Raises UsageError where an expectation or a position is not understood."""
    if expected:
        from otel_agent_replay.replay import expectation  # noqa: PLC0415 (a replay starts at once)

        for text in expected:
            expectation.parse(text)
    if stop_at:
        from otel_agent_replay.assembly import stopping  # noqa: PLC0415 (the same)

        stopping.at(stop_at)


def _run_of(path: Path, run_id: str) -> RunRecord:
    """The run alone, without its crossings."""
    data = path.read_bytes()
    kinds = (FrameKind.RUN_START, FrameKind.RUN)
    frames = (item for item in scan(data) if isinstance(item, Frame) and item.kind in kinds)
    recordings = assemble(frames, run_id)
    return recordings[run_id].run


def own_command(command: Sequence[str]) -> list[str]:
    """A command as given; a bare `python` is this one, which has what a replay needs."""
    first, *rest = command
    if first in ("python", "python3"):
        first = sys.executable
    for option in interpreter_options([first, *rest]):
        if (
            option.startswith("-")
            and not option.startswith("--")
            and set("EIS") & set(option[1:].partition("X")[0].partition("W")[0])
        ):
            raise UsageError(f"python {option} ignores the environment that a replay is set up by; leave it out.")
    if shutil.which(first) is None:
        raise CannotStart(f"{first} is not a program on this machine; give another command after `--`.")
    return [first, *rest]


def _recorded_command(run: RunRecord) -> list[str]:
    if run.entry.get("kind") not in ("process", CHILD):
        return [sys.executable, *RUN_ENTRY]
    argv = run.entry.get("argv")
    command = [str(part) for part in argv] if isinstance(argv, list) else []
    if not command:
        raise CannotStart(f"Run {run.run_id} has no recorded command; give a command after `--`.")
    executable = str(run.world.get("executable") or command[0])
    return [executable if Path(executable).exists() else sys.executable, *command[1:]]


def _program(command: Sequence[str]) -> str | None:
    """The script that a Python command runs; None where it runs a module or a string."""
    options = interpreter_options(command)
    rest = command[1 + len(options) :]
    return (
        rest[0]
        if rest
        and rest[0] != "-"
        and not any(option in ("-m", "-c") or option[:2] in ("-m", "-c") for option in options)
        else None
    )


def _is_typed_in(command: Sequence[str]) -> bool:
    """Whether Python reads its program from standard input."""
    options = interpreter_options(command)
    if "python" not in Path(command[0]).name or any(option[:2] in ("-m", "-c") for option in options):
        return False
    return command[1 + len(options) :][:1] in ([], ["-"])


def interpreter_options(command: Sequence[str]) -> list[str]:
    """The options of the interpreter itself, up to and with ``-m`` or ``-c``."""
    if "python" not in Path(command[0]).name:
        return []
    options: list[str] = []
    rest = iter(command[1:])
    for part in rest:
        if not part.startswith("-") or part == "-":
            break
        options.append(part)
        if part[:2] in ("-m", "-c"):
            break
        if part in ("-X", "-W"):
            options.append(next(rest, ""))
    return options
