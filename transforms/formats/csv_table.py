"""CSV files with a header (RFC 4180): `,` between cells, `"` around those that hold one of the two.

What TFRecorder reads (`split,image_uri,label`) is one of these:
https://github.com/google/tensorflow-recorder.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from shardbeam.configs.keys import named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.formats.line_chunks import binary_problem, read_lines
from shardbeam.transforms.formats.table import Row, TableFormat
from shardbeam.transforms.formats.table_columns import CellError
from shardbeam.transforms.storage.base import Storage

OPEN_QUOTE = "a quote does not end in its line"
_OTHER_DELIMITERS = {b";": "';'", b"\t": "tabs", b"|": "'|'"}
# `(first line, last line, cells)` of a row, or a problem instead of cells.
_Numbered = tuple[int, int, list[str] | str]


class CsvFormat(TableFormat, frozen=True, kw_only=True):
    """CSV files, each read by one worker, as a row's position is its line.

    Attributes:
        multiline: Whether quoted cells may hold line ends. Where they may, one stray quote takes
            the rows behind it along.
    """

    cells_are_text = True

    multiline: Annotated[bool, named("let quoted cells hold line ends")] = False

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file; see the base class. A row's position is its line."""
        _, rows = self._read(self.manifest[file_index], storage=storage)
        yield from self._read_rows(rows, file_index=file_index, unit="line")

    def _first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int
    ) -> tuple[Sequence[str], Sequence[Row]]:
        header, rows = self._read(uri, storage=storage, end=size_bytes)
        return header, [row for _, row in rows if not isinstance(row, str)]

    def _read(
        self, uri: str, *, storage: Storage, end: int = sys.maxsize
    ) -> tuple[list[str], Iterator[tuple[int, Row | str]]]:
        """Reads the names of a file's columns, and the rows that begin before `end`."""
        lines = read_lines(uri, storage=storage, end=end)
        _, line = next(lines, (0, b""))
        header = header_cells(line, uri=uri)
        problem = ""
        if not any(header):
            problem = "the file begins with no header"
        elif len(header) == 1 and (found := [each for each in _OTHER_DELIMITERS if each in line]):
            problem = f"expected cells separated by commas, not {_OTHER_DELIMITERS[found[0]]}"
        elif twice := [name for index, name in enumerate(header) if name in header[:index]]:
            problem = f"the column {twice[0]!r} is there twice; is the header missing?"
        if problem:
            raise InputError(uri=uri, place="line 1", problem=problem)
        return header, read_rows(lines, header=header, multiline=self.multiline)


def split_cells(text: str) -> list[str]:
    """Splits a line into its cells; a blank one has none.

    Raises:
        CellError: A quote does not end, or stands in the middle of a quoted cell.
    """
    if '"' not in text and "\r" not in text:
        return text.split(",") if text else []
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        # Of one line, `unexpected end of data` says nothing to people.
        problem = str(error)
        raise CellError(OPEN_QUOTE if "end of data" in problem else problem) from error


def header_cells(line: bytes, *, uri: str) -> list[str]:
    """Splits a file's first line into cells without the spaces around them.

    Raises:
        InputError: It is no text.
    """
    binary = binary_problem(line)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        return [cell.strip() for cell in split_cells(line.decode())]
    except (UnicodeDecodeError, CellError) as error:
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


def _rows(lines: Iterator[tuple[int, bytes]]) -> Iterator[_Numbered]:
    for number, (_, line) in enumerate(lines, 2):
        cells: list[str] | str
        try:
            cells = split_cells(line.decode())
        except UnicodeDecodeError:
            cells = "not valid UTF-8"
        except CellError as error:
            cells = str(error)
            if cells == OPEN_QUOTE:
                cells += "; set multiline where cells hold line ends"
        yield number, number, cells


def _multiline_rows(lines: Iterator[tuple[int, bytes]]) -> Iterator[_Numbered]:
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
