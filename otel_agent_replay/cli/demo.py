"""`agent-replay demo`: record a bundled agent, and replay it with its model server gone."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import click

from otel_agent_replay.demo.story import play
from otel_agent_replay.errors import EXIT_FAILS, EXIT_HOLDS, UsageError
from otel_agent_replay.settings import OTEL_AGENT_REPLAY_HOME


@click.command()
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), help="Play in this folder, new or empty, and keep it."
)
def command(keep: Path | None) -> None:
    """Record a bundled agent that fails, and replay it offline: as it was, repaired, and with a changed prompt.

    Takes under 20 seconds, needs no key and no network, and leaves nothing behind unless --keep is given.
    Exits 0 if every step did what it says, else 1.
    """
    signal.signal(signal.SIGTERM, _leave)
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="agent-replay-demo-") as folder:
            done = play(Path(folder).resolve(), click.echo)
    else:
        done = play(_opened(keep), click.echo)
        click.echo(f"Kept: cd {keep} && {OTEL_AGENT_REPLAY_HOME}=$PWD/home agent-replay show latest")
    sys.exit(EXIT_HOLDS if done else EXIT_FAILS)


def _leave(signum: int, _: object) -> NoReturn:
    """Ended from outside: unwind, so that the model server goes too."""
    sys.exit(128 + signum)


def _opened(folder: Path) -> Path:
    """The folder, made if it was not there. Raises UsageError where it holds something or cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = next(folder.iterdir(), None) is not None
    except OSError as error:
        raise UsageError(f"--keep {folder}: {error.strerror}; name another folder.") from error
    if used:
        raise UsageError(f"--keep {folder}: there is something in it; name a new or an empty folder.")
    return folder.resolve()
