"""Whose reading it is, by the code that makes it."""

from __future__ import annotations

import asyncio.events
import concurrent.futures.thread
import email.utils
import gzip
import logging
import random
import secrets
import sys
import tempfile
import threading
import uuid
from typing import TYPE_CHECKING

import httpx
import openai._base_client
import opentelemetry.sdk.trace
import pydantic.main
import pytest

from otel_agent_replay.boundary import callers, sites
from otel_agent_replay.boundary.callers import (
    AGENT,
    BASE,
    DISPATCH,
    LIBRARY,
    OUTSIDE,
    SEEN_THROUGH,
    STDLIB,
    TRANSPORT,
    kind_of_module,
)

if TYPE_CHECKING:
    import types


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (sys.modules[__name__], AGENT),
        (pydantic.main, LIBRARY),
        (httpx, TRANSPORT),
        (openai._base_client, TRANSPORT),
        (opentelemetry.sdk.trace, OUTSIDE),
        (pytest, OUTSIDE),
        (asyncio.events, BASE),
        (threading, BASE),
        (logging, BASE),
        (random, STDLIB),
        (uuid, STDLIB),
        (secrets, STDLIB),
        (tempfile, STDLIB),
        (gzip, SEEN_THROUGH),
        (email.utils, SEEN_THROUGH),
        (sites, BASE),
        (callers, BASE),
        (sys, STDLIB),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_kinds_of_modules(module, kind):
    assert kind_of_module(module) == kind


class Frame:
    """What is looked at of a frame, for code that cannot be made to run here."""

    def __init__(self, code: types.CodeType, name: str, back: Frame | None = None) -> None:
        self.f_code, self.f_globals, self.f_back = code, {"__name__": name}, back


def code(function) -> types.CodeType:
    return function.__code__


@pytest.mark.parametrize(
    "function", [threading.Thread.run, concurrent.futures.thread._WorkItem.run, asyncio.events.Handle._run]
)
def test_what_calls_for_the_program_stands_for_it(function):
    assert callers.kind_of(Frame(code(function), function.__module__)) == DISPATCH


def made(filename: str, name: str = "f", module: str = "m") -> Frame:
    source = compile(f"def {name}(): pass", filename, "exec")
    return Frame(next(const for const in source.co_consts if hasattr(const, "co_code")), module)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (made("/home/u/agent.py"), AGENT),
        (made("/home/u/queue.py", module="queue"), AGENT),
        (made("/home/u/.vscode/libs/debugpy/server.py", module="debugpy.server"), OUTSIDE),
        (made("/venv/lib/python3.11/site-packages/langchain_core/runs.py"), LIBRARY),
        (made("/venv/lib/python3.11/site-packages/sqlalchemy/pool/base.py"), TRANSPORT),
        (made("/venv/lib/python3.11/site-packages/sqlalchemy/sql/schema.py"), LIBRARY),
        (made("/venv/lib/python3.11/site-packages/uvicorn/main.py", module="__main__"), OUTSIDE),
        (made("/usr/lib/python3/dist-packages/six.py"), LIBRARY),
        (made("<stdin>", module="__main__"), AGENT),
        (made("<string>", "__init__", "__main__"), LIBRARY),
        (made("<string>", module="made"), LIBRARY),
        (made("<frozen importlib._bootstrap>"), BASE),
        (made("<frozen runpy>"), BASE),
        (made("<frozen os>"), STDLIB),
        (made(callers.OWN + "demo/agent.py"), AGENT),
        (made(callers.OWN + "boundary/lanes.py"), BASE),
    ],
    ids=lambda value: getattr(getattr(value, "f_code", None), "co_filename", value),
)
def test_kinds_of_files(frame, kind):
    assert callers.kind_of(frame) == kind


def test_what_was_installed_from_this_machine_is_the_program(tmp_path):
    packages = tmp_path / "site-packages"
    for name, url in (("mine", "file:///app"), ("theirs", "https://host/x.whl"), ("plain", None)):
        info = packages / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(
            f"{name}/__init__.py,sha256=x,1\n{name}_single.py,,\n../../bin/x.py,,\n{info.name}/METADATA,,\n"
        )
        if url is not None:
            (info / "direct_url.json").write_text(f'{{"url": "{url}", "dir_info": {{}}}}')
    kinds = {
        name: callers.kind_of(made(f"{packages}/{name}"))
        for name in ("mine/a.py", "mine_single.py", "theirs/a.py", "plain/a.py", "..py")
    }
    assert kinds == {
        "mine/a.py": AGENT,
        "mine_single.py": AGENT,
        "theirs/a.py": LIBRARY,
        "plain/a.py": LIBRARY,
        "..py": LIBRARY,
    }


def test_who_reads():
    agent = made("/home/u/agent.py")
    library = Frame(made("/x/site-packages/lib/a.py").f_code, "lib.a", agent)
    through = Frame(code(gzip.compress), "gzip", agent)
    stdlib = Frame(code(uuid.uuid1), "uuid", agent)
    loop = Frame(code(asyncio.BaseEventLoop.call_later), "asyncio", agent)
    transport = Frame(made("/x/site-packages/httpx/a.py").f_code, "httpx.a", agent)
    clock = {agent: agent, library: library, through: agent, stdlib: None, loop: None, transport: None}
    entropy = {agent: agent, library: library, through: agent, stdlib: agent, loop: None, transport: transport}
    for frame in clock:
        assert callers.clock_reader(frame) is clock[frame] and callers.entropy_reader(frame) is entropy[frame]
    assert callers.clock_reader(Frame(code(gzip.compress), "gzip")) is None
    assert callers.entropy_reader(Frame(code(uuid.uuid1), "uuid")) is None
    assert not callers.sleeps_really(agent) and not callers.sleeps_really(transport) and callers.sleeps_really(stdlib)


def test_a_stack_without_end_is_not_walked():
    frame = None
    for _ in range(1000):
        frame = Frame(code(uuid.uuid1), "uuid", frame)
    assert callers.entropy_reader(frame) is None


def test_code_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(callers, "_MOST_CODE", len(callers._alive))
    frame = made("/home/u/fresh.py")
    assert callers.kind_of(frame) == AGENT and id(frame.f_code) not in callers.KINDS


def test_the_frame_that_asks():
    def ask():
        return callers.caller()

    assert ask() is sys._getframe() and callers.caller(10_000) is None
