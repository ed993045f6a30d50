"""`agent-replay replay`: run a recorded execution again, offline."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from otel_agent_replay import settings
from otel_agent_replay.assembly import launch
from otel_agent_replay.errors import UsageError

if TYPE_CHECKING:
    from otel_agent_replay.recording.values import Json


@click.command(
    context_settings={"ignore_unknown_options": False},
    epilog=(
        "Exit codes: 0 the expectation holds; 1 it does not; 125 the replay cannot judge (the program departed from "
        "the recording, or could not start); 2 wrong usage; 128 the recording is unknown or unreadable."
    ),
)
@click.argument("run")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--report", type=click.Path(dir_okay=False), help="Write the report to this file as JSON.")
@click.option(
    "--expect",
    "expected",
    multiple=True,
    metavar="WHAT",
    help="What the program is to end with, in place of what was recorded: ok, exit=N, exception=NAME, "
    "stdout=REGEX or outcome.NAME=VALUE. May be given several times.",
)
@click.option(
    "--stop-at", metavar="POSITION", default="", help="Break into the debugger at this crossing: [LANE ]KEY#N."
)
@click.option("--strict", is_flag=True, help="A reading of the clock or of entropy that was not recorded is refused.")
@click.option(
    "--free",
    multiple=True,
    type=click.Choice(settings.CAPTURES),
    help="Leave this to the machine though it was recorded: commands are run, files read and written. May be given "
    "several times.",
)
@click.option("--trust", is_flag=True, help="Run the recorded command though this user did not record it.")
@click.option(
    "--record/--no-record",
    default=None,
    help="Record this replay as a run of its own, or do not. Default: OTEL_AGENT_REPLAY_RECORD_REPLAYS, else it is.",
)
@click.option("--quiet", is_flag=True, help="Report on standard error only what departs.")
def command(
    run: str,
    command: tuple[str, ...],
    report: str | None,
    expected: tuple[str, ...],
    stop_at: str,
    strict: bool,  # noqa: FBT001 (click gives it by name)
    free: tuple[str, ...],
    trust: bool,  # noqa: FBT001 (click gives it by name)
    record: bool | None,  # noqa: FBT001 (click gives it by name)
    quiet: bool,  # noqa: FBT001 (click gives it by name)
) -> None:
    """Run RUN again from its recording: the recorded command in its directory, or COMMAND after `--`.

    Nothing reaches the network, no key is needed, and waiting takes no time. The program's standard output is
    passed through.
    """
    if report is not None:
        _check_report(Path(report))
    result = launch.replay(
        settings.read(),
        run,
        list(command),
        expected=list(expected),
        stop_at=stop_at,
        strict=strict,
        free=free,
        trust=trust,
        record=record,
    )
    if result.lines and not (quiet and result.exit_code == 0):
        click.echo(
            "\n".join(f"agent-replay: {line}" if not line.startswith(" ") else line for line in result.lines), err=True
        )
    if report is not None:
        _write_report(Path(report), result.report)
    sys.exit(result.exit_code)


def _check_report(file: Path) -> None:
    """Before anything is run. Raises UsageError."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--report {file}: there is no directory {folder}; name another file.")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise UsageError(f"--report {file}: it cannot be written; name another file.")


def _write_report(file: Path, report: dict[str, Json]) -> None:
    """Raises UsageError, as for a disk that is full by now."""
    try:
        file.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"--report {file}: {error.strerror}; name another file.") from error
