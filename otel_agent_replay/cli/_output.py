"""How commands print: JSON that is stable, a rich table on a terminal, plain columns elsewhere."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_IN_MEMORY = 8 << 20
_FOLDED = 8
"""Characters that a folded column keeps at least."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def emit_json(value: object) -> None:
    """One JSON document. Everything but ASCII is escaped, so that a lone surrogate can be written too."""
    click.echo(as_json(value, indent=2))


def buffered_list(values: Iterable[object]) -> IO[str]:
    """A JSON list of what may be very many values, in a file once it is large; for `emit_buffered`."""
    text = SpooledTemporaryFile(max_size=_IN_MEMORY, mode="w+", encoding="ascii")  # noqa: SIM115 (closed when printed)
    opened = False
    for value in values:
        text.write(",\n" if opened else "[\n")
        text.write(as_json(value))
        opened = True
    text.write("\n]\n" if opened else "[]\n")
    return cast("IO[str]", text)


def emit_buffered(text: IO[str]) -> None:
    """Print what `buffered_list` made."""
    with text:
        text.seek(0)
        while block := text.read(1 << 16):
            click.echo(block, nl=False)


def as_json(value: object, indent: int | None = None) -> str:
    """JSON text; a number that JSON does not have becomes its name."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return repr(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def warn(sentence: str) -> None:
    """One sentence on standard error."""
    click.echo(f"agent-replay: {sentence}", err=True)


def emit_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), folded: Sequence[str] = ()
) -> None:
    """A table.

    Args:
        columns: their names.
        rows: a cell for each column.
        right: names of columns that are aligned to the right.
        folded: names of columns that a narrow terminal shows in several lines; the others keep theirs.
    """
    if on_terminal():
        _rich_table(columns, rows, right, folded)
        return
    listed = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[index]) for row in listed), 0) for index, name in enumerate(columns)]
    for row in ([name.upper() for name in columns], *listed):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, name, width in zip(row, columns, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _rich_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str], folded: Sequence[str]
) -> None:
    from rich.console import Console  # noqa: PLC0415 (only on a terminal)
    from rich.table import Table  # noqa: PLC0415 (only on a terminal)
    from rich.text import Text  # noqa: PLC0415 (only on a terminal)

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name not in folded,
            min_width=_FOLDED if name in folded else None,
        )
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_style(cell)) for cell in row))
    Console(highlight=False).print(table)


def _style(cell: str) -> str:
    return {"ok": "green", "error": "red", "unfinished": "yellow", "live": "cyan", "no": "yellow"}.get(cell, "")


def printable(text: str) -> str:
    """Text in one line, with what a terminal would act upon made visible."""
    return _UNPRINTABLE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or (
        f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
    )


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, in one line; says how many are left out."""
    if len(text) <= limit:
        return printable(text)
    return f"{printable(text[:limit])}… (+{len(text) - limit:,})"


def iso(nanoseconds: int) -> str:
    """UTC, ISO 8601 with offset and microseconds."""
    return (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat(timespec="microseconds")


def local(nanoseconds: int, *, brief: bool = False) -> str:
    """The reader's own time, to the second; brief without year and seconds."""
    moment = (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).astimezone()
    return moment.strftime("%m-%d %H:%M" if brief else "%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """How many bytes, in the unit that fits."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def duration(seconds: float) -> str:
    """How long, in the unit that fits."""
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
