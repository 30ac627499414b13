"""Parquet files with the rows of a table: paths of images, labels and boxes, but no pixels.

Groups of rows are the parts for several workers. The number of a row is its position.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow import types

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.formats.annotation_file import explain_errors, read_annotation_file
from shardbeam.transforms.formats.table.table import TableFormat
from shardbeam.transforms.formats.table.table_boxes import Row
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.parquet import (
    PARQUET_ERRORS,
    ParquetRows,
    describe_parquet_error,
)

# Names that pandas gives to the columns of its indexes.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__|\Z")
_IS_PLAIN = (types.is_boolean, types.is_integer, types.is_floating, types.is_null)
_IS_TEXT = (types.is_string, types.is_large_string, types.is_string_view)
_IS_TIME = (types.is_date, types.is_time, types.is_timestamp)
_IS_BYTES = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
_IS_LIST = (types.is_list, types.is_large_list, types.is_fixed_size_list)


class ParquetFormat(TableFormat, frozen=True, kw_only=True):
    """Parquet files; several workers read their groups of rows."""

    SUMMARY = "Parquet tables: a row per image, with labels or objects, or without images"
    cells_are_text = False
    extensions = (".parquet",)
    chunk_bytes = 32 << 20

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the groups of rows that belong to a part of one file.

        Groups are taken to be equally long, since the footer's places of columns cannot be trusted.
        """
        rows = self._read(self.manifest[file_index], storage=storage, begin=begin, end=end)
        yield from self._row_reader().read_rows(rows, file_index=file_index, unit="row")

    def first_rows(
        self, uri: str, *, storage: Storage, size_bytes: int
    ) -> tuple[Sequence[str], Sequence[Row]]:
        """Reads the names of the columns and the first rows."""
        with explain_errors(uri), _open(uri, storage=storage) as source:
            names = self._columns(ParquetRows(source, uri=uri).schema, uri=uri)
        found = self._read(uri, storage=storage, max_bytes=size_bytes)
        return names, [row for _, row in found if not isinstance(row, str)]

    def _read(
        self,
        uri: str,
        *,
        storage: Storage,
        begin: int = 0,
        end: int = sys.maxsize,
        max_bytes: int = sys.maxsize,
    ) -> Iterator[tuple[int, Row | str]]:
        """Yields the numbers and the rows of groups, until these have taken `max_bytes`."""
        with explain_errors(uri), _open(uri, storage=storage) as source:
            file = ParquetRows(source, uri=uri)
            columns = self._columns(file.schema, uri=uri)
            size_bytes, first = source.size(), 0
            for group, rows in enumerate(file.group_rows):
                if begin <= group * size_bytes // len(file.group_rows) < end:
                    number = first
                    for batch in file.read_group(group, columns=columns):
                        for row in rows_of(batch):
                            yield number, row
                            number += 1
                        max_bytes -= batch.nbytes
                        if max_bytes <= 0:
                            return
                first += rows

    def _columns(self, schema: pa.Schema, *, uri: str) -> list[str]:
        """Returns the names of the columns to read; refuses those that cannot be features."""
        names = []
        for field in schema:
            if self.columns.get(field.name) == "ignore" or _PANDAS_INDEX.match(field.name):
                continue
            if field.name in names:
                raise InputError(uri=uri, problem=f"the column {field.name!r} occurs twice")
            if holds_bytes(field.type):
                raise InputError(
                    uri=uri,
                    problem=f"the column {field.name!r} holds bytes, and a table holds names of "
                    "images: if these are images, the format is huggingface; else leave the "
                    f"column out with columns: {{{field.name}: ignore}}",
                )
            converted = any(is_kind(field.type) for is_kind in (*_IS_TIME, types.is_decimal))
            if not (converted or _is_readable(field.type)):
                raise InputError(
                    uri=uri,
                    problem=f"the column {field.name!r} is of type {field.type}, which is not "
                    f"read: leave it out with columns: {{{field.name}: ignore}}",
                )
            names.append(field.name)
        return names


def _open(uri: str, *, storage: Storage) -> pa.NativeFile:
    """Opens a file for pyarrow, which must not call back into Python."""
    local = storage.open_local(uri)
    if local is not None:
        local.close()
    # A member of an archive has no path.
    if local is None or not os.path.isfile(uri):
        return pa.BufferReader(read_annotation_file(uri, storage=storage))
    return pa.OSFile(uri)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row | str]:
    """Yields rows, or the problem of a row whose cells cannot be read."""
    try:
        columns = [*map(_to_plain, batch.columns)]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    except pa.ArrowMemoryError:
        # Not the fault of a row.
        raise
    except UnicodeDecodeError:
        rows = ["not valid UTF-8"]
    except PARQUET_ERRORS as error:
        rows = [describe_parquet_error(error)]
    if len(rows) == len(batch):
        yield from rows
    else:
        for number in range(len(batch)):
            yield from rows_of(batch.slice(number, 1))


def _to_plain(column: pa.Array) -> pa.Array:
    """Turns times into text, and decimal and short numbers into floats."""
    kind = column.type
    if types.is_timestamp(kind) and kind.tz is not None:
        # Times of a zone are stored in UTC, and the system may know no zones.
        column = column.cast(pa.int64()).cast(pa.timestamp(kind.unit))
    if any(is_kind(kind) for is_kind in _IS_TIME):
        return column.cast(pa.string())
    if types.is_decimal(kind) or types.is_float16(kind):
        return column.cast(pa.float64())
    return column


def _is_readable(kind: pa.DataType) -> bool:
    return all(
        any(is_kind(value) for is_kind in (*_IS_PLAIN, *_IS_TEXT)) for value in _values_of(kind)
    )


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds bytes, alone or in structs and lists."""
    return any(map(is_bytes, _values_of(kind)))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds bytes alone."""
    return any(is_kind(kind) for is_kind in _IS_BYTES)


def _values_of(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields the types of the values in a column, its structs and its lists."""
    if types.is_struct(kind):
        for field in kind:
            yield from _values_of(field.type)
    elif types.is_dictionary(kind) or is_list(kind):
        yield from _values_of(kind.value_type)
    else:
        yield kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists."""
    return any(is_kind(kind) for is_kind in _IS_LIST)
