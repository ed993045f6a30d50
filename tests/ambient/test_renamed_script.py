"""A program saved under another name, beside the recorded one, gets the recorded one's values."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from otel_agent_replay.boundary.spots import script_name

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = """
import json, runpy, sys
from otel_agent_replay.boundary.sites import SiteMap, site_of
from otel_agent_replay.boundary.spots import script_name

script, recorded_script, known = json.loads(sys.argv[1])
sites = SiteMap({"clock": known}, script=script_name(["python", recorded_script]))
seen = []

def read():
    site = site_of(sys._getframe(1))
    seen.append((site.id, sites.resolve("clock", site)))

sys.modules["reader"] = type(sys)("reader")
sys.modules["reader"].read = read
sys.argv = [script]
main = sys.modules["__main__"]
main.__file__, main.__spec__ = script, None
with open(script) as source:
    exec(compile(source.read(), script, "exec"), vars(main))
print(json.dumps(seen))
"""

AGENT = """
import reader

def first():
    reader.read()

def second():
    extra = 1
    reader.read()

first()
second()
"""


def play(folder: Path, script: str, recorded: str = "", known: list[str] | None = None) -> list[list[str]]:
    command = [sys.executable, "-c", DRIVER, json.dumps([str(folder / script), recorded or script, known or []])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen: list[list[str]] = json.loads(done.stdout)
    return seen


def test_a_repaired_copy_beside_the_recorded_script(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
    (tmp_path / "agent_repaired.py").write_text(textwrap.dedent(AGENT).replace("extra = 1", "extra = 2  # repaired"))
    recorded = [site for site, _ in play(tmp_path, "agent.py")]
    assert len(recorded) == 2
    now = play(tmp_path, "agent_repaired.py", "agent.py", recorded)
    assert [resolved for _, resolved in now] == recorded
    assert not {site for site, _ in now} & set(recorded)


@pytest.mark.parametrize("names", [("first", "initial"), ("second", "later")])
def test_a_copy_in_which_a_function_was_renamed(tmp_path: Path, names: tuple[str, str]) -> None:
    (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
    (tmp_path / "agent_repaired.py").write_text(textwrap.dedent(AGENT).replace(*names))
    recorded = [site for site, _ in play(tmp_path, "agent.py")]
    now = play(tmp_path, "agent_repaired.py", "agent.py", recorded)
    assert [resolved for _, resolved in now] == recorded


def test_a_copy_of_another_program_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
    (tmp_path / "other.py").write_text(textwrap.dedent(AGENT))
    recorded = [site for site, _ in play(tmp_path, "agent.py")]
    now = play(tmp_path, "other.py", "third.py", recorded)
    assert [resolved for _, resolved in now] == [None, None]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "agent.py"], "agent"),
        (["python", "-u", "-X", "dev", "./here/agent.py", "-m", "x"], "agent"),
        (["python", "-m", "package.agent", "x.py"], "package.agent"),
        (["python", "-Im", "x"], "x"),
        (["python", "-mpackage.__main__"], "package"),
        (["python", "-c", "print()"], ""),
        (["python", "-"], ""),
        (["python"], ""),
    ],
)
def test_name_of_a_script(argv: list[str], name: str) -> None:
    assert script_name(argv) == name
