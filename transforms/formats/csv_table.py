"""CSV files with a header.

What TFRecorder reads (`split,image_uri,label`) is one of these:
https://github.com/google/tensorflow-recorder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

from shardbeam.configs.keys import named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.formats.csv_rows import header_cells, read_rows
from shardbeam.transforms.formats.line_chunks import read_lines
from shardbeam.transforms.formats.table import Row, TableFormat
from shardbeam.transforms.storage.base import Storage

_OTHER_DELIMITERS = {b";": "';'", b"\t": "tabs", b"|": "'|'"}


class CsvFormat(TableFormat, frozen=True, kw_only=True):
    """CSV files, each read by one worker, as a row's position is its line."""

    cells_are_text = True

    multiline: Annotated[bool, named("let quoted cells hold line ends")] = False

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file."""
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
