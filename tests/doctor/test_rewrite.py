"""Code with questions in it does what it did."""

from __future__ import annotations

import builtins
import io
from contextlib import redirect_stdout

import pytest

from otel_agent_replay.doctor import rewrite

PROGRAMS = {
    "loops": "for a, *b in [(1, 2, 3), (4, 5)]: print(a, b)\nprint([x for x in range(5) if x % 2 for y in (1, 2)])\n",
    "text": (
        "x = 3.14159\nprint(f'{x:>{8}.2f} {x!r} {[f\"{i}\" for i in (1,2)]}', '%d-%s' % (1, 'a'), '{:>5}'.format(2))\n"
    ),
    "bytes": "print(b'%d' % 5, 7 % 4, str(b'x', 'ascii'), repr([1]), ascii('é'), format(3, '04'))\n",
    "classes": (
        "class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return super().f() + 1\n"
        "    @property\n    def g(self): return self.f()\n    @classmethod\n    def h(cls): return cls().g\n"
        "print(B.h())\n"
    ),
    "names": "def f():\n    a = 1\n    return sorted(locals()), eval('a + 1')\nprint(f())\n",
    "unpacking": (
        "a, (b, c) = 1, (2, 3)\n[d, e] = 'xy'\nx = y = (4, 5)\nprint(a, b, c, d, e, x, y, *[6, 7], {**{'k': 1}})\n"
    ),
    "sets": "s = {1}\nprint(s.pop(), len(s), sorted({3, 2}), bool(s), ' '.join(sorted({'b', 'a'})))\n",
    "generators": "def g():\n    x = yield 1\n    yield from (x, 3)\ni = g()\nprint(next(i), i.send(2), list(i))\n",
    "async": (
        "import asyncio\nasync def g():\n    for i in range(2): yield i\n"
        "async def f(): return [i async for i in g()]\nprint(asyncio.run(f()))\n"
    ),
    "matching": "match (1, [2, 3]):\n    case (int(a), [b, *c]): print(a, b, c)\n",
    "finalisers": (
        "class A:\n"
        "    def __del__(self):\n"
        "        'doc'\n"
        "        print('gone')\n"
        "a = A()\n"
        "del a\n"
        "print(A.__del__.__doc__)\n"
    ),
    "annotations": (
        "from __future__ import annotations\ndef f(x: list[Nowhere]) -> f'{3}': return x\nprint(f.__annotations__)\n"
    ),
    "errors": (
        "try:\n"
        "    {}['x']\n"
        "except KeyError as e:\n"
        "    print(e.__traceback__.tb_lineno, [*'ab'], (lambda *a, **k: (a, k))(*[1], **{'z': 2}))\n"
    ),
}


def output(code: object) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        exec(code, {"__name__": "program"})
    return text.getvalue()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_printed(monkeypatch, name: str) -> None:
    asked: list[object] = []

    def question(held: object = None) -> object:
        asked.append(held)
        return held

    for each in (
        rewrite.OVER,
        rewrite.HELD,
        rewrite.TEXT,
        rewrite.SHOWN,
        rewrite.CALLED,
        rewrite.FINALISED,
    ):
        monkeypatch.setattr(builtins, each, question, raising=False)
    source = PROGRAMS[name]
    plain = output(compile(source, "program", "exec", dont_inherit=True))
    assert output(compile(rewrite.rewritten(source, "program"), "program", "exec", dont_inherit=True)) == plain
    assert asked
