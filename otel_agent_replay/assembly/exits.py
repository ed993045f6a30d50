"""The status that a program ends with by `SystemExit`, however it is raised.

Python tells nobody but its own shutdown code, and that asks the exception for its `code` once no code of the program
is left to run. So `SystemExit.code` is made to say when it is asked for from nowhere.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from otel_agent_replay.boundary import builtin

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "code"


class _Code:
    """What `SystemExit.code` was, telling what it gives to the interpreter as that ends the process."""

    __slots__ = ("_told", "member")

    def __init__(self, member: Any, told: Callable[[object], None]) -> None:
        self.member = member
        self._told = told

    def __get__(self, error: SystemExit | None, kind: type | None = None) -> Any:
        if error is None:
            return self.member
        code = self.member.__get__(error, kind)
        try:
            sys._getframe(1)  # noqa: SLF001 (there is no other way to a caller)
        except ValueError:
            if threading.current_thread() is threading.main_thread():
                self._told(code)
        return code

    def __set__(self, error: SystemExit, code: object) -> None:
        self.member.__set__(error, code)

    def __delete__(self, error: SystemExit) -> None:
        self.member.__delete__(error)


def watch(told: Callable[[object], None]) -> bool:
    """Have `told` called with the code of the `SystemExit` that ends this process, for as long as it lives.

    False where this interpreter has it in another way: then the status of such an end is not known.
    """
    member = vars(SystemExit).get(_NAME)
    if not hasattr(member, "__set__"):
        return False
    builtin.put(SystemExit, {_NAME: _Code(member.member if isinstance(member, _Code) else member, told)})
    return True
