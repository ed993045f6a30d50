"""Print one of the lines that README.md gives to be pasted, so that CI runs the very same words.

    python scripts/readme_line.py demo|tests [--last] [--venv PATH]

`--last` prints only what follows the last ``&&``; `--venv` puts another virtual environment in place of ``.venv``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def pasted(readme: str, name: str) -> str:
    """The one line of the code block that follows the mark of this name. Raises LookupError."""
    found = re.search(rf"<!-- line:{re.escape(name)} -->\n```\w*\n(.+)\n```", readme)
    if found is None:
        raise LookupError(f"README.md has no line marked {name!r}")
    return found[1]


def main() -> None:
    """Print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--last", action="store_true")
    parser.add_argument("--venv")
    options = parser.parse_args()
    line = pasted(README.read_text("utf-8"), options.name)
    if options.last:
        line = line.rpartition("&&")[2].strip()
    if options.venv:
        line = re.sub(r"(?<![\w./])\.venv/", f"{options.venv}/", line)
    print(line)


if __name__ == "__main__":
    main()
