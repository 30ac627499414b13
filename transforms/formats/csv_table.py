"""CSV files (RFC 4180): `,` or another delimiter between cells, and `"` around special cells.

Among them are the files of TFRecorder (`split,image_uri,label`):
https://github.com/google/tensorflow-recorder.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.keys import named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.formats.line_chunks import binary_problem, read_lines
from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.formats.table import Row, TableFormat
from shardbeam.transforms.formats.table_columns import CellError
from shardbeam.transforms.storage.base import Storage

OPEN_QUOTE = "a quote does not end in its line"
_DELIMITERS = {",": "commas", ";": "';'", "\t": "tabs", "|": "'|'"}
_TAB_EXTENSIONS = (".tsv", ".tab")
# The rows of keras-retinanet have no header: https://github.com/fizyr/keras-retinanet#csv-datasets.
_RETINANET = ("image", "xmin", "ymin", "xmax", "ymax", "class")
# `(first line, last line, cells)` of a row; a text instead of the cells describes their problem.
_Numbered = tuple[int, int, list[str] | str]


class CsvFormat(TableFormat, frozen=True, kw_only=True):
    """CSV files. One worker reads a file, since a row's position is its line.

    Attributes:
        header: The names of the columns, where the files have no header.
        delimiter: The character between cells; by default a tab in .tsv and .tab, else a comma.
        multiline: Whether quoted cells may hold line ends. If so, one stray quote swallows the
            rows after it.
    """

    SUMMARY = "CSV and TSV tables: a row per image, per object, or without images"
    cells_are_text = True
    extensions = (".csv", *_TAB_EXTENSIONS)
    # Kaggle's tables name images by `id`, which means other things elsewhere.
    guessed_keys = (
        {},
        {"delimiter": ";"},
        {"image_column": "id"},
        {"header": [*_RETINANET]},
    )

    header: (
        Annotated[
            list[str],
            msgspec.Meta(min_length=1),
            named("names of the columns, separated by commas, if the files have no header"),
        ]
        | None
    ) = None
    delimiter: (
        Annotated[
            str,
            msgspec.Meta(pattern=r'\A(\\t|[^"\\\r\n])\Z', description=r"one character, or \t"),
            named("character between cells, such as ; or \\t", metavar="CHARACTER"),
        ]
        | None
    ) = None
    multiline: Annotated[bool, named("allow line ends within quoted cells")] = False

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file; a row's position is its line."""
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
        """Reads the names of a file's columns, and its rows that begin before `end`."""
        lines = read_lines(uri, storage=storage, end=end)
        is_tabs = uri.lower().endswith(_TAB_EXTENSIONS)
        delimiter = (self.delimiter or ("\t" if is_tabs else ",")).replace("\\t", "\t")
        first = next(lines, (0, b""))
        if self.header is None:
            header = header_cells(first[1], uri=uri, delimiter=delimiter)
            problem = _header_problem(header, delimiter=delimiter)
        else:
            header = [name.strip() for names in self.header for name in names.split(",")]
            lines = itertools.chain([first], lines)
            problem = binary_problem(first[1])
        if problem is not None:
            raise InputError(uri=uri, place="line 1", problem=problem)
        rows = read_rows(
            lines,
            header=header,
            multiline=self.multiline,
            delimiter=delimiter,
            first_line=2 if self.header is None else 1,
        )
        return header, rows


def _header_problem(header: Sequence[str], *, delimiter: str) -> str | None:
    """Describes why the cells of a first line cannot be a header; returns None where they can."""
    if not any(header):
        return "the first line is empty; expected a header"
    if len(header) == 1:
        for other, words in _DELIMITERS.items():
            if other in header[0]:
                return (
                    f"expected cells separated by {_DELIMITERS.get(delimiter, repr(delimiter))}, "
                    f"not {words}; set delimiter to {other!r}"
                )
    if any(map(is_image_name, header)):
        names = "their names"
        if len(header) == len(_RETINANET) and is_image_name(header[0]):
            names = f"[{', '.join(_RETINANET)}] (--header {','.join(_RETINANET)})"
        return f"the first line names an image; if the file has no header, set header to {names}"
    seen: set[str] = set()
    for name in header:
        if name in seen:
            return f"the column {name!r} occurs twice; is the header missing?"
        seen.add(name)
    return None


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
        problem = str(error)
        raise CellError(OPEN_QUOTE if "end of data" in problem else problem) from error


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
) -> Iterator[tuple[int, dict[str, str] | str]]:
    r"""Reads the rows of a file after its header; blank lines are not rows.

    Args:
        lines: The lines, from `read_lines`.
        header: The names of the columns.
        multiline: Whether a quoted cell may hold line ends, which become `\n`. If so, a quote that
            is not closed swallows the lines after it.
        delimiter: The character between cells.
        first_line: The number of the first line.

    Yields:
        `(number of the line, {column: cell})` of each row. A bad row gives `(number, problem)` for
        each of its lines.
    """
    read = _multiline_rows if multiline else _rows
    for first, last, cells in read(lines, delimiter=delimiter, first_line=first_line):
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
    lines: Iterator[tuple[int, bytes]], *, delimiter: str, first_line: int
) -> Iterator[_Numbered]:
    for number, (_, line) in enumerate(lines, first_line):
        cells: list[str] | str
        try:
            cells = split_cells(line.decode(), delimiter=delimiter)
        except UnicodeDecodeError:
            cells = "not valid UTF-8"
        except CellError as error:
            cells = str(error)
            if cells == OPEN_QUOTE:
                cells += "; set multiline where cells hold line ends"
        yield number, number, cells


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
            cells = str(error)
        yield first, reader.line_num + first_line - 1, cells if is_text else "not valid UTF-8"
