"""Splits the lines of CSV files into rows and cells (RFC 4180)."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.parsing.lines import binary_problem
from shardbeam.transforms.formats.parsing.table_columns import CellError

OPEN_QUOTE = "a quote does not end in its line"
# `(first line, last line, cells)` of a row; a text instead of the cells describes their problem.
_Numbered = tuple[int, int, list[str] | str]


def split_cells(text: str, *, delimiter: str = ",") -> list[str]:
    """Splits a line into its cells; a blank line has none.

    Raises:
        CellError: A quote is not closed, or is in the middle of a quoted cell.
    """
    if '"' not in text and "\r" not in text:
        return text.split(delimiter) if text else []
    try:
        return next(csv.reader([text], strict=True, delimiter=delimiter), [])
    except csv.Error as error:
        # For a single line, `unexpected end of data` would confuse people.
        problem = _describe(error)
        raise CellError(OPEN_QUOTE if "end of data" in problem else problem) from error


def _describe(error: csv.Error) -> str:
    if "new-line character" in str(error):
        return "a CR without LF is in the line; if lines end with CR alone, save it with LF"
    return str(error)


def header_cells(line: bytes, *, uri: str, delimiter: str = ",") -> list[str]:
    """Splits a file's first line into cells, and removes the spaces around them.

    Raises:
        InputError: The line is not text.
    """
    binary = binary_problem(line)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        return [cell.strip() for cell in split_cells(line.decode(), delimiter=delimiter)]
    except (UnicodeDecodeError, CellError) as error:
        raise InputError(uri=uri, place="line 1", problem=f"no header: {error}") from error


def read_rows(
    lines: Iterator[tuple[int, bytes]],
    *,
    header: Sequence[str],
    multiline: bool,
    delimiter: str = ",",
    first_line: int = 2,
    ends_with_text: bool = False,
) -> Iterator[tuple[int, dict[str, str] | str]]:
    r"""Reads the rows of a file after its header; blank lines are not rows.

    Args:
        lines: The lines, from `read_lines`.
        header: The names of the columns.
        multiline: Whether a quoted cell may hold line ends, which become `\n`. If so, a quote that
            is not closed swallows the lines after it.
        delimiter: The character between cells.
        first_line: The number of the first line.
        ends_with_text: Whether the last cell of a line goes on to its end, if it has more cells
            than the header, or quotes that cannot be read. Not where cells may hold line ends.

    Yields:
        `(number of the line, {column: cell})` of each row. A bad row gives `(number, problem)` for
        each of its lines.
    """
    numbered = (
        _multiline_rows(lines, delimiter=delimiter, first_line=first_line)
        if multiline
        else _rows(
            lines,
            delimiter=delimiter,
            first_line=first_line,
            max_cells=len(header) if ends_with_text else None,
        )
    )
    for first, last, cells in numbered:
        if isinstance(cells, list) and len(cells) == len(header) + 1 and not cells[-1]:
            # A delimiter at the end of the line.
            cells = cells[:-1]
        if isinstance(cells, list) and len(cells) == len(header):
            yield first, dict(zip(header, cells, strict=True))
        elif cells:
            is_problem = isinstance(cells, str)
            problem = cells if is_problem else f"expected {len(header)} cells, got {len(cells)}"
            through = f" (through line {last}: is a quote open?)" if last > first else ""
            for line in range(first, last + 1):
                where = "" if line == first else f"in the row of line {first}: "
                yield line, f"{where}{problem}{through}"


def _rows(
    lines: Iterator[tuple[int, bytes]],
    *,
    delimiter: str,
    first_line: int,
    max_cells: int | None,
) -> Iterator[_Numbered]:
    for number, (_, line) in enumerate(lines, first_line):
        cells: list[str] | str
        try:
            text = line.decode()
            cells = (
                split_cells(text, delimiter=delimiter)
                if max_cells is None
                else _split_caption(text, delimiter=delimiter, max_cells=max_cells)
            )
        except UnicodeDecodeError:
            cells = "not valid UTF-8"
        except CellError as error:
            cells = str(error)
            if cells == OPEN_QUOTE:
                cells += "; set multiline where cells hold line ends"
        yield number, number, cells


def _split_caption(text: str, *, delimiter: str, max_cells: int) -> list[str]:
    """Splits a line whose last cell is a text, which may hold delimiters and quotes as they are."""
    try:
        cells = split_cells(text, delimiter=delimiter)
    except CellError:
        cells = []
    if not text:
        return cells
    is_split = 0 < len(cells) <= max_cells
    if not is_split:
        cells = text.split(delimiter, max_cells - 1)
    rest = cells[-1].strip()
    # Behind a blank, quotes are part of a cell in other tables.
    if rest.startswith('"') and not (is_split and rest == cells[-1]):
        with contextlib.suppress(CellError):
            last = split_cells(rest, delimiter=delimiter)
            cells[-1:] = last if len(last) == 1 else cells[-1:]
    return cells


def _multiline_rows(
    lines: Iterator[tuple[int, bytes]], *, delimiter: str, first_line: int
) -> Iterator[_Numbered]:
    is_text = True

    def texts() -> Iterator[str]:
        nonlocal is_text
        for _, line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                text, is_text = line.decode("utf-8", "replace"), False
            yield f"{text}\n"

    reader = csv.reader(texts(), strict=True, delimiter=delimiter)
    while True:
        first = reader.line_num + first_line
        is_text = True
        cells: list[str] | str
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = _describe(error)
        yield first, reader.line_num + first_line - 1, cells if is_text else "not valid UTF-8"
