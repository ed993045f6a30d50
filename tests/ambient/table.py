"""Rows of the table of everything that hands out the world, and the program that reads them all.

Rows stand in `rows_*.py` beside this, each a module with a list `ROWS`; `test_table.py` finds those by itself.
The program prints what each form of each row gave. It is recorded in one process and replayed in another one,
on another day and with another hash seed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

FORMS = {
    "attribute": "{function}({arguments})",
    "alias": "alias_{n}({arguments})",
    "partial": "partial_{n}()",
    "class attribute": "Holder_{n}.read({arguments})",
    "default argument": "default_{n}()",
    "dataclass": "Data_{n}().at",
    "pydantic": "Model_{n}().at",
}
"""How a program may come to call a function: all but the first are bound where its module is loaded."""

_BINDINGS = """
alias_{n} = {function}
partial_{n} = functools.partial({function}{after})
class Holder_{n}:
    read = staticmethod({function})
def default_{n}(read={function}):
    return read({arguments})
@dataclasses.dataclass
class Data_{n}:
    at: object = dataclasses.field(default_factory={factory})
class Model_{n}(pydantic.BaseModel):
    at: typing.Any = pydantic.Field(default_factory={factory})
"""

_HEAD = """
import dataclasses, functools, json, sys, typing, warnings
import pydantic

warnings.simplefilter("ignore")

def shown(value):
    more = [value.tm_zone, value.tm_gmtoff] if hasattr(value, "tm_zone") else []
    return [type(value).__name__, repr(value), *more]

def attempt(read):
    try:
        return shown(read())
    except Exception as error:
        return ["raised", type(error).__name__, str(error)]
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One function, read in every form, or one expression.

    Args:
        name: what the test is called.
        function: an expression that gives what is called, such as ``time.time``.
        arguments: what it is called with, as text.
        expression: instead of a function, what is read.
        setup: lines at the head of the program; the same line of several rows stands there once.
        varies: whether what it gives is another on another day, in another process: if so, that is tested too.
        forms: where not all of them make sense.
        before: the forms that also hold where a name was bound before anything was patched.
    """

    name: str
    function: str = ""
    arguments: str = ""
    expression: str = ""
    setup: str = ""
    varies: bool = True
    forms: tuple[str, ...] = tuple(FORMS)
    before: tuple[str, ...] = ("attribute",)

    def reads(self, number: int) -> dict[str, str]:
        """What is evaluated, by form; an expression has the form `attribute` only."""
        if self.expression:
            return {"attribute": self.expression}
        names = {"n": number, "function": self.function, "arguments": self.arguments}
        return {form: FORMS[form].format(**names) for form in self.forms}

    def bindings(self, number: int) -> str:
        if self.expression:
            return ""
        after = f", {self.arguments}" if self.arguments else ""
        factory = f"partial_{number}" if self.arguments else self.function
        return _BINDINGS.format(
            n=number, function=self.function, arguments=self.arguments, after=after, factory=factory
        )


def rows() -> list[Row]:
    """All rows of all modules beside this one."""
    found: list[Row] = []
    for path in sorted(Path(__file__).parent.glob("rows_*.py")):
        found += importlib.import_module(f"tests.ambient.{path.stem}").ROWS
    assert len({row.name for row in found}) == len(found), "two rows have one name"
    return found


def program(table: list[Row]) -> str:
    """A module whose `read_all` gives, by name and form, two readings each."""
    setup = dict.fromkeys(line for row in table for line in row.setup.splitlines() if line.strip())
    lines = [_HEAD, *setup]
    functions = []
    for number, row in enumerate(table):
        lines.append(row.bindings(number))
        lines.append(f"def read_{number}():\n    found = {{}}")
        for form, text in row.reads(number).items():
            lines.append(f"    found[{form!r}] = [attempt(lambda: {text}), attempt(lambda: {text})]")
        lines.append("    return found\n")
        functions.append(f"{row.name!r}: read_{number}()")
    lines.append(f"def read_all():\n    return {{{', '.join(functions)}}}\n")
    return "\n".join(lines)
