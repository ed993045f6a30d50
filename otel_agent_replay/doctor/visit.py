"""Records a program several times, replays each, and gathers what was not captured or not deterministic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_agent_replay import settings as names
from otel_agent_replay.assembly import launch
from otel_agent_replay.assembly.disturbance import COLLECT_NEVER, COLLECT_OFTEN, SWITCH_OFTEN
from otel_agent_replay.doctor import compare
from otel_agent_replay.doctor.findings import Finding, Leak, distinct, of_recording
from otel_agent_replay.doctor.watch import ALL
from otel_agent_replay.errors import CannotStart
from otel_agent_replay.store import find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from otel_agent_replay.recording.values import Json, Recording
    from otel_agent_replay.settings import Settings

PLAIN: Final = ("", "")
"""Two replays of each recording in which nothing is made different."""
DISTURBED: Final = {
    COLLECT_OFTEN: Leak.GARBAGE,
    COLLECT_NEVER: Leak.GARBAGE,
    SWITCH_OFTEN: Leak.THREADS,
}
"""And one for each of these, with what it tells where only it departs."""

_LAUNCHER = ("-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()")
"""What `opentelemetry-instrument` is, wherever its script lies."""
_DEEPEST: Final = 100
"""So deep runs begin inside of each other at most."""
_EXAMINED = ("-m", "otel_agent_replay.doctor.examine")
_LAST_LINES = 5
_LEAST_PATIENCE, _TIMES_SLOWER = 60.0, 20.0


@dataclass(slots=True)
class Diagnosis:
    """What came of it."""

    command: list[str]
    recordings: int = 0
    replays: int = 0
    findings: list[Finding] = field(default_factory=list)
    unexamined: str = ""
    """Why the program's code could not be looked into; empty where it was."""

    def as_json(self) -> dict[str, Json]:
        """Plain data."""
        return {
            "command": list(self.command),
            "recordings": self.recordings,
            "replays": self.replays,
            "unexamined": self.unexamined,
            "findings": [each.as_json() for each in self.findings],
        }


@dataclass(slots=True)
class _Seen:
    """What was told by a program that was looked at while it ran."""

    findings: list[Finding] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """Where each variable was read first."""
    threads: list[str] = field(default_factory=list)
    """Where threads are started."""
    races: list[Finding] = field(default_factory=list)
    """Where threads change one thing: a leak where anything differs by it."""


def examine(command: Sequence[str], times: int, say: Callable[[str], None]) -> Diagnosis:
    """Record `command` so many times, and once more to look at its code; replay each recording.

    What is recorded lies in a folder of its own and is removed; nothing is shipped.

    Raises:
        CannotStart: the command cannot be run, or starts no Python that can be recorded.
    """
    command = launch.own_command(command)
    launch.check_program(command)
    found = Diagnosis(command)
    with tempfile.TemporaryDirectory(prefix="agent-replay-doctor-") as name:
        folder = Path(name)
        seen = _look(found, folder, say)
        kept = names.read({**os.environ, **_own(folder / "home")})
        run_ids: list[str] = []
        for number in range(times):
            say(f"recording {number + 1} of {times}")
            run_ids.append(_record(command, folder / "home", kept, set(run_ids)))
        found.recordings = times
        recordings = {run_id: find.load(kept, run_id) for run_id in run_ids}
        told = [each for recording in recordings.values() for each in of_recording(recording)]
        differing = _replayed(found, kept, recordings, say)
    read = _uncaptured(seen.environment, recordings.values())
    found.findings = distinct([*seen.findings, *told, *read, *_explained(differing, seen)])
    return found


def _look(found: Diagnosis, folder: Path, say: Callable[[str], None]) -> _Seen:
    """Run the program once with its code looked at; it is not replayed."""
    seen, file = _Seen(), folder / "seen"
    command = _watched_command(found.command, file)
    if command is None:
        found.unexamined = f"{found.command[0]} is no Python: only what a recording and its replays show is told"
        return seen
    say("looking at the program while it runs")
    _run(command, _own(folder / "looked"))
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        told: dict[str, Any] = json.loads(line)
        about = told.pop("about")
        if about == "finding":
            told.pop("remedy")
            seen.findings.append(Finding(**{**told, "kind": Leak(told["kind"])}))
        elif about == "environment":
            seen.environment.setdefault(told["name"], told["where"])
        elif about == "thread":
            seen.threads.append(told["where"])
        elif about == "race":
            what = f"threads change one {told['what']}, in an order that nothing keeps"
            seen.races.append(Finding(Leak.THREADS, what, told["where"], "", told["line"]))
    return seen


def _watched_command(command: Sequence[str], file: Path) -> list[str] | None:
    """The same program, started by who looks at it; None where it is no script, module or code of Python."""
    if "python" not in Path(command[0]).name:
        return None
    options = launch.interpreter_options(command)
    program = list(command[1 + len(options) :])
    if options and options[-1] in ("-m", "-c"):
        program.insert(0, options.pop())
    elif options and options[-1][:2] in ("-m", "-c"):
        last = options.pop()
        program[:0] = [last[:2], last[2:]]
    return [command[0], *options, *_EXAMINED, str(file), *program] if program else None


def _own(home: Path) -> dict[str, str]:
    """Settings that keep what is recorded apart, and on this machine."""
    return {
        names.OTEL_AGENT_REPLAY_HOME: str(home),
        names.OTEL_AGENT_REPLAY_DSN: f"chdb://{home / 'store'}",
        names.OTEL_AGENT_REPLAY_MODE: "record",
        names.OTEL_AGENT_REPLAY_SHIP: "off",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }


