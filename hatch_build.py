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

MODULES = {
    "otel_agent_replay.instrument._keeping": "_keeping.c",
    "otel_agent_replay.recording._compiled": "native/*.c",
}
"""Which files, beside the module, each is made of."""


class CompiledParts(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, and puts them beside their sources for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build them, unless a source distribution is made."""
        if self.target_name != "wheel":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="otel-agent-replay-build-"))
        for module, files in MODULES.items():
            package = module.split(".")[:-1]
            where = Path(self.root, *package)
            built = _built(module, sorted(map(str, where.glob(files))), self._folder)
            if built is None:
                sys.stderr.write(
                    f"No C compiler, or no headers of Python: {module} is left out, recording costs more.\n"
                )
                continue
            if version == "editable":
                shutil.copy2(built, where / built.name)
            else:
                build_data["force_include"][str(built)] = "/".join([*package, built.name])
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was only needed for building."""
        if self.target_name == "wheel":
            shutil.rmtree(self._folder, ignore_errors=True)


def _built(module: str, sources: list[str], folder: Path) -> Path | None:
    """The compiled module; None where it cannot be made."""
    extension = Extension(module, sources, optional=True)
    command = build_ext(Distribution({"name": "otel-agent-replay", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    built = Path(command.get_ext_fullpath(module))
    return built if built.exists() else None
