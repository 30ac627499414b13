"""CSV files with a header: comma-separated, `"` around what holds commas, quotes or line ends.

The form: RFC 4180. What TFRecorder reads (`split,image_uri,label`) is one of these:
https://github.com/google/tensorflow-recorder.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category, Value
from shardbeam.transforms.formats.line_chunks import binary_problem, read_first_line, read_lines
from shardbeam.transforms.formats.table import TableFormat
from shardbeam.transforms.formats.table_columns import (
    ColumnSurvey,
    ColumnType,
    join_names,
    read_text,
)
from shardbeam.transforms.storage.base import Storage

_OTHER_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


class CsvFormat(TableFormat, frozen=True, kw_only=True):
    """CSV files, each read by one worker.

    A quoted cell may hold line ends, so that there is no telling in the middle of a file where a
    row begins.
    """

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file; see the base class. A row's position is its line."""
        uri = self.manifest[file_index]
        header = read_header(uri, storage=storage)
        seen: set[str] = set()
        for line, cells in read_rows(uri, storage=storage, columns=len(header)):
            place = f"line {line}"
            if isinstance(cells, str):
                yield self._bad_row(cells, file_index=file_index, position=line, place=place)
                continue
            entry, labels = self._read_row(
                dict(zip(header, cells, strict=True)),
                file_index=file_index,
                position=line,
                place=place,
            )
            yield entry
            seen.update(labels)
        yield from self._categories(seen, file_index=file_index)

    def _survey(
        self, surveys: dict[str, ColumnSurvey], *, storage: Storage, file_index: int
    ) -> None:
        uri = self.manifest[file_index]
        header = read_header(uri, storage=storage)
        if file_index and set(header) != set(surveys):
            raise InputError(
                uri=uri,
                place="line 1",
                problem=f"expected the columns of {self._names[0]} ({join_names(surveys)}), got "
                f"{join_names(header)}",
            )
        for name in header:
            surveys.setdefault(name, self._new_survey(name))
        # Most columns of text are known for what they are after the first row.
        unsettled = [(index, surveys[name]) for index, name in enumerate(header)]
        for number, (_, cells) in enumerate(read_rows(uri, storage=storage, columns=len(header))):
            if isinstance(cells, str):
                continue
            for index, survey in unsettled:
                survey.add_text(cells[index])
            if number & (number + 1) == 0:
                unsettled = [each for each in unsettled if not each[1].is_settled]

    def _read_cell(self, cell: str | None, column: ColumnType) -> tuple[Value, ...]:
        return read_text(cell or "", column)

    def _read_labels(self, cell: str | None) -> Iterable[str]:
        return self._labels_of_text(cell or "")


def read_header(uri: str, *, storage: Storage) -> list[str]:
    """Reads the names of a CSV file's columns, without the spaces around them.

    Raises:
        InputError: The file cannot be read, or its first line is no header.
    """
    line = read_first_line(uri, storage=storage)
    binary = binary_problem(line)
    if binary is not None:
        raise InputError(uri=uri, problem=binary)
    try:
        text = line.decode()
        rows = list(csv.reader([text], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(uri=uri, place="line 1", problem=f"no header: {error}") from error
    header = [cell.strip() for cell in rows[0]] if rows else []
    if not any(header):
        raise InputError(uri=uri, place="line 1", problem="the file begins with no header")
    for delimiter, words in _OTHER_DELIMITERS.items():
        if len(header) == 1 and delimiter in text:
            raise InputError(
                uri=uri, place="line 1", problem=f"expected cells separated by commas, not {words}"
            )
    for index, name in enumerate(header):
        if name in header[:index]:
            raise InputError(
                uri=uri,
                place="line 1",
                problem=f"the column {name!r} is there twice; is the header missing?",
            )
    return header


def read_rows(uri: str, *, storage: Storage, columns: int) -> Iterator[tuple[int, list[str] | str]]:
    r"""Yields `(line, cells)` of each row after the header, the line being its first.

    Where a row cannot be read, what is wrong with it stands in place of its cells. Line ends in
    quoted cells come as `\n`. Of a file, one line is in memory at a time.

    Args:
        uri: The file.
        storage: Reads it.
        columns: How many cells a row has.

    Raises:
        InputError: The file cannot be read.
    """
    stored = storage.stat(uri)
    if stored is None:
        raise InputError(uri=uri, problem="there is no such file")
    lines = _Lines(read_lines(uri, storage=storage, begin=0, end=stored.size_bytes))
    reader = csv.reader(lines, strict=True)
    next(reader, None)
    while True:
        first = reader.line_num + 1
        lines.is_text = True
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            last = reader.line_num
            through = f" (through line {last}: is a quote open?)" if last > first else ""
            yield first, f"{error}{through}"
            continue
        if not lines.is_text:
            yield first, "not valid UTF-8"
        elif len(cells) == columns:
            yield first, cells
        elif cells:
            yield first, f"expected {columns} cells, got {len(cells)}"


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