def _run(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Record a command, and wait for its end. Raises CannotStart."""
    line = [sys.executable, *_LAUNCHER, *command]
    try:
        return subprocess.run(
            line,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise CannotStart(f"{command[0]} cannot be started: {error.strerror}; give another command.") from error


def _newest_process(kept: Settings, known: set[str]) -> str:
    """The process that was recorded last, with the runs that began in it; empty where none is new."""
    run_id = find.find_run(kept, "latest")
    for _ in range(_DEEPEST):
        within = find.load(kept, run_id).run.entry.get("within")
        if not isinstance(within, dict):
            break
        run_id = str(within["run"])
    return "" if run_id in known else run_id


def _record(command: Sequence[str], home: Path, kept: Settings, known: set[str]) -> str:
    """The id of the run that a command leaves behind. Raises CannotStart where it leaves none."""
    done = _run(command, _own(home))
    run_id = _newest_process(kept, known) if (home / "spool").is_dir() else ""
    if not run_id:
        last = " ".join(done.stderr.split("\n")[-_LAST_LINES:]).strip()
        raise CannotStart(
            f"{command[0]} left no recording (exit status {done.returncode}{': ' + last if last else ''}); "
            "give a command that starts Python."
        )
    return run_id


def _replayed(
    found: Diagnosis, kept: Settings, recordings: Mapping[str, Recording], say: Callable[[str], None]
) -> dict[str, dict[str, Finding]]:
    """By what was made different: where a replay differed from its recording, by place."""
    differing: dict[str, dict[str, Finding]] = defaultdict(dict)
    for number, (run_id, recording) in enumerate(recordings.items()):
        say(f"replaying recording {number + 1} of {len(recordings)}")
        for how in (*PLAIN, *DISTURBED):
            result = launch.replay(kept, run_id, found.command, probe=launch.Probe(how, _patience(recording)))
            found.replays += 1
            differing[how].update(compare.differences(recording.run.outcome, result.report))
            if result.exit_code and not differing[how]:
                reasons = result.report.get("reasons")
                why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
                differing[how]["the end"] = Finding(Leak.DIFFERENCE, f"a replay does not end as recorded: {why}")
    return differing


def _patience(recording: Recording) -> float:
    """Seconds within which a replay ends, by a wide margin: it waits for nothing, but one is made slow on purpose."""
    run = recording.run
    took = max(0, (run.ended_ns or run.started_ns) - run.started_ns) / 1e9
    return _LEAST_PATIENCE + _TIMES_SLOWER * took


def _explained(differing: Mapping[str, Mapping[str, Finding]], seen: _Seen) -> Iterator[Finding]:
    """What the differences tell, beside what was seen in the code."""
    plain = differing.get("", {})
    left = {place: each for place, each in plain.items() if not _is_named(each, seen)}
    for how, kind in DISTURBED.items():
        for place, each in differing.get(how, {}).items():
            if place not in plain and not _is_named(each, seen):
                yield from _disturbed(each, kind, seen)
    raced = [each for each in left.values() if each.kind in (Leak.SET_ORDER, Leak.DIFFERENCE)]
    if seen.threads and raced:
        yield from _disturbed(raced[0], Leak.THREADS, seen)
    others = [
        each for each in left.values() if each.kind is not Leak.DIFFERENCE and (each not in raced or not seen.threads)
    ]
    yield from others
    if not others and not seen.threads:
        yield from raced[:1]


_EXPLAINS = {
    Leak.ENTROPY: (Leak.ENTROPY, Leak.DEVICE),
    Leak.CLOCK: (Leak.CLOCK,),
    Leak.ADDRESS: (Leak.ADDRESS,),
    Leak.DIFFERENCE: (Leak.GARBAGE,),
}
"""What was seen in the code that a difference of each kind is taken to come from."""


def _is_named(each: Finding, seen: _Seen) -> bool:
    """Whether a difference comes from what was seen in the code, as far as its kind or its line tells."""
    kinds = _EXPLAINS.get(each.kind, ())
    return any(found.kind in kinds or (found.where == each.where != "") for found in seen.findings)


def _disturbed(each: Finding, kind: Leak, seen: _Seen) -> Iterator[Finding]:
    """A difference that is made by threads, or by the garbage collector."""
    if each.kind is Leak.NEW_READING:
        return
    if kind is Leak.THREADS and seen.races:
        yield from (replace(race, evidence=f"{race.evidence}; {each.what}") for race in seen.races)
        return
    cause = "threads race" if kind is Leak.THREADS else "it depends on when garbage is collected"
    where = each.where or (seen.threads[0] if kind is Leak.THREADS and seen.threads else "")
    yield replace(each, kind=kind, what=f"{cause}: {each.what}", where=where)


def _uncaptured(read: Mapping[str, str], recordings: Iterable[Recording]) -> Iterator[Finding]:
    """Variables of the environment that the program reads and no recording holds."""
    captured: set[str] = set()
    for recording in recordings:
        world = recording.run.world.get("environment")
        captured.update(world if isinstance(world, dict) else ())
        captured.update(reading.source.rpartition(":")[2] for reading in recording.readings)
        credentials = recording.run.world.get("credentials")
        captured.update(map(str, credentials if isinstance(credentials, list) else ()))
    for name, where in sorted(read.items()):
        if name == ALL:
            what = "all variables of the environment are gone through, which no recording holds"
            yield Finding(Leak.ENVIRONMENT, what, where)
        elif name not in captured:
            yield Finding(Leak.ENVIRONMENT, f"the environment variable {name} is read and not recorded", where)
