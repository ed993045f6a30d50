"""What is told of a program that is looked at while it runs; nothing of it is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def looked(folder: Path, program: str, *arguments: str) -> list[tuple[str, int]]:
    """Kind and line of what is told of a program."""
    (folder / "program.py").write_text(program)
    line = [sys.executable, "-m", "otel_agent_replay.doctor.examine", "seen", "program.py", *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr
    seen = folder / "seen"
    told = [json.loads(each) for each in seen.read_text().splitlines()]
    return [(each.get("kind", each["about"]), int(each["where"].rpartition(":")[2])) for each in told]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("class A: pass\nfor a in {A(), A()}: pass\n", [("set-order", 2)]),
        ("class A: pass\nx, y = {A(), A()}\n", [("set-order", 2)]),
        ("class A: pass\ns = {A(), A()}\ns.pop()\n", [("set-order", 3)]),
        ("class A: pass\nprint(*{A(), (A(), 1)}, sep='')\n", [("set-order", 2)]),
        ("for a in {print, len}: pass\n", [("set-order", 1)]),
        ("class A:\n    def __hash__(self): return 1\nfor a in {A(), A()}: pass\n", []),
        ("for a in {'a', 'b'} | {1, 2}: pass\nclass A: pass\nlen({A(), A()})\nfor a in {A()}: pass\n", []),
        ("class A: pass\nprint(A())\n", [("address", 2)]),
        ("class A: pass\nprint(str(A()))\nx = '%s' % A()\n", [("address", 2), ("address", 3)]),
        ("class A: pass\nx = '{}'.format([A()])\n", [("address", 2)]),
        ("x = f'{1:#x} 0x7f00deadbeef {print}'\n", []),
        ("print(open('/proc/self/stat').read()[:0])\n", [("device", 1)]),
        ("import os\nos.environ.get('A_NAME')\nos.getenv('A_NAME')\n'B_NAME' in os.environ\n",
         [("environment", 2), ("environment", 4)]),
        ("import os\ndef f():\n    return [os.environ[n] for n in ('PATH',)]\nf()\n", [("environment", 3)]),
        ("import os\nfor name, value in os.environ.items():\n    print(name, value)\n", [("environment", 2)]),
        ("import os\nchild = {**os.environ, 'A': '1'} | dict(os.environ) | os.environ.copy()\n", []),
        ("import ctypes\nctypes.CDLL(None).rand()\n", [("entropy", 2)]),
        ("import time, datetime\ntime.time()\ndatetime.datetime.now()\n", []),
        ("import gc\ngc.get_objects()\ngc.collect()\n", [("garbage-collection", 2)]),
        ("import gc\nclass A:\n    def __init__(self): self.me = self\n    def __del__(self): self.x = 1\n"
         "A()\ngc.collect()\n", []),
    ],
)  # fmt: skip
def test_what_is_told(tmp_path: Path, program: str, expected: list[tuple[str, int]]) -> None:
    assert looked(tmp_path, program) == expected


def test_numpy_reads_the_clock_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    program = "import numpy\nnumpy.datetime64('now')\nnumpy.datetime64('2001-01-01')\nnumpy.int64(3)\n"
    assert looked(tmp_path, program) == [("clock", 2)]


def test_arguments_and_the_main_module_are_the_programs(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, pickle\nclass A: pass\n"
        "assert sys.argv == ['program.py', '-x', '--', 'y'], sys.argv\n"
        "assert pathlib.Path(__file__) == pathlib.Path('program.py').absolute()\n"
        "assert sys.path[0] == str(pathlib.Path.cwd()), sys.path\n"
        "assert type(pickle.loads(pickle.dumps(A()))) is A\nassert sys.modules['__main__'].A is A\n"
    )
    assert looked(tmp_path, program, "-x", "--", "y") == []
