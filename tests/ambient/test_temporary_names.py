"""Temporary files have their recorded names, whatever was left behind."""

from __future__ import annotations

import os
import tempfile

import pytest


@pytest.mark.parametrize("how", ["mkdtemp", "mkstemp", "mktemp", "bytes"])
def test_what_a_recorded_run_left_behind_has_its_name_in_every_replay(ambient, tmp_path, how):
    def run():
        if how == "mkdtemp":
            return [tempfile.mkdtemp(dir=tmp_path, prefix="a", suffix=".d") for _ in range(2)]
        if how == "mktemp":
            name = tempfile.mktemp(dir=tmp_path)
            open(name, "w").close()
            return [name]
        number, name = tempfile.mkstemp(dir=os.fsencode(tmp_path) if how == "bytes" else str(tmp_path))
        os.write(number, b"12")
        os.close(number)
        assert os.path.getsize(name) == 2
        return [os.fsdecode(name)]

    recording = ambient()
    with recording.here():
        seen = run()
    for _ in range(2):
        replay = ambient(recording)
        with replay.here():
            assert run() == seen
        assert replay.new == []
    assert {str(path) for path in tmp_path.iterdir()} == set(seen)


def test_a_name_that_others_may_have_taken_is_passed_over(ambient, tmp_path):
    def run():
        return tempfile.mkdtemp(dir=tmp_path)

    recording = ambient()
    with recording.here():
        seen = run()
    os.rmdir(seen)
    other = tmp_path / "elsewhere"
    other.mkdir()
    os.symlink(other, seen)
    with ambient(recording).here():
        assert run() != seen
    os.unlink(seen)
    os.mkdir(seen)
    os.chmod(seen, 0o777)
    with ambient(recording).here():
        assert run() != seen
