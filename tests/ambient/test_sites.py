# ruff: noqa: E501 (programs as text)
"""A reading keeps its value whatever else is edited: programs are run, edited, and run again."""

from __future__ import annotations

import itertools
import sys
import textwrap
import types
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_agent_replay.boundary.sites import SiteMap, site_of

if TYPE_CHECKING:
    from pathlib import Path

names = itertools.count()


class Tape:
    """Records readings by source and site, then answers them; what it does not know it calls new."""

    def __init__(self, recorded: Tape | None = None) -> None:
        self.values: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.recorded = recorded
        self.sites: SiteMap | None = None
        self.count = itertools.count()
        self.new = 0

    def enter(self) -> None:
        if self.recorded is not None:
            known: defaultdict[str, list[str]] = defaultdict(list)
            for source, site in self.recorded.values:
                known[source].append(site)
            self.sites = SiteMap(known, entry=sys._getframe(1))

    def read(self, source: str) -> str:
        site = site_of(sys._getframe(2))
        number = len(self.values[source, site.id])
        value = f"{source}{next(self.count)}"
        if self.recorded is not None and self.sites is not None:
            known = self.sites.resolve(source, site)
            values = self.recorded.values[source, known] if known is not None else []
            value = values[number] if number < len(values) else "new"
            self.new += value == "new"
        self.values[source, site.id].append(value)
        return value


@pytest.fixture
def program(tmp_path: Path):
    """Runs the text of a program as a module of one name, with `now`, `uid` and `draw` that read a tape."""
    name = f"edited_program_{next(names)}"

    def run(text: str, tape: Tape, module: str = name, **extra: object) -> list[object]:
        path = tmp_path / str(next(names)) / f"{module}.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(text))
        seen: list[object] = []
        loaded = types.ModuleType(module)
        loaded.__file__ = str(path)
        sys.modules[module] = loaded
        tape.enter()
        try:
            vars(loaded).update(
                now=lambda *_: tape.read("now"),
                uid=lambda *_: tape.read("uid"),
                draw=lambda *_: tape.read("draw"),
                seen=seen,
                **extra,
            )
            exec(compile(path.read_text(), str(path), "exec"), vars(loaded))
            loaded.main()
        finally:
            del sys.modules[module]
        return seen

    return run


AGENT = """
    def main():
        start = now()
        seen.append(start)
        for i in range(3):
            seen.append([i, now(), uid()])
        note = uid()
        seen.append(note)
        seen.append(work("a"))
        seen.append([draw() for _ in range(2)])
        seen.append(stamp())
        end = now()
        seen.append(end)

    def work(name):
        began = now()
        ident = uid()
        return [name, began, ident, stamp()]

    def stamp():
        return now()
"""


