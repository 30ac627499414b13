"""Tables of text, as the commands print them on stdout."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardbeam.pipelines.logs import escape


class Layout(NamedTuple):
    """How a table is drawn.

    Attributes:
        columns: Width to fit into; longer cells are folded, and never cut.
        styled: Whether the headings are in bold (for terminals).
    """

    columns: int
    styled: bool


# Classes in one table: a person reads no more, and JSON has them all.
PRINTED_CLASSES = 50

# Shown for an empty name.
NO_NAME = "(no name)"

# Without a limit of the width, nothing is folded.
PLAIN = Layout(columns=10_000, styled=False)


def stdout_layout() -> Layout:
    """Returns what suits stdout: a terminal's width, or no limit in a pipe or a file."""
    if sys.stdout.isatty():
        return Layout(columns=shutil.get_terminal_size().columns, styled=True)
    return PLAIN


def make_table(*texts: str, numbers: Iterable[str]) -> Table:
    """Makes an empty table.

    Args:
        *texts: Headings of the first columns.
        numbers: Headings of the columns after them, whose cells stand at the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in texts:
        table.add_column(Text(heading), overflow="fold")
    for heading in numbers:
        table.add_column(Text(heading), overflow="fold", justify="right")
    return table


def name_text(name: str) -> Text:
    """Writes a name that data has, which may be empty or hold anything."""
    return Text(escape(name) if name else NO_NAME)


def describe_value(value: object) -> str:
    """Writes the value before or after a correction; nothing where there is none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def add_rest(table: Table, left: int) -> None:
    """Adds a last row that counts the rows that a table leaves out, if it does."""
    if left > 0:
        table.add_row(f"... and {left:,} more (--json has all)")


def table_width(table: Table) -> int:
    """How many columns of text a table takes where nothing is folded."""
    console = Console(width=PLAIN.columns)
    return Measurement.get(console, console.options, table).maximum


def render_table(table: Table, *, layout: Layout) -> str:
    """Draws a table as lines of text."""
    console = Console(file=io.StringIO(), width=layout.columns, force_terminal=layout.styled)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
