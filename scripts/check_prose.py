"""Look through every file of the project for words that belong to one machine or one place of work.

    python scripts/check_prose.py

Prints ``file:line: what`` for each, and exits 1 where there is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

PATTERNS = {
    "path of one machine": re.compile(
        r"(?<![\w.$}~*<-])/(?:work|root|farm|opt/wheels|tmp/dev|home/(?!u\b|user\b|me\b)\w+)\b/?"
    ),
    "word of a tracker": re.compile(r"(?i)\b(?:issues?|tickets?|pull requests?|PR|merge requests?) ?#?\d+\b"),
    "host of a package registry": re.compile(
        r"(?i)\b(?:pypi\.org|pythonhosted\.org|registry\.npmjs\.org|crates\.io|proxy\.golang\.org|deb\.debian\.org)\b"
    ),
    "word of how it was made": re.compile(r"(?i)\b(?:coding agent|as an AI|language model wrote|the lead decides)\b"),
}
"""What may not stand in the project, and how it is found."""

EXEMPT = {"LICENSE", "scripts/check_prose.py", "tests/docs/test_prose.py"}
"""Files that hold such words because they are about them."""


def findings(name: str, text: str) -> Iterator[str]:
    """One line for each thing found in a file."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in PATTERNS.items():
            for found in pattern.finditer(line):
                yield f"{name}:{number}: {what}: {found[0]}"


def project_files() -> Iterator[Path]:
    """Every file that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in sorted(set(listed.decode().split("\0")) - {""}):
        if (ROOT / name).is_file():
            yield ROOT / name


def check() -> list[str]:
    """All findings; files that are not text are passed over."""
    found: list[str] = []
    for path in project_files():
        name = path.relative_to(ROOT).as_posix()
        if name in EXEMPT:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found.extend(findings(name, text))
    return found


if __name__ == "__main__":
    lines = check()
    print("\n".join(lines) if lines else "Nothing of one machine or one place of work.")
    sys.exit(1 if lines else 0)
