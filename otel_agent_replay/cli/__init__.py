"""The command `agent-replay`.

A command's module is imported when it is called, so that `agent-replay --help` costs no more than click.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from otel_agent_replay.errors import AgentReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "runs": "List the recorded runs, newest first.",
    "show": "Show one run: its crossings by lane, with inputs and outcomes.",
    "replay": "Run a recorded execution again, offline, from its recording.",
    "doctor": "Say what a recording of a program cannot give back, where, and what to do.",
    "ship": "Send what is recorded to the OTLP receiver, now.",
    "status": "Say how much is recorded, shipped, waiting and refused.",
    "schema": "Apply the schema of the store, or say what is applied.",
    "serve": "Take spans by OTLP into the embedded store, and answer SQL, until it is stopped.",
    "retention": "Remove the runs whose time is over; failed ones are kept longer.",
    "hold": "Keep a run, whatever its age, until it is released; or list what is held.",
    "release": "Let retention have a run again.",
    "demo": "Record a bundled agent and replay it, without any key; under 20 seconds.",
}
"""Each command, and its line in the help. Its module is `cli.NAME`, its click command is `command` there."""

EXIT_INTERRUPTED = 130
"""The user pressed Ctrl-C; what a shell reports."""
EXIT_BROKEN_PIPE = 141
"""The reader of our output went away; what a shell reports."""


class LazyGroup(click.Group):
    """Finds commands by name, and ends every fault of ours with one sentence and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"otel_agent_replay.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would end with 1 where the reader of our output went away, which means much else."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _silence_stdout()
            return EXIT_BROKEN_PIPE

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 (as click declares it)
        **extra: Any,
    ) -> Any:
        """Run, and exit with the code that fits. With `standalone_mode=False` errors are raised instead."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)  # noqa: FBT003 (as click declares it)
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)  # noqa: FBT003 (as click declares it)
            sys.stdout.flush()
        except AgentReplayError as error:
            click.echo(f"agent-replay: {error}", err=True)
            status = error.exit_code
        except click.ClickException as error:
            error.show()
            status = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            status = EXIT_INTERRUPTED
        return leave(status)


def leave(status: object) -> NoReturn:
    """Exit; what is no number means 0."""
    sys.exit(status if isinstance(status, int) else 0)


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere, or it would complain about the pipe as well."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="otel-agent-replay", prog_name="agent-replay")
def main() -> None:
    """Look at recorded runs of LLM agents, and run them again from their recordings.

    RUN is a run id, a trace id, a unique beginning of one, or `latest`.
    """
