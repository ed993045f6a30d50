"""The story of the demo, as data, and the one function that plays it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from otel_agent_replay.boundary import real
from otel_agent_replay.demo.stage import Finished, Stage
from otel_agent_replay.errors import EXIT_CANNOT_JUDGE, EXIT_HOLDS, CannotStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

KEY = "sk-demo-only-while-recording"
"""What stands for a key; the model server does not look at it."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change that a developer makes to the agent, saved under another name."""

    saved_as: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The changed program. Raises ValueError where `old` does not stand there exactly once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.old!r} stands {source.count(self.old)} times in the agent, not once")
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the demo shows, and how it is told whether it did."""

    title: str
    command: str = ""
    exit_code: int = 0
    edit: Edit | None = None
    """Made before the command."""
    shows: tuple[str, ...] = ()
    """Regular expressions, each found somewhere in the output."""
    hides: tuple[str, ...] = ()
    """Regular expressions that the output does not have."""
    as_recorded: bool = False
    """Standard output is, to the byte, that of the first step."""
    serves: bool | None = None
    """True: starts the model server first. False: stops it, and takes the key away."""


REPAIR = Edit("agent_repaired.py", "round(float(amount) * 100)", 'round(float(amount.replace(",", ".")) * 100)')
PROMPT = Edit("agent_changed.py", "less than 30 days ago", "less than 14 days ago")

STORY: tuple[Step, ...] = (
    Step(
        "Record. The agent is run as it is; at night it fails.",
        "opentelemetry-instrument python agent.py",
        exit_code=1,
        serves=True,
        shows=(r"to the customer: Dear Kim", r"ValueError: could not convert string to float: '12,50'"),
    ),
    Step("The run is there, as it ended.", "agent-replay runs", shows=(r"\berror\b", r"agent\.py")),
    Step("Next morning. The model server is gone, and so is the key.", serves=False),
    Step(
        "Replay. The same execution, with the same failure: that is what was expected, so it exits 0.",
        "agent-replay replay latest",
        exit_code=EXIT_HOLDS,
        as_recorded=True,
        shows=(r"ValueError: could not convert string to float: '12,50'",),
    ),
    Step(
        "Repair. The recording is run against the repaired program, which is expected to end well.",
        "agent-replay replay latest --expect ok -- python agent_repaired.py",
        exit_code=EXIT_HOLDS,
        edit=REPAIR,
        shows=(r"booked 1250 cents",),
        hides=(r"Traceback",),
    ),
    Step(
        "Change a prompt. Nobody knows what the model would have said to that, so a replay cannot judge it.",
        "agent-replay replay latest -- python agent_changed.py",
        exit_code=EXIT_CANNOT_JUDGE,
        edit=PROMPT,
        shows=(r"diverged", r"recorded .*30 days", r"asked .*14 days"),
        hides=(r"I would like my money back", r"to the customer"),
    ),
    Step(
        "And the customer was paid once: no replay paid again.",
        "cat payments.log",
        shows=(r"\AR-\w{8}: 12,50 EUR for A-1007\n\Z",),
    ),
)


def play(folder: Path, say: Callable[[str], None], story: Sequence[Step] = STORY) -> bool:
    """Play the story in an empty folder, printing through `say`. Gives whether every step did what it says.

    Raises:
        CannotStart: something that the demo runs is not installed.
    """
    check_installed()
    started = real.monotonic()
    stage = Stage(folder, say)
    recorded: Finished | None = None
    try:
        stage.open_home()
        for number, step in enumerate(story, 1):
            say("")
            say(f"{number}. {step.title}")
            finished, troubles = perform(step, stage, recorded)
            recorded = recorded or finished
            for trouble in troubles:
                say(f"  ! Step {number} did not do what it says: {trouble}")
            if troubles:
                return False
    finally:
        stage.close()
    say("")
    say(f"All {len(story)} steps did what they say, in {real.monotonic() - started:.1f} s.")
    return True


def perform(step: Step, stage: Stage, recorded: Finished | None) -> tuple[Finished | None, list[str]]:
    """Carry one step out. Gives the command that ended and what was wrong with it."""
    if step.serves:
        stage.export(OPENAI_BASE_URL=stage.start_server(), OPENAI_API_KEY=KEY)
    elif step.serves is False:
        stage.stop_server()
        stage.unset("OPENAI_BASE_URL", "OPENAI_API_KEY")
        refusal = stage.refused()
        if refusal is None:
            return None, ["something still answers where the model server was"]
        stage.say(f"    {refusal}")
    if step.edit is not None:
        _edit(step.edit, stage)
    if not step.command:
        return None, []
    finished = stage.run(step.command)
    stage.say(f"    (exit {finished.exit_code})")
    return finished, list(_troubles(step, finished, recorded))


def check_installed() -> None:
    """Raises CannotStart where the demo lacks what the extra `demo` brings."""
    missing = [module for module in ("openai", "chdb") if find_spec(module) is None]
    if missing:
        raise CannotStart(
            f"The demo needs {' and '.join(missing)}; install it with `pip install 'otel-agent-replay[demo]'`."
        )


def _edit(edit: Edit, stage: Stage) -> None:
    """Save the edited agent, and show the edit."""
    source = (stage.folder / "agent.py").read_text("utf-8")
    changed = edit.apply(source)
    (stage.folder / edit.saved_as).write_text(changed, "utf-8")
    stage.say(f"  $ diff agent.py {edit.saved_as}")
    for line in difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm=""):
        if line[:1] in "+-" and line[:3] not in ("+++", "---"):
            stage.say(f"    {line}")


def _troubles(step: Step, finished: Finished, recorded: Finished | None) -> Iterator[str]:
    """What a step was to do and did not, a sentence each."""
    if finished.exit_code != step.exit_code:
        yield f"it exited with {finished.exit_code}, not {step.exit_code}"
    if step.as_recorded and (recorded is None or finished.stdout != recorded.stdout):
        yield "its standard output is not the recorded one"
    for pattern in step.shows:
        if re.search(pattern, finished.output) is None:
            yield f"its output has nothing like {pattern}"
    for pattern in step.hides:
        if re.search(pattern, finished.output) is not None:
            yield f"its output has {pattern}"
