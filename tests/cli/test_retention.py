"""`retention`, `hold` and `release`, as they print."""

from __future__ import annotations

import pytest


def test_retention_says_what_goes_and_hold_keeps(home):
    kept, gone = home.record("kept.py"), home.record("gone.py")
    held = home.command("hold", kept.run_id[:9], "--reason", "looked at")
    assert held.stdout == f"Run {kept.run_id} is held; `agent-replay release {kept.run_id}` lets it go.\n"
    home.environment = {"OTEL_AGENT_REPLAY_KEEP_SUCCEEDED": "0d"}
    planned = home.json("retention", "--dry-run")
    assert (planned["succeeded"], planned["failed"], planned["held"], planned["dry_run"]) == (1, 0, 1, True)
    assert [run["run_id"] for run in planned["runs"]] == [gone.run_id]
    assert planned["bytes"] > 100
    assert len(home.json("runs")) == 2
    text = home.command("retention")
    assert "1 succeeded and 0 failed runs removed, " in text.stdout
    assert "; 1 spool files, " in text.stdout
    assert "Kept beyond their time: 1 held, 0 needed by runs that stay." in text.stdout
    assert [run["run_id"] for run in home.json("runs")] == [kept.run_id]
    assert [each["reason"] for each in home.json("hold")] == ["looked at"]
    assert home.command("show", gone.run_id).returncode == 128
    assert home.command("release", "latest").stdout == f"Run {kept.run_id} is released.\n"
    assert home.command("release", "latest").stdout == f"Run {kept.run_id} was not held.\n"
    assert home.command("hold").stdout == "No run is held.\n"
    assert home.json("retention")["succeeded"] == 1


@pytest.mark.parametrize("value", ["7", "d", "1w", "-1d", "1.5d"])
def test_a_time_that_is_none_is_named(home, value):
    home.environment = {"OTEL_AGENT_REPLAY_KEEP_FAILED": value}
    done = home.command("retention")
    assert done.returncode == 2
    assert done.stderr == (
        f"agent-replay: OTEL_AGENT_REPLAY_KEEP_FAILED is {value!r}; set it to a time such as 7d, 12h or 30m, "
        "or to forever.\n"
    )
