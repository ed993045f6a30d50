"""`agent-replay ship`: send what is recorded, now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from otel_agent_replay import settings
from otel_agent_replay.boundary import real
from otel_agent_replay.boundary.held import is_held
from otel_agent_replay.cli._output import emit_json, warn
from otel_agent_replay.errors import EXIT_FAILS, UsageError
from otel_agent_replay.telemetry.shipping import destination, standing
from otel_agent_replay.telemetry.shipping.delivery import Patience, StoppedError
from otel_agent_replay.telemetry.shipping.ledger import Ledger
from otel_agent_replay.telemetry.shipping.receivers import connect
from otel_agent_replay.telemetry.shipping.shipper import Shipper

if TYPE_CHECKING:
    from pathlib import Path

    from otel_agent_replay.settings import Settings
    from otel_agent_replay.telemetry.shipping.destination import Destination
    from otel_agent_replay.telemetry.shipping.standing import Standing

WAIT = 60.0
"""Seconds, unless asked otherwise."""

PATIENCE = Patience(first=0.2, most=5.0, blocked=1.0)
"""Somebody waits for this command."""

LOOKS_EVERY = 0.1
"""Seconds between two looks at files that another process ships."""


@click.command()
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=WAIT,
    show_default=True,
    metavar="SECONDS",
    help="Go on so long where the receiver does not take everything at once; 0 tries once.",
)
@click.option("--refused", is_flag=True, help="Send again what was refused and set aside.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(wait: float, refused: bool, as_json: bool) -> None:  # noqa: FBT001 (click gives it by name)
    """Send what is recorded to the receiver that OTEL_EXPORTER_OTLP_ENDPOINT names, now.

    Files whose process has ended are removed once they are sent whole. Exits with 1 where something waits or was
    refused.
    """
    wanted = settings.read()
    to = destination.read(os.environ)
    if to is None:
        raise UsageError(
            "No receiver is named; set OTEL_EXPORTER_OTLP_ENDPOINT, and OTEL_EXPORTER_OTLP_PROTOCOL where it is not "
            "grpc."
        )
    if refused:
        Ledger(wanted.home).take_back()
    before = standing.standing(wanted.home)
    shipper, done = _ship(wanted, to, wait)
    for problem in shipper.problems.values():
        warn(problem)
    after = standing.standing(wanted.home)
    why = "" if done else after.failing.get(to.name, "")
    _say(before, after, to, why, as_json=as_json, refused=shipper.refused)
    if not done or shipper.refused or shipper.problems:
        raise SystemExit(EXIT_FAILS)


def _ship(wanted: Settings, to: Destination, wait: float) -> tuple[Shipper, bool]:
    """Ship until what is there now is shipped, by this or by another process, or the time is over; which it was."""
    until = real.monotonic() + wait
    ledger = Ledger(wanted.home)
    goal = {path: path.stat().st_size for path in ledger.files() if path.exists()}
    limits = {path.name: size for path, size in goal.items()}  # an agent that goes on writing is not waited for
    receiver = connect(to)
    shipper = Shipper(
        ledger,
        receiver,
        to.name,
        batch_bytes=wanted.batch_bytes,
        stopped=lambda: real.monotonic() >= until,
        patience=PATIENCE,
    )
    try:
        while True:
            moved = shipper.round(lambda _path, _written: True, limits=limits)
            done = all(
                _is_shipped(ledger, path, size, to) for path, size in goal.items() if path.name not in shipper.problems
            )
            if done or (not moved and real.monotonic() >= until):
                return shipper, done
            if not moved:
                real.sleep(LOOKS_EVERY)
    except StoppedError:
        return shipper, False
    finally:
        receiver.close()


def _is_shipped(ledger: Ledger, path: Path, size: int, to: Destination) -> bool:
    """Whether so many bytes of a file are shipped; one that is removed was shipped whole."""
    if not path.exists():
        return True
    more = path.stat().st_size > size or is_held(path)
    return more and ledger.progress(path.name, to.name).offset >= size


def _say(before: Standing, after: Standing, to: Destination, why: str, *, as_json: bool, refused: int) -> None:
    sent = after.shipped.frames - before.shipped.frames
    if as_json:
        emit_json(
            {
                "endpoint": to.where,
                "shipped": sent,
                "spans": after.shipped.spans - before.shipped.spans,
                "bytes": after.shipped.bytes - before.shipped.bytes,
                "refused": refused,
                "waiting": after.waiting,
                "waiting_bytes": after.waiting_bytes,
                "failing": why,
            }
        )
        return
    click.echo(f"{sent:,} frames shipped to {to.where}; {after.waiting:,} wait, {refused:,} were refused.")
    if refused:
        warn("what was refused is kept, with the reasons; `agent-replay ship --refused` sends it again.")
    if why:
        warn(f"nothing gets through: {why}; mend that and run this again.")
