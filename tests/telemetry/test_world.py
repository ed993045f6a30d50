"""What a run found around it, and the signature that shows who recorded it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from importlib import metadata
from types import SimpleNamespace
from typing import TYPE_CHECKING

import orjson
import pytest

from otel_agent_replay.telemetry import gitstate, packages, trust, world

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 30
SETTINGS = SimpleNamespace(environment=("REGION", "OPENAI_API_KEY", "ABSENT"), include=(), exclude=())


def git(directory: Path, *arguments: str) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=trunk",
        "-c",
        "protocol.file.allow=always",
    ]
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    git(directory, "init", "-q")
    (directory / "agent.py").write_text("print(1)\n")
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "one")
    return directory


def wait_for_git() -> None:
    """Longer than a program's end would."""
    select.select([gitstate._answers[-1][0]], [], [], LIMIT)


def answer() -> bool | None:
    """Whether git said dirty."""
    wait_for_git()
    return gitstate.answer()


def test_the_world_is_described(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tree / "src"
    below.mkdir()
    monkeypatch.chdir(below)
    environ = {
        "REGION": "north",
        "OPENAI_API_KEY": "sk-secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HF_TOKEN": "secret",
        "TOKENIZERS_PARALLELISM": "false",
        "PWD": "/x",
        "KEYBOARD": "us",
        "SSH_AUTH_SOCK": "/s",
        "PYTHONHASHSEED": "42",
        "PATH": os.environ["PATH"],
    }
    found = world.describe_world(SETTINGS, environ)
    assert answer() is False
    assert found["directory"] == str(below)
    assert found["argv"] == sys.orig_argv
    assert found["executable"] == sys.executable
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["hash_seed"] == "42"
    assert found["host"] == os.uname().nodename
    assert found["user"] == os.getuid()
    assert found["environment"] == {"REGION": "north", "ABSENT": None}
    assert found["credentials"] == ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OPENAI_API_KEY"]
    assert found["git"] == {"branch": "trunk", "commit": git(tree, "rev-parse", "HEAD")}
    assert b"secret" not in orjson.dumps(found)


def test_describing_costs_the_start_and_the_end_of_a_program_little(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    start, end = [], []
    for _ in range(5):
        began = time.perf_counter()
        world.describe_world(SETTINGS, os.environ)
        start.append(time.perf_counter() - began)
        answer()
        began = time.perf_counter()
        world.describe_end(SETTINGS)
        end.append(time.perf_counter() - began)
    assert min(start) < 0.05
    assert min(end) < 0.3


def test_the_end_says_what_was_imported_and_whether_the_tree_was_dirty(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "new.py").write_text("")
    monkeypatch.chdir(tree)
    world.describe_world(SETTINGS, os.environ)
    wait_for_git()
    found = world.describe_end(SETTINGS)
    assert found["git_dirty"] is True
    installed = found["packages"]
    assert isinstance(installed, dict)
    assert installed["pytest"] == metadata.version("pytest")
    assert installed["opentelemetry_sdk"] == metadata.version("opentelemetry-sdk")
    assert installed["opentelemetry_api"] == metadata.version("opentelemetry-api")
    assert "git_dirty" not in world.describe_end(SETTINGS)


def test_git_is_nobodys_child(tree: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from otel_agent_replay.telemetry import gitstate\n"
        "gitstate.ask(Path(sys.argv[1]), os.environ)\n"
        "try:\n    os.waitpid(-1, 0)\nexcept ChildProcessError:\n    print('no child')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tree)], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout == "no child\n"


def test_a_descriptor_that_became_another_file_is_not_read(tree: Path, tmp_path: Path) -> None:
    gitstate.ask(tree, os.environ)
    reader, _ = gitstate._answers[-1]
    theirs = tmp_path / "theirs"
    theirs.write_text("dirty")
    opened = os.open(theirs, os.O_RDONLY)
    os.dup2(opened, reader)
    try:
        assert gitstate.answer() is None
        assert os.read(reader, 9) == b"dirty"
    finally:
        os.close(opened)
        os.close(reader)


def test_outside_of_a_work_tree_there_is_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gitstate.describe(tmp_path) is None
    monkeypatch.chdir(tmp_path)
    assert "git" not in world.describe_world(SETTINGS, os.environ)
    assert not gitstate.asked()


def test_commits_are_found_wherever_git_keeps_them(tree: Path, tmp_path: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    assert gitstate.describe(tree) == {"branch": "trunk", "commit": commit}
    git(tree, "pack-refs", "--all")
    assert gitstate.describe(tree) == {"branch": "trunk", "commit": commit}
    git(tree, "checkout", "-q", "--detach")
    assert gitstate.describe(tree) == {"commit": commit}
    git(tree, "worktree", "add", "-q", "-b", "side/one", str(tmp_path / "linked"))
    assert gitstate.describe(tmp_path / "linked") == {"branch": "side/one", "commit": commit}
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    assert gitstate.describe(outer) == {"branch": "trunk"}
    git(outer, "submodule", "add", "-q", str(tree), "inner")
    inner = gitstate.describe(outer / "inner")
    assert inner is not None
    assert inner["commit"] == commit


def test_a_tree_that_git_refuses_has_no_answer(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("nonsense")
    assert gitstate.describe(tmp_path) == {}
    gitstate.ask(tmp_path, os.environ)
    assert answer() is None


def test_packages_agree_with_the_metadata_of_all() -> None:
    tops = {name.partition(".")[0] for name in sys.modules}
    provided = metadata.packages_distributions()
    found = {_plain(name) for name in packages.imported()}
    for top in tops - {"opentelemetry", "google", "_distutils_hack"}:
        if top in provided:
            assert {_plain(name) for name in provided[top]} & found, top


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def test_packages_of_odd_shapes_are_found(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, file, version in (
        ("PyOdd", "odd/__init__.py", "1.2"),
        ("space-one", "shared/one/__init__.py", "2.0rc1"),
        ("space-two", "shared/two/__init__.py", "3"),
        ("single", "single.py", "4.0"),
    ):
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(f"{file},sha256=x,1\n{info.name}/RECORD,,\n")
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text("")
    old = site / "Old-5.0-py3.11.egg-info"
    old.mkdir()
    (old / "top_level.txt").write_text("elder\n")
    (site / "elder.py").write_text("")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import odd, shared.one, single, elder\n"
        "from otel_agent_replay.telemetry import packages; print(packages.imported(path=[sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.strip() == str({"Old": "5.0", "PyOdd": "1.2", "single": "4.0", "space_one": "2.0rc1"})


ARGV = ["/usr/bin/python", "agent.py", "--name", "é\udcff"]


def test_a_signature_verifies_only_what_was_signed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    signature = trust.sign(home, "run-1", ARGV, "/srv/agent")
    assert len(signature) == 64
    assert trust.verify(home, "run-1", ARGV, "/srv/agent", signature)
    assert trust.sign(home, "run-1", ARGV, "/srv/agent") == signature
    assert not trust.verify(home, "run-2", ARGV, "/srv/agent", signature)
    assert not trust.verify(home, "run-1", [*ARGV, ""], "/srv/agent", signature)
    assert not trust.verify(home, "run-1", ["/usr/bin/pythonagent.py", *ARGV[2:]], "/srv/agent", signature)
    assert not trust.verify(home, "run-1", ARGV, "/other", signature)
    assert not trust.verify(home, "run-1", ARGV, "/srv/agent", signature[:-1] + ("0" if signature[-1] != "0" else "1"))
    assert not trust.verify(home, "run-1", ARGV, "/srv/agent", "")
    assert not trust.verify(home, "run-1", ARGV, "/srv/agent", "é\ud800")
    assert not trust.verify(tmp_path / "elsewhere", "run-1", ARGV, "/srv/agent", signature)
    assert not (tmp_path / "elsewhere").exists()
    assert trust.sign(tmp_path / "elsewhere", "run-1", ARGV, "/srv/agent") != signature


def test_the_key_is_this_users_alone(tmp_path: Path) -> None:
    signature = trust.sign(tmp_path, "run", ARGV, "/")
    key = tmp_path / trust.KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    assert list(tmp_path.iterdir()) == [key]
    key.chmod(0o644)
    assert not trust.verify(tmp_path, "run", ARGV, "/", signature)
    assert trust.sign(tmp_path, "run", ARGV, "/") == ""
    key.chmod(0o600)
    assert trust.verify(tmp_path, "run", ARGV, "/", signature)
    key.rename(tmp_path / "other")
    key.symlink_to(tmp_path / "other")
    assert not trust.verify(tmp_path, "run", ARGV, "/", signature)


def test_one_key_however_many_make_it(tmp_path: Path) -> None:
    found: list[str] = []
    ready = threading.Barrier(8)

    def sign() -> None:
        ready.wait(LIMIT)
        found.append(trust.sign(tmp_path / "home", "run", ARGV, "/"))

    threads = [threading.Thread(target=sign) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == [trust.KEY_FILE]


def test_a_home_that_cannot_be_written_signs_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    assert trust.sign(tmp_path / "home", "run", ARGV, "/") == ""
    assert not trust.verify(tmp_path / "home", "run", ARGV, "/", "0" * 64)
