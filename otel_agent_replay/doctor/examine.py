"""Runs a Python program as `python` would, with somebody looking.

    python -m otel_agent_replay.doctor.examine FILE (SCRIPT | -m MODULE | -c CODE) [ARGUMENT ...]

What is seen is written to FILE. Code is compiled anew, from its source, and nothing of it is cached.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

from otel_agent_replay.boundary.callers import AGENT, kind_of_module
from otel_agent_replay.doctor.watch import Watch, compiled, to_file

if TYPE_CHECKING:
    from types import CodeType

_THRESHOLDS = (100, 5, 5)
"""Of the garbage collector: what depends on it shows in a short run too."""


def main() -> None:
    """Look at the program, and run it."""
    watch = Watch(to_file(Path(sys.argv[1])))
    del sys.argv[:2]
    _compile_with_questions()
    code, module = _program()
    watch.install()
    gc.set_threshold(*_THRESHOLDS)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)  # noqa: S102 (it is the program)


def _program() -> tuple[CodeType, types.ModuleType]:
    """The code of the program, and the module to run it in; `sys.argv` and `sys.path` become the program's."""
    module = types.ModuleType("__main__")
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    first = sys.argv.pop(0)
    if first == "-c":
        code = compiled(sys.argv[0].encode(), "<string>")
        sys.argv[0] = "-c"
        sys.path[0] = ""
        return code, module
    if first == "-m":
        spec = importlib.util.find_spec(sys.argv[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{sys.argv[0]}.__main__")
        if spec is None or spec.origin is None:
            sys.exit(f"{sys.executable}: No module named {sys.argv[0]}")
        module.__spec__, module.__package__ = spec, spec.parent
        path = Path(spec.origin)
        sys.path[0] = str(Path.cwd())
    else:
        path = Path(first)
        if path.is_dir():
            path /= "__main__.py"
        sys.argv.insert(0, first)
        sys.path[0] = str(path.resolve().parent)
    sys.argv[0] = str(path)
    module.__file__ = str(path.absolute())
    return compiled(path.read_bytes(), module.__file__), module


def _compile_with_questions() -> None:
    """Let the program's own modules have the questions too."""
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        module = types.ModuleType(fullname)
        module.__file__ = path
        if kind_of_module(module) != AGENT:
            return original(self, fullname)
        return compiled(self.get_data(path), path)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main()
