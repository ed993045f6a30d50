"""What the store has to know of the files that are shipped, without knowing how."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = "shipping"
_ORIGIN = ".origin"
_SHIPPED = "shipped.jsonl"


def has_shipped(spool: Path) -> bool:
    """Whether files of this spool were shipped and removed."""
    return (spool.parent / _FOLDER / _SHIPPED).exists()


def parts(spool: Path) -> set[str]:
    """Ids of the runs that files held something of which were shipped and removed."""
    found: set[str] = set()
    with suppress(OSError):
        for line in (spool.parent / _FOLDER / _SHIPPED).read_bytes().splitlines():
            with suppress(ValueError, TypeError, AttributeError):
                found.update(map(str, json.loads(line).get("runs", ())))
    return found


def waits(file: Path) -> bool:
    """Whether a spool file is to be shipped: its writer had a receiver, and it is removed once that has all of it."""
    try:
        said = json.loads((file.parent.parent / _FOLDER / (file.name + _ORIGIN)).read_bytes())
        return bool(said["destination"])
    except (OSError, ValueError, TypeError, KeyError):
        return False


def forget(file: Path) -> None:
    """A spool file was removed by us: what was written beside it goes too. Never raises."""
    with suppress(OSError):
        (file.parent.parent / _FOLDER / (file.name + _ORIGIN)).unlink()
