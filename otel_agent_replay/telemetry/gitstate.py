"""The commit of a work tree, read from its files, and whether the tree differs from it, asked of git."""

from __future__ import annotations

import os
import re
import select
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PATIENCE_MS = 20
"""At the end of a run the answer is waited for so long; it is nearly always there."""

# git runs as a process that is nobody's child by the time the program starts: a program that reaps any child
# (`os.wait`), or counts its own, never meets it.
_SCRIPT = (
    '(if s=$(git -C "$1" -c core.fsmonitor=false status --porcelain --ignore-submodules=dirty 2>/dev/null); then '
    '[ -z "$s" ] && echo clean || echo dirty; fi) &'
)
_SHELL = "/bin/sh"
_HEX = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

_spawn = getattr(os, "posix_spawn", None)

_answers: list[tuple[int, int]] = []
"""Descriptor and inode of the pipe that the answer comes through."""


def describe(directory: Path) -> dict[str, str] | None:
    """`commit` and `branch` (each where there is one) of the work tree; None outside of one."""
    found = _git_directory(directory)
    if found is None:
        return None
    head = _text(found / "HEAD")
    state: dict[str, str] = {}
    if head.startswith("ref: "):
        name = head[5:].strip()
        state["branch"] = name.removeprefix("refs/heads/")
        commit = _resolve(found, name)
    else:
        commit = head.strip()
    if _HEX.fullmatch(commit):
        state["commit"] = commit
    return state


def ask(directory: Path, environ: Mapping[str, str]) -> None:
    """Let git find out whether the tree is dirty, meanwhile."""
    if _answers or _spawn is None:
        return
    reader, writer = os.pipe()
    try:
        child = _spawn(
            _SHELL,
            ["sh", "-c", _SCRIPT, "sh", str(directory)],
            {**environ, "GIT_OPTIONAL_LOCKS": "0"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
    except OSError:
        os.close(reader)
        return
    finally:
        os.close(writer)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
    _answers.append((reader, os.fstat(reader).st_ino))


def asked() -> bool:
    """Whether an answer is to be had."""
    return bool(_answers)


def answer() -> bool | None:
    """Whether the tree was dirty; None where git has not said. It can be had once."""
    if not _answers:
        return None
    reader, inode = _answers.pop()
    try:
        if os.fstat(reader).st_ino != inode:  # the program closed it, and the number is another file's
            return None
        poll = select.poll()
        poll.register(reader, select.POLLIN | select.POLLHUP)
        said = os.read(reader, 16) if poll.poll(PATIENCE_MS) else b""
        os.close(reader)
    except OSError:
        return None
    return {b"dirty": True, b"clean": False}.get(said.strip())


def _git_directory(directory: Path) -> Path | None:
    for above in (directory, *directory.parents):
        entry = above / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():  # a linked work tree or a submodule
            text = _text(entry)
            if text.startswith("gitdir: "):
                return above / text[8:].strip()
    return None


def _resolve(found: Path, name: str) -> str:
    """The commit that a reference names; empty where there is none yet."""
    common = _text(found / "commondir").strip()
    for place in (found, found / common) if common else (found,):
        commit = _text(place / name).strip()
        if commit:
            return commit
        for line in _text(place / "packed-refs").splitlines():
            commit, _, packed = line.partition(" ")
            if packed == name:
                return commit
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
