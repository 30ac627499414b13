"""CSV files with a header: comma-separated, `"` around what holds commas, quotes or line ends.

The form: RFC 4180. What TFRecorder reads (`split,image_uri,label`) is one of these:
https://github.com/google/tensorflow-recorder.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.formats.line_chunks import binary_problem, read_lines
from shardbeam.transforms.formats.table import Row, TableFormat
from shardbeam.transforms.formats.table_columns import join_names
from shardbeam.transforms.storage.base import Storage

_OTHER_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


class CsvFormat(TableFormat, frozen=True, kw_only=True):
    """CSV files, each read by one worker.

    A quoted cell may hold line ends, so that there is no telling in the middle of a file where a
    row begins.
    """

    cells_are_text = True

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file; see the base class. A row's position is its line."""
        uri = self.manifest[file_index]
        stored = storage.stat(uri)
        if stored is None:
            raise InputError(uri=uri, problem="there is no such file")
        _, rows = read_table(uri, storage=storage, end=stored.size_bytes)
        yield from self._read_rows(rows, file_index=file_index, unit="line")

    def _first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int, known: Mapping[str, None]
    ) -> tuple[Sequence[str], Sequence[Row]]:
        # A row that the range cuts is not read.
        header, rows = read_table(uri, storage=storage, end=size_bytes)
        if known and set(header) != set(known):
            raise InputError(
                uri=uri,
                place="line 1",
                problem=f"expected the columns of {self._names[0]} ({join_names(known)}), got "
                f"{join_names(header)}",
            )
        return header, [row for _, row in rows if not isinstance(row, str)]


def read_table(
    uri: str, *, storage: Storage, end: int
) -> tuple[list[str], Iterator[tuple[int, Row | str]]]:
    r"""Reads the names of a CSV file's columns, and its rows.

    Line ends in quoted cells come as `\n`. Of a file, one block is in memory at a time.

    Args:
        uri: The file.
        storage: Reads it.
        end: Lines that begin here or later are not read.

    Returns:
        The names, without the spaces around them, and `(line, row)` of each row, the line being
        its first. Where a row cannot be read, what is wrong with it stands in its place.

    Raises:
        InputError: The file cannot be read, or its first line is no header.
    """
    lines = read_lines(uri, storage=storage, begin=0, end=max(1, end))
    _, line = next(lines, (0, b""))
    header = _parse_header(line, uri=uri)
    return header, _rows(_Lines(lines), header=header)


def _parse_header(line: bytes, *, uri: str) -> list[str]:
    binary = binary_problem(line)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        text = line.decode()
        (cells,) = csv.reader([text], strict=True) if text else [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(uri=uri, place="line 1", problem=f"no header: {error}") from error
    header = [cell.strip() for cell in cells]
    problem = ""
    if not any(header):
        problem = "the file begins with no header"
    elif len(header) == 1 and (found := [each for each in _OTHER_DELIMITERS if each in text]):
        problem = f"expected cells separated by commas, not {_OTHER_DELIMITERS[found[0]]}"
    elif twice := [name for index, name in enumerate(header) if name in header[:index]]:
        problem = f"the column {twice[0]!r} is there twice; is the header missing?"
    if problem:
        raise InputError(uri=uri, place="line 1", problem=problem)
    return header


def _rows(lines: _Lines, *, header: Sequence[str]) -> Iterator[tuple[int, Row | str]]:
    reader = csv.reader(lines, strict=True)
    while True:
        first = reader.line_num + 2
        lines.is_text = True
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            last = reader.line_num + 1
            through = f" (through line {last}: is a quote open?)" if last > first else ""
            yield first, f"{error}{through}"
            continue
        if not lines.is_text:
            yield first, "not valid UTF-8"
        elif len(cells) == len(header):
            yield first, dict(zip(header, cells, strict=True))
        elif cells:
            yield first, f"expected {len(header)} cells, got {len(cells)}"


class _Lines:
    """Lines as text, with their ends.

    Attributes:
        is_text: Whether all lines since this was set are valid UTF-8.
    """

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines = lines
        self.is_text = True

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        _, line = next(self._lines)
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError:
            self.is_text = False
            return line.decode("utf-8", "replace") + "\n"
