"""The public names are what they say, in whatever order the package's parts are imported."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "before",
    [
        "pass",
        "import otel_agent_replay.boundary.real",
        "import otel_agent_replay.assembly",
        "from otel_agent_replay import boundary; import otel_agent_replay.boundary.lanes",
    ],
)
def test_boundary_is_the_function_though_a_package_has_its_name(before: str) -> None:
    code = f"""
{before}
import otel_agent_replay
from otel_agent_replay import boundary
from otel_agent_replay.boundary import lanes
assert boundary is otel_agent_replay.boundary
assert boundary("tool", "double")(lambda n: 2 * n)(4) == 8
assert lanes.ROOT == "main"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    "before", ["pass", "import otel_agent_replay.replay.lanes", "import otel_agent_replay.assembly.scoped"]
)
def test_replay_is_the_function_though_a_package_has_its_name(before: str) -> None:
    code = f"""
{before}
import otel_agent_replay
from otel_agent_replay import replay
from otel_agent_replay.replay import lanes
import otel_agent_replay.replay.matching
from otel_agent_replay import replay as again
assert callable(replay) and replay is again is otel_agent_replay.replay
assert lanes.family("main/task:worker#3") == "task:worker"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