def edit(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


EDITS = {
    "before everything": [("start = now()", "first = now()\n        start = now()")],
    "after everything": [("        seen.append(end)\n", "        seen.append(end)\n        last = now()\n")],
    "between": [("note = uid()", "other = uid()\n        note = uid()")],
    "in a loop, before": [("seen.append([i, now(), uid()])", "x = uid()\n            seen.append([i, now(), uid()])")],
    "on a line of its own in a function": [("ident = uid()", "t = now()\n        ident = uid()")],
    "a helper that others call too": [("note = uid()", "early = stamp()\n        note = uid()")],
    "a helper, in another function": [("ident = uid()", "ident = uid()\n        stamp()")],
    "a new function that reads": [
        ("note = uid()", "fresh()\n        note = uid()"),
        ("    def stamp():", "    def fresh():\n        return now()\n\n    def stamp():"),
    ],
    "three at once": [
        ("start = now()", "a = now()\n        start = now()"),
        ("began = now()", "b = draw()\n        began = now()"),
        ("end = now()", "c = uid()\n        end = now()"),
    ],
}


@pytest.mark.parametrize("name", EDITS)
def test_one_more_reading_takes_nothing_from_the_others(program, name):
    tape = Tape()
    seen = program(AGENT, tape)
    again = Tape(tape)
    assert program(edit(AGENT, *EDITS[name]), again) == seen
    assert again.new == {"in a loop, before": 3, "three at once": 3}.get(name, 1)


SAME = {
    "nothing": [],
    "comments and blank lines": [("start = now()", "# when\n\n        start = now()  # it began")],
    "spacing": [("seen.append([i, now(), uid()])", "seen.append( [ i,now(),uid( ) ] )")],
    "a line moved": [
        ("        note = uid()\n", ""),
        ("        start = now()\n", "        note = uid()\n        start = now()\n"),
    ],
    "a line edited": [("began = now()", "began_at = began = now()")],
    "an argument added": [("note = uid()", "note = uid(4)")],
    "a variable renamed": [("start = now()\n        seen.append(start)", "first = now()\n        seen.append(first)")],
    "a function renamed": [('work("a")', 'labour("a")'), ("def work(name)", "def labour(name)")],
    "a helper renamed": [
        ("def stamp():", "def stamped():"),
        ("seen.append(stamp())", "seen.append(stamped())"),
        ("ident, stamp()]", "ident, stamped()]"),
    ],
    "a function renamed and edited": [
        ('work("a")', 'labour("a")'),
        ("def work(name)", "def labour(name)"),
        ("began = now()", "begun = began = now()"),
    ],
    "a function put into a class": [
        ('work("a")', 'Work.work("a")'),
        (
            "    def work(name):\n        began = now()\n        ident = uid()\n        return [name, began, ident, stamp()]",
            "    class Work:\n      @staticmethod\n      def work(name):\n        began = now()\n        ident = uid()\n        return [name, began, ident, stamp()]",
        ),
    ],
    "functions in another order": [
        ("\n    def stamp():\n        return now()\n", ""),
        ("    def work(name):", "    def stamp():\n        return now()\n\n    def work(name):"),
    ],
    "the whole indented": [
        ("for i in range(3):", "if True:\n          for i in range(3):"),
        ("            seen.append([i", "              seen.append([i"),
    ],
    "part of a function made its own": [
        ("        seen.append([draw() for _ in range(2)])\n        seen.append(stamp())\n", "        rest()\n"),
        (
            "    def stamp():",
            "    def rest():\n        seen.append([draw() for _ in range(2)])\n        seen.append(stamp())\n\n    def stamp():",
        ),
    ],
}


@pytest.mark.parametrize("name", SAME)
def test_an_edit_that_adds_no_reading_keeps_every_value(program, name):
    tape = Tape()
    seen = program(AGENT, tape)
    again = Tape(tape)
    text = edit(AGENT, *SAME[name])
    replayed = program(text, again)
    assert replayed == seen
    assert again.new == 0


def test_a_new_line_like_its_neighbour_is_told_by_what_stands_around(program):
    text = """
        def main():
            seen.append(now())
            log = 1
            seen.append(now())
            more = 2
            seen.append(now())
    """
    added = """
        def main():
            x = 0
            now()
            y = 0
            seen.append(now())
            log = 1
            seen.append(now())
            now()
            more = 2
            z = 0
            seen.append(now())
    """
    tape = Tape()
    seen = program(text, tape)
    assert program(added.replace("            now()", "            seen.append(now())"), again := Tape(tape)) == [
        "new",
        seen[0],
        seen[1],
        "new",
        seen[2],
    ]
    assert again.new == 2


def test_a_script_may_be_imported(program, tmp_path):
    tape = Tape()
    seen = program(AGENT, tape, module="agent_script")
    again = Tape(tape)
    assert program(AGENT, again, module="package_of.agent_script") == seen
    assert again.new == 0


def test_a_function_may_be_called_by_a_test_instead(program):
    text = AGENT.replace("def main():", "def agent():") + "\n    def main():\n        agent()\n"
    tape = Tape()
    seen = program(text, tape)
    again = Tape(tape)

    def called_by_this_test(loaded):
        return loaded["agent"]()

    text = AGENT.replace("def main():", "def agent():") + "\n    def main():\n        through(globals())\n"
    assert program(text, again, through=called_by_this_test) == seen
    assert again.new == 0


def test_two_calls_on_a_line_are_two_sites_and_a_third_is_new(program):
    tape = Tape()
    seen = program("def main():\n    seen.append([now(), now()])\n", tape)
    again = Tape(tape)
    assert program("def main():\n    seen.append([now(), now(), now()])\n", again) == [[*seen[0], "new"]]


def test_a_deleted_line_leaves_its_values_unread(program):
    tape = Tape()
    seen = program(AGENT, tape)
    again = Tape(tape)
    replayed = program(edit(AGENT, ("        note = uid()\n        seen.append(note)\n", "")), again)
    assert replayed == [value for index, value in enumerate(seen) if index != 4]
    assert again.new == 0


def test_lambdas_generators_and_decorated_functions(program):
    text = """
        import functools
        def kept(f):
            @functools.wraps(f)
            def inner(*a):
                return [now(), f(*a)]
            return inner
        @kept
        def one(x):
            return uid()
        class Thing:
            @property
            def when(self):
                return now()
            @when.setter
            def when(self, value):
                seen.append([value, now()])
        async def coroutine():
            return [now(), await inner()]
        async def inner():
            return uid()
        def main():
            f = lambda: now()
            seen.append(f())
            seen.append(list(uid() for _ in range(2)))
            seen.append([uid() for _ in range(2)])
            seen.append({now(): uid() for _ in range(2)})
            seen.append(one(1))
            thing = Thing()
            thing.when = 1
            seen.append(thing.when)
            try:
                coroutine().send(None)
            except StopIteration as stop:
                seen.append(stop.value)
            seen.append(list(map(uid, range(2))))
    """
    tape = Tape()
    seen = program(text, tape)
    again = Tape(tape)
    assert program(text, again) == seen and again.new == 0
    changed = edit(
        text,
        ("f = lambda: now()", "g = lambda: uid()\n            g()\n            f = lambda: now()"),
        ("thing = Thing()", "now()\n            thing = Thing()"),
    )
    again = Tape(tape)
    assert program(changed, again) == seen and again.new == 2


LINES = [
    "a = now()",
    "b = uid()",
    "seen.append(now())",
    "seen.append(uid())",
    "k = 1",
    "seen.append([now(), uid()])",
    "work()",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_line_is_added_the_others_keep_their_values(program, data):
    """Property: distinct lines, one more put anywhere: only the new line's readings are new."""
    lines = data.draw(
        st.permutations(
            [
                f"seen.append(['{i}', {call}()])"
                for i, call in enumerate(["now", "uid", "draw", "stamp", "now", "stamp"])
            ]
        )
    )
    new = data.draw(st.sampled_from(["now()", "uid()", "stamp()", "draw()", "extra = [now(), uid()]"]))
    at = data.draw(st.integers(0, len(lines)))
    rest = "\ndef stamp():\n    return now()\n"
    body = "def main():\n    " + "\n    ".join(lines) + rest
    changed = "def main():\n    " + "\n    ".join([*lines[:at], new, *lines[at:]]) + rest
    tape = Tape()
    seen = program(body, tape)
    again = Tape(tape)
    assert program(changed, again) == seen
    assert again.new == (2 if "," in new else 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_program_an_unchanged_one_reads_the_same(program, data):
    """Property: also with repeated lines, in loops and helpers."""
    lines = data.draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=12))
    body = (
        "def main():\n    for _ in range(2):\n        "
        + "\n        ".join(lines)
        + "\ndef work():\n    seen.append(now())\n"
    )
    tape = Tape()
    seen = program(body, tape)
    again = Tape(tape)
    assert program(body, again) == seen and again.new == 0
