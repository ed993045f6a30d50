"""The key of masked values: made once, by one of many, and read by nobody else."""

from __future__ import annotations

import stat
import subprocess
import sys

import pytest

from otel_agent_replay import settings
from otel_agent_replay.assembly import masking
from otel_agent_replay.errors import UsageError
from otel_agent_replay.telemetry import maskkey

MAKE = """
import sys, time
from pathlib import Path
from otel_agent_replay.telemetry import maskkey
while time.time() < float(sys.argv[2]): pass
key, trouble = maskkey.of_home(Path(sys.argv[1]))
print(key.hex(), trouble)
"""


def test_processes_that_race_get_one_key(tmp_path) -> None:
    import time

    home = tmp_path / "home"
    begin = str(time.time() + 2)
    racing = [
        subprocess.Popen([sys.executable, "-c", MAKE, str(home), begin], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = {process.communicate(timeout=60)[0] for process in racing}
    assert len(said) == 1
    assert len(said.pop().strip()) == 64
    path = home / maskkey.KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in home.iterdir()] == [maskkey.KEY_FILE]
    assert maskkey.of_home(home) == maskkey.of_home(home)


def test_a_key_that_others_can_read_is_not_used(tmp_path) -> None:
    key, _ = maskkey.of_home(tmp_path)
    (tmp_path / maskkey.KEY_FILE).chmod(0o640)
    other, trouble = maskkey.of_home(tmp_path)
    assert other != key
    assert str(tmp_path / maskkey.KEY_FILE) in trouble
    assert trouble.endswith("give it mode 0600, or remove it")


def test_a_link_or_a_short_file_is_not_used(tmp_path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"k" * 32)
    target.chmod(0o600)
    (tmp_path / maskkey.KEY_FILE).symlink_to(target)
    key, trouble = maskkey.of_home(tmp_path)
    assert key != b"k" * 32
    assert trouble.endswith("remove it")


def test_a_given_key_is_the_same_everywhere() -> None:
    one = maskkey.given("a" * 16, "X")
    assert one == maskkey.given("a" * 16, "X") != maskkey.given("a" * 15 + "b", "X")
    with pytest.raises(UsageError, match=r"^X has 3 characters, .*; give at least 16"):
        maskkey.given("abc", "X")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DEFAULTS", "maybe", "set it to one of on, off"),
        ("PATHS", "user.email", "is no JSON path"),
        ("PATTERNS", "(", "is no regular expression"),
        ("HOOK", "nowhere", "does not look like module:function"),
        ("HOOK", "no_such_module:f", "No module named"),
        ("HOOK", "json:nothing", "has no attribute"),
        ("HOOK", "sys:path", "it is a list"),
        ("SECRET", "short", "too few"),
    ],
)
def test_a_wrong_setting_is_one_clear_sentence(tmp_path, name: str, value: str, says: str) -> None:
    name = f"OTEL_AGENT_REPLAY_MASK_{name}"
    with pytest.raises(UsageError) as caught:
        masking.masker(settings.read({name: value, "OTEL_AGENT_REPLAY_HOME": str(tmp_path)}))
    message = str(caught.value)
    assert name in message
    assert says in message
    assert "\n" not in message
    assert message.endswith(".")


def test_settings_become_rules() -> None:
    environ = {
        "OTEL_AGENT_REPLAY_MASK_KEYS": "ssn, Home-Address",
        "OTEL_AGENT_REPLAY_MASK_PATHS": "$.a.b,$..c",
        "OTEL_AGENT_REPLAY_MASK_PATTERNS": "a{1,2}\nb",
        "OTEL_AGENT_REPLAY_MASK_HOOK": "shlex:split",
        "OTEL_AGENT_REPLAY_MASK_DEFAULTS": "off",
    }
    rules = masking.rules(settings.read(environ).mask)
    assert rules.keys == {"ssn", "home-address"}
    assert len(rules.paths) == 2
    assert [pattern.pattern for pattern in rules.patterns] == ["a{1,2}", "b"]
    assert rules.hook is not None
    assert list(rules.hook("a b")) == ["a", "b"]
    assert not rules.defaults
    assert rules.active


def test_nothing_is_masked_where_nothing_is_asked_for(tmp_path) -> None:
    environ = {"OTEL_AGENT_REPLAY_MASK_DEFAULTS": "off", "OTEL_AGENT_REPLAY_HOME": str(tmp_path)}
    assert masking.masker(settings.read(environ)) == (None, [])
    assert not (tmp_path / maskkey.KEY_FILE).exists()
