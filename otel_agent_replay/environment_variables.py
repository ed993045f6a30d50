"""What `opentelemetry-instrument` loads before it starts the program: our settings, each offered as a flag.

In that process, and in no other that imports this, it also names our distro, so that another one that is
installed makes the choice no coin toss, and fixes the hash seed: the order of a set of strings is part of what a
replay has to repeat, and the program inherits the environment that is set here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from otel_agent_replay import settings
from otel_agent_replay.boundary import real

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import FrameType

_LAUNCHER = "opentelemetry.instrumentation.auto_instrumentation"
_OURS = {"OTEL_PYTHON_DISTRO": "agent_replay", "OTEL_PYTHON_CONFIGURATOR": "agent_replay"}
_LARGEST_SEED = 2**32 - 1

globals().update({name: value for name, value in vars(settings).items() if name.startswith("OTEL_")})


def prepare(environ: MutableMapping[str, str]) -> None:
    """Set what the program is to be started with, where the user has not.

    A flag of the launcher is read after this, so it wins.
    """
    for name, value in _OURS.items():
        environ.setdefault(name, value)
    if environ.get("PYTHONHASHSEED", "random") in ("", "random"):
        seed = 1 + int.from_bytes(real.urandom(8), "big") % _LARGEST_SEED
        environ["PYTHONHASHSEED"] = str(seed)


def _launching() -> bool:
    """Whether the launcher imports this, to look for flags."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 (the one way to the calling frames)
    while frame is not None:
        if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == _LAUNCHER:
            return True
        frame = frame.f_back
    return False


if _launching():
    prepare(os.environ)
