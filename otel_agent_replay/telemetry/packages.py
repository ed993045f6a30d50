"""Which installed distributions a program has imported, and their versions, in a few milliseconds.

`importlib.metadata.packages_distributions` parses the file list of every distribution, which takes longer than many
a program. Here the name of a metadata directory says most of it; a file list is only searched, as bytes, for files
that no name explains.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def imported(modules: Mapping[str, ModuleType] | None = None, path: Sequence[str] | None = None) -> dict[str, str]:
    """Version by name of each distribution on `path` that one of `modules` came from; by default all imported."""
    loaded = dict(sys.modules if modules is None else modules)
    found = _metadata(sys.path if path is None else path)
    files = _files(loaded, sorted({os.path.dirname(metadata) for metadata, _, _ in found}, key=len, reverse=True))  # noqa: PTH120 (strings, and many)
    versions: dict[str, str] = {}
    rest: list[tuple[str, str, str]] = []
    for metadata, name, version in found:
        module = re.sub(r"[-.]+", "_", name).lower()
        likely = {f"{module}/__init__.py", f"{module}.py", f"{module.replace('_', '/')}/__init__.py"}
        if likely & files or module in loaded:
            files -= likely
            versions.setdefault(name, version)
        rest.append((metadata, name, version))
    parts = {part for file in files for part in file.removesuffix(".py").split("/")[:2] if len(part) > 2}
    rest.sort(key=lambda one: not any(part in one[1].lower() for part in parts))  # the likely ones first
    for metadata, name, version in rest:
        if not files:
            break
        held = _held(metadata, files)
        if held:
            files -= held
            versions.setdefault(name, version)
    return dict(sorted(versions.items()))


def _metadata(path: Sequence[str]) -> list[tuple[str, str, str]]:
    """Directory, name and version of every distribution."""
    found = []
    for entry in dict.fromkeys(path):
        with suppress(OSError):
            for name in os.listdir(entry or "."):  # noqa: PTH208 (strings, and many)
                if name.endswith("-info") and (match := _METADATA.fullmatch(name)) is not None:
                    found.append((f"{entry}/{name}", match["name"], match["version"]))
    return found


def _files(loaded: Mapping[str, ModuleType], directories: Sequence[str]) -> set[str]:
    """Below one of the directories, the file of each module or package that is in no package that has a file."""
    starts = tuple(f"{directory}/" for directory in directories)
    shared = tuple(f"{name}." for name, module in loaded.items() if "." not in name and _file(module) is None)
    files: set[str] = set()
    for name, module in loaded.items():
        if "." in name and not (name.startswith(shared) and _file(loaded.get(name.rpartition(".")[0])) is None):
            continue
        file = _file(module)
        if file is not None and file.startswith(starts):
            files.add(file[len(next(start for start in starts if file.startswith(start))) :])
    return files


def _file(module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


def _held(metadata: str, files: set[str]) -> set[str]:
    """Which of the files a distribution holds."""
    with suppress(OSError):
        record = b"\n" + Path(metadata, "RECORD").read_bytes()
        return {file for file in files if b"\n%s," % os.fsencode(file) in record}
    with suppress(OSError):
        tops = Path(metadata, "top_level.txt").read_text("utf-8").split()
        return {file for file in files if file.partition("/")[0].removesuffix(".py") in tops}
    return set()
