"""Builds the part of the package that is written in C, where there is a compiler; the package does without it too."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

MODULE = "otel_agent_replay.instrument._keeping"


class CompiledPart(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel, and puts it beside its source for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, unless a source distribution is made."""
        if self.target_name != "wheel":
            return
        where = Path(self.root, *MODULE.split(".")[:-1])
        folder = Path(tempfile.mkdtemp(prefix="otel-agent-replay-build-"))
        built = _built(where / "_keeping.c", folder)
        if built is None:
            sys.stderr.write("No C compiler, or no headers of Python: readings of the clock will cost more.\n")
        elif version == "editable":
            shutil.copy2(built, where / built.name)
        else:
            build_data["force_include"][str(built)] = "/".join([*MODULE.split(".")[:-1], built.name])
        if built is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        self._folder = folder

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was only needed for building."""
        if self.target_name == "wheel":
            shutil.rmtree(self._folder, ignore_errors=True)


def _built(source: Path, folder: Path) -> Path | None:
    """The compiled module; None where it cannot be made."""
    extension = Extension(MODULE, [str(source)], optional=True)
    command = build_ext(Distribution({"name": "otel-agent-replay", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    built = Path(command.get_ext_fullpath(MODULE))
    return built if built.exists() else None
