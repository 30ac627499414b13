"""Tables of text, as the commands print them on stdout."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardbeam.transforms.core.text import NO_NAME, cut, escape


class Layout(NamedTuple):
    """How a table is drawn.

    Attributes:
        columns: The width that the table must fit into; longer cells are folded, never cut.
        styled: Whether the headings are in bold (for terminals).
    """

    columns: int
    styled: bool


# Classes, or other names from data, that a table shows; JSON has all.
PRINTED_CLASSES = 50
# Practically no limit, so that nothing is folded.
PLAIN = Layout(columns=10_000, styled=False)


def stdout_layout() -> Layout:
    """Returns the layout for stdout: a terminal's width, or no limit for a pipe or a file."""
    if sys.stdout.isatty():
        return Layout(columns=shutil.get_terminal_size().columns, styled=True)
    return PLAIN


def make_table(*texts: str, numbers: Iterable[str]) -> Table:
    """Makes an empty table.

    Args:
        *texts: Headings of the first columns.
        numbers: Headings of the columns after them, which are aligned right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in texts:
        table.add_column(Text(heading), overflow="fold")
    for heading in numbers:
        table.add_column(Text(heading), overflow="fold", justify="right")
    return table


def cell_text(text: str) -> Text:
    """Renders a text from data, which may be long or contain any characters."""
    return Text(escape(cut(text)))


def name_text(name: str) -> Text:
    """Renders a name from data, as `cell_text` does, or says that it is empty."""
    return cell_text(name or NO_NAME)


def add_rest(table: Table, left: int) -> None:
    """Adds a last row with the number of rows that are left out, if any."""
    if left > 0:
        table.add_row(f"... and {left:,} more (--json has all)")


def table_width(table: Table) -> int:
    """Returns the width of a table in characters if nothing is folded."""
    console = Console(width=PLAIN.columns)
    return Measurement.get(console, console.options, table).maximum


def render_table(table: Table, *, layout: Layout) -> str:
    """Draws a table as lines of text."""
    console = Console(file=io.StringIO(), width=layout.columns, force_terminal=layout.styled)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
