"""Tables of text, as the commands print them on stdout."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from shardbeam.transforms.core.text import NO_NAME, cut, escape


class Layout(NamedTuple):
    """How a table is drawn.

    Attributes:
        columns: The width that the table must fit into; longer cells are wrapped, never cut.
        styled: Whether the headings are in bold (for terminals).
    """

    columns: int
    styled: bool


# Classes, or other names from data, that a table shows; JSON has all.
PRINTED_CLASSES = 50
# Blanks between two columns.
_GAP = 2
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
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading in texts:
        table.add_column(Text(heading), overflow="fold")
    for heading in numbers:
        table.add_column(Text(heading), no_wrap=True, justify="right")
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
    """Draws a table as lines of text, in which no word and no number is broken.

    Texts are wrapped at blanks. If that is not enough for the layout's columns, each row becomes a
    few lines for its cells. Only a word that is longer than a line is folded.
    """
    console = Console(file=io.StringIO(), width=PLAIN.columns, force_terminal=layout.styled)
    padding = _GAP * (len(table.columns) - 1)
    ranges = [_measure(column, console=console) for column in table.columns]
    left = layout.columns - padding - sum(each.minimum for each in ranges)
    if left < 0:
        table = _stack_rows(table, columns=layout.columns, console=console)
    else:
        for column, needed in zip(table.columns, ranges, strict=True):
            column.width = min(needed.maximum, needed.minimum + left)
            left -= column.width - needed.minimum
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _measure(column: Column, *, console: Console) -> Measurement:
    """Returns the widths of a column's longest word, or number, and of its longest cell."""
    cells = [Measurement.get(console, console.options, it) for it in (column.header, *column.cells)]
    most = max(cell.maximum for cell in cells)
    # A number and its unit stay on one line.
    return Measurement(most if column.no_wrap else max(cell.minimum for cell in cells), most)


def _stack_rows(table: Table, *, columns: int, console: Console) -> Table:
    """Puts the cells of each row one below the other, behind their headings or below them."""
    width = max(_measure(column, console=console).minimum for column in table.columns)
    headings = max(len(str(column.header)) for column in table.columns)
    is_beside = headings + _GAP + width <= columns
    stacked = Table.grid(padding=(0, _GAP, 0, 0))
    for each in (headings, columns - headings - _GAP) if is_beside else (columns,):
        stacked.add_column(width=each, overflow="fold")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        if stacked.rows:
            stacked.add_row()
        for column, cell in zip(table.columns, row, strict=True):
            if not str(cell):
                continue
            heading = Text(str(column.header), style="bold")
            for cells in [(heading, cell)] if is_beside else [(heading,), (cell,)]:
                stacked.add_row(*cells)
    return stacked
