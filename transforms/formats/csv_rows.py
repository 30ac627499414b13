"""Rows of CSV files (RFC 4180): `,` between cells, `"` around those that hold one of the two."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.line_chunks import binary_problem

OPEN_QUOTE = "a quote does not end in its line"


class RowError(ValueError):
    """A row cannot be used; the message says why."""


def split_cells(text: str) -> list[str]:
    """Splits a line into its cells; a blank one has none.

    Raises:
        RowError: A quote does not end, or stands in the middle of a quoted cell.
    """
    if '"' not in text and "\r" not in text:
        return text.split(",") if text else []
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        # Of one line, `unexpected end of data` says nothing to people.
        problem = str(error)
        raise RowError(OPEN_QUOTE if "end of data" in problem else problem) from error


def header_cells(line: bytes, *, uri: str) -> list[str]:
    """Splits a file's first line into cells without the spaces around them."""
    binary = binary_problem(line)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        return [cell.strip() for cell in split_cells(line.decode())]
    except (UnicodeDecodeError, RowError) as error:
        raise InputError(uri=uri, place="line 1", problem=f"no header: {error}") from error


def read_rows(
    lines: Iterator[tuple[int, bytes]], *, header: Sequence[str], multiline: bool
) -> Iterator[tuple[int, dict[str, str] | str]]:
    r"""Reads the rows of a file behind its header; blank lines are none.

    Args:
        lines: As `read_lines` gives them.
        header: The names of the columns.
        multiline: Whether a quoted cell may hold line ends, which come as `\n`. Then a quote that
            does not end takes the lines behind it along.

    Yields:
        `(number of the line, {column: cell})` of each row, or what is wrong with it: once for
        each line that it takes.
    """
    for first, last, cells in _multiline_rows(lines) if multiline else _rows(lines):
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
) -> Iterator[tuple[int, int, list[str] | str]]:
    """Yields `(first line, last line, cells)`, or a problem instead of cells."""
    for number, (_, line) in enumerate(lines, 2):
        cells: list[str] | str
        try:
            cells = split_cells(line.decode())
        except UnicodeDecodeError:
            cells = "not valid UTF-8"
        except RowError as error:
            cells = str(error)
            if cells == OPEN_QUOTE:
                cells += "; set multiline where cells hold line ends"
        yield number, number, cells


def _multiline_rows(
    lines: Iterator[tuple[int, bytes]],
) -> Iterator[tuple[int, int, list[str] | str]]:
    is_text = True

    def texts() -> Iterator[str]:
        nonlocal is_text
        for _, line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                text, is_text = line.decode("utf-8", "replace"), False
            yield f"{text}\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        first = reader.line_num + 2
        is_text = True
        cells: list[str] | str
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = str(error)
        yield first, reader.line_num + 1, cells if is_text else "not valid UTF-8"
