"""Sizes and seconds as people write them."""

from __future__ import annotations

import pytest

from otel_agent_replay import settings
from otel_agent_replay.errors import UsageError


def read(tmp_path, **environ: str) -> settings.Settings:
    named = {f"OTEL_AGENT_REPLAY_{name}": value for name, value in environ.items()}
    return settings.read({"OTEL_AGENT_REPLAY_HOME": str(tmp_path), **named})


def test_what_holds_unless_set(tmp_path) -> None:
    found = read(tmp_path)
    assert (found.ship, found.batch_bytes, found.exit_wait, found.spool_limit) == (True, 3_500_000, 2.0, 10 << 30)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("5000", 5000), ("10K", 10240), ("2m", 2 << 20), ("3 GiB", 3 << 30), ("1GB", 1 << 30)]
)
def test_sizes(tmp_path, text: str, size: int) -> None:
    assert read(tmp_path, SPOOL_LIMIT=text).spool_limit == size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SPOOL_LIMIT", "lots"),
        ("SPOOL_LIMIT", "-1"),
        ("SPOOL_LIMIT", "G"),
        ("BATCH_BYTES", "1000"),
        ("EXIT_WAIT", "soon"),
        ("EXIT_WAIT", "-1"),
        ("EXIT_WAIT", "nan"),
        ("SHIP", "maybe"),
    ],
)
def test_what_has_no_meaning_is_named(tmp_path, name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"OTEL_AGENT_REPLAY_{name}"):
        read(tmp_path, **{name: text})
