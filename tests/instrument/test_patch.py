"""The patch table: lazy, all or nothing, and gone without a trace."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
import uuid
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from otel_agent_replay.boundary import lanes
from otel_agent_replay.instrument._patch import Library, Target, install
from otel_agent_replay.instrument.instrumentors import (
    AnthropicReplayInstrumentor,
    HttpxReplayInstrumentor,
    OpenAIReplayInstrumentor,
)
from otel_agent_replay.instrument.wired import LIBRARIES
from otel_agent_replay.recording.values import NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def shout(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def louder(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs).upper()

    return louder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a package of this source that has never been imported; gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**modules: str) -> str:
        name = f"library_{uuid.uuid4().hex}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        for module, source in modules.items():
            (tmp_path / name / f"{module}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return name

    return make


CLIENT = """
class Base:
    def say(self, word, times=1):
        return word * times

class Client(Base):
    pass
"""


def library(name: str, *targets: Target) -> Library:
    return Library(name, targets or (Target(f"{name}.client", "Base.say", shout, ("word",)),))


def test_it_is_patched_when_it_is_imported_and_not_before(package: Any) -> None:
    name, notes = package(client=CLIENT), []
    uninstall = install([library(name)], notes.append)
    assert name not in sys.modules
    client = importlib.import_module(f"{name}.client")
    assert client.Client().say("a") == "A"
    assert list(inspect.signature(client.Base.say).parameters) == ["self", "word", "times"]
    uninstall()
    assert client.Client().say("a") == "a"
    assert notes == []


def test_it_is_patched_at_once_where_it_is_imported_already(package: Any) -> None:
    name = package(client=CLIENT)
    client = importlib.import_module(f"{name}.client")
    uninstall = install([library(name)], pytest.fail)
    assert client.Client().say("a") == "A"
    uninstall()
    assert client.Client().say("a") == "a"


def test_two_installs_patch_once_and_the_last_uninstall_takes_it_out(package: Any) -> None:
    name = package(client=CLIENT)
    client = importlib.import_module(f"{name}.client")
    original = client.Base.say
    first, second = install([library(name)], pytest.fail), install([library(name)], pytest.fail)
    assert client.Base.say.__wrapped__ is original
    first()
    first()
    assert client.Client().say("a") == "A"
    second()
    assert client.Base.say is original


def test_it_can_be_installed_again(package: Any) -> None:
    name = package(client=CLIENT)
    install([library(name)], pytest.fail)()
    client = importlib.import_module(f"{name}.client")
    assert client.Client().say("a") == "a"
    uninstall = install([library(name)], pytest.fail)
    assert client.Client().say("a") == "A"
    uninstall()
    assert client.Client().say("a") == "a"


def test_an_inherited_method_is_patched_on_its_class_alone(package: Any) -> None:
    name = package(client=CLIENT)
    client = importlib.import_module(f"{name}.client")
    uninstall = install([library(name, Target(f"{name}.client", "Client.say", shout))], pytest.fail)
    assert (client.Client().say("a"), client.Base().say("a")) == ("A", "a")
    uninstall()
    assert "say" not in vars(client.Client)


def test_somebody_else_around_ours_stays_and_ours_is_not_put_in_twice(package: Any) -> None:
    name = package(client=CLIENT)
    client = importlib.import_module(f"{name}.client")
    uninstall = install([library(name)], pytest.fail)
    ours = client.Base.say

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) + "!"

    client.Base.say = theirs
    uninstall()
    assert client.Base.say is theirs
    again = install([library(name)], pytest.fail)
    assert client.Base.say is theirs
    assert client.Client().say("a") == "A!"
    again()


def test_an_absent_library_is_silent() -> None:
    install([library("no_such_library_anywhere")], pytest.fail)()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("class Other: pass", "has no Base.say"),
        ("class Base:\n    say = 3", "is no function"),
        ("class Base:\n    def say(self, other, word): pass", r"takes \(other, word\)"),
    ],
)
def test_a_library_of_another_shape_is_reported_and_left_alone(package: Any, source: str, why: str) -> None:
    name, notes = package(client="class Fine:\n    def say(self, word): return word", moved=source), []
    targets = (
        Target(f"{name}.client", "Fine.say", shout, ("word",)),
        Target(f"{name}.moved", "Base.say", shout, ("word",)),
    )
    uninstall = install([library(name, *targets)], notes.append)
    client = importlib.import_module(f"{name}.client")
    importlib.import_module(f"{name}.moved")
    (note,) = notes
    assert note.kind is NoteKind.UNKNOWN_SHAPE
    assert note.where == name
    assert note.incomplete
    assert re.search(why, note.what)
    assert client.Fine().say("a") == "a", "what was already patched is taken out again"
    late: list[Any] = []
    install([library(name, *targets)], late.append)()
    assert late == notes, "whoever installs later is told too"
    uninstall()


def test_a_module_that_is_gone_is_reported_when_its_package_is_imported(package: Any) -> None:
    name, notes = package(elsewhere=CLIENT), []
    uninstall = install([library(name)], notes.append)
    importlib.import_module(name)
    (note,) = notes
    assert f"no module {name}.client" in note.what
    uninstall()


def test_importing_the_package_imports_no_library() -> None:
    program = """
        import sys
        from otel_agent_replay.instrument._patch import install
        from otel_agent_replay.instrument.wired import LIBRARIES
        import otel_agent_replay.instrument.clients
        install(LIBRARIES, print)
        print(sorted({"openai", "anthropic", "httpx", "httpx2"} & set(sys.modules)))
        import httpx
        print(hasattr(httpx.Client.send, "__wrapped__"), "httpx2" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["[]", "True False"], done.stderr


def test_an_alias_of_httpx_is_patched_once(patched: Any) -> None:
    program = """
        import sys, httpx2
        httpx2.alias_httpx()
        from otel_agent_replay.instrument._patch import install
        from otel_agent_replay.instrument.wired import LIBRARIES
        install(LIBRARIES, print)
        import httpx
        assert httpx is httpx2
        print(hasattr(httpx2.Client.send.__wrapped__, "__wrapped__"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stdout + done.stderr


def test_the_real_libraries_look_as_their_tables_say(patched: list[Any]) -> None:
    for target in (target for one in LIBRARIES for target in one.targets):
        parent, _, attribute = target.name.rpartition(".")
        module = importlib.import_module(target.module)
        assert hasattr(getattr(getattr(module, parent), attribute), "__wrapped__"), target
    assert patched == []


def test_colours_and_names_survive(patched: Any) -> None:
    assert inspect.iscoroutinefunction(httpx2.AsyncClient.send)
    assert not inspect.iscoroutinefunction(httpx2.Client.send)
    assert httpx2.Client.send.__qualname__ == "Client.send"
    assert "cast_to" in inspect.signature(openai.OpenAI.request).parameters


@pytest.mark.parametrize(
    "instrumentor", [OpenAIReplayInstrumentor, AnthropicReplayInstrumentor, HttpxReplayInstrumentor]
)
def test_the_instrumentors_use_the_same_table(instrumentor: Any, patched: Any) -> None:
    one = instrumentor()
    before = httpx2.Client.send
    one.instrument()
    assert httpx2.Client.send is before, "already patched"
    one.uninstrument()
    assert httpx2.Client.send is before, "somebody else still uses it"
    assert one.instrumentation_dependencies() == ()


def test_an_instrumentor_notes_an_unknown_shape_in_the_run(package: Any, tape: Any) -> None:
    name = package(client="")

    class Broken(HttpxReplayInstrumentor):
        libraries = (library(name),)
        _instance = None

    importlib.import_module(f"{name}.client")
    with tape.record() as session:
        assert lanes.current() is session.root
        Broken().instrument()
    (note,) = session.notes
    assert note.kind is NoteKind.UNKNOWN_SHAPE
    Broken().uninstrument()
