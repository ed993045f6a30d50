"""What the benchmarks share: the virtual environment with the peers, the table in the README, the versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PathDistribution, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".cache" / "bench-venv"
PYTHON = VENV / "bin" / "python"
BIN = VENV / "bin"

PEERS = (
    "openai==3.57.0",
    "httpx2",
    "httpx",
    "opentelemetry-instrumentation-genai-openai==1.3b0",
    "openinference-instrumentation-openai==0.1.66",
    "vcrpy==9.4.2",
    "freezegun",
    "time-machine",
)
"""What is measured beside this project, and the SDK that all of them record."""


def environment() -> None:
    """Make the virtual environment of the benchmarks where it is not there yet. Takes a minute."""
    done = VENV / "complete"
    if done.exists() and done.read_text("utf-8") == "\n".join(PEERS):
        return
    print("Setting up", VENV.relative_to(ROOT), file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    install = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", f"{ROOT}[embedded]"]
    subprocess.run([*install, *PEERS], check=True)
    done.write_text("\n".join(PEERS), "utf-8")


def versions(*names: str) -> str:
    """Names and versions of packages in the virtual environment of the benchmarks."""
    folder = next((VENV / "lib").glob("python*/site-packages"))
    found = {}
    for path in folder.glob("*.dist-info"):
        installed = PathDistribution(path)
        found[installed.metadata["Name"].lower().replace("_", "-")] = installed.version
    return ", ".join(f"{name} {found[name]}" for name in names)


def circumstances(*names: str, here: bool = False) -> str:
    """One sentence: when, on what and with which versions this was measured; `here` for those of this interpreter."""
    today = datetime.now(UTC).date().isoformat()
    load = os.getloadavg()[0]
    return (
        f"Measured on {today}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores (load {load:.0f}), "
        f"Python {platform.python_version()}, "
        f"{', '.join(f'{name} {version(name)}' for name in names) if here else versions(*names)}."
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def publish(name: str, text: str) -> None:
    """Print the text, and put it between the marks of this name in the README."""
    print(text)
    readme = ROOT / "README.md"
    begin, end = f"<!-- benchmark:{name} -->", f"<!-- /benchmark:{name} -->"
    before, _, rest = readme.read_text("utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"README.md has no {begin} … {end}.")
    readme.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")
