"""`agent-replay doctor`: what a recording of a program cannot give back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from otel_agent_replay import settings
from otel_agent_replay.cli import _output as output
from otel_agent_replay.doctor import visit
from otel_agent_replay.doctor.findings import Finding, of_recording
from otel_agent_replay.errors import EXIT_FAILS, EXIT_HOLDS, UsageError
from otel_agent_replay.store import find

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Command(click.Command):
    """Takes what follows `--` as a command, whatever stands before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@click.command(
    cls=_Command,
    options_metavar="[OPTIONS]",
    epilog="Exit codes: 0 nothing was found; 1 something was; 125 the command could not be recorded; 2 wrong usage; "
    "128 the recording is unknown or unreadable.",
)
@click.argument("run", required=False, metavar="(RUN | -- COMMAND)")
@click.option("--times", type=click.IntRange(1, 20), default=2, show_default=True, help="Record it so many times.")
@click.option("--json", "as_json", is_flag=True, help="Print what is found as one JSON object.")
@click.pass_context
def command(ctx: click.Context, run: str | None, times: int, as_json: bool) -> None:  # noqa: FBT001 (click gives it by name)
    """Say what is not captured or not deterministic, where, and what to do about it.

    COMMAND is run once to look at its code, recorded several times, for real, and each recording is replayed. With
    RUN nothing is run: what was noted when it was recorded is printed, with remedies.
    """
    line: list[str] = ctx.meta["command"]
    if bool(line) == (run is not None):
        raise UsageError("Name a RUN, or give a command after `--`: agent-replay doctor -- python agent.py")
    told: Mapping[str, object]
    if run is not None:
        findings, told = _of_run(run)
    else:
        diagnosis = visit.examine(line, times, output.warn)
        findings, told = diagnosis.findings, diagnosis.as_json()
        if diagnosis.unexamined:
            output.warn(diagnosis.unexamined)
    if as_json:
        output.emit_json(told)
    else:
        for each in findings:
            click.echo("\n".join(map(output.printable, each.lines())))
        click.echo(_summary(findings))
    sys.exit(EXIT_FAILS if findings else EXIT_HOLDS)


def _of_run(run: str) -> tuple[list[Finding], dict[str, object]]:
    with find.opened(settings.read()) as recordings:
        run_id = recordings.find(run)
        findings = of_recording(find.recording_of(recordings.gather(run_id)))
    return findings, {"run_id": run_id, "findings": [each.as_json() for each in findings]}


def _summary(findings: list[Finding]) -> str:
    if not findings:
        return "Nothing was found."
    return f"{len(findings)} finding{'s' if len(findings) > 1 else ''}."
