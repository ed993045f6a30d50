"""Ids inside a statement.

Lists of thousands of ids do not fit into an address, where a server takes parameters from; in the statement they do,
up to the 256 KiB that a server parses.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST = 4000
"""So many ids fit into one statement."""

_RUN_ID = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def run_id(run: str) -> str:
    """One id; a text that is none becomes an empty one."""
    return f"'{run}'" if _RUN_ID.fullmatch(run) else "''"


def run_ids(ids: Iterable[str]) -> str:
    """A list for `IN`; what is no run id is left out, and no id at all makes a list that nothing is in."""
    return _listed(_RUN_ID, ids)


def trace_ids(ids: Iterable[str]) -> str:
    """The same for trace ids."""
    return _listed(_TRACE_ID, ids)


def batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """As many at a time as fit into a statement."""
    rest = iter(ids)
    while batch := list(islice(rest, MOST)):
        yield batch


def _listed(form: re.Pattern[str], ids: Iterable[str]) -> str:
    listed = ",".join(f"'{each}'" for each in ids if form.fullmatch(each))
    return f"({listed})" if listed else "('')"
