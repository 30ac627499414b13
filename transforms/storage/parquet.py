"""Reads Parquet files from unknown sources within limits on their rows and texts.

A file of 50 KB may declare a billion rows, or repeat a text of 1 MB in each of them. A damaged file
must not end the process: pyarrow aborts where a footer's metadata of columns
(`RowGroupMetaData.column`) contradict themselves, so these are never asked for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet, types

from shardbeam.transforms.core.errors import DamagedError, InputError

# The texts of a file, its lists, and its columns without compression, may take `_BYTES`, and
# `_BYTES_PER_ROW` more for each row. A path has at most 4 KB.
_BYTES, _BYTES_PER_ROW = 64 << 20, 8 << 10
_INTEGER_BYTES = 8
_IS_TEXT: tuple[Callable[[pa.DataType], bool], ...] = (types.is_string, types.is_large_string)
_IS_FLAT = (*_IS_TEXT, types.is_integer, types.is_boolean)
# Rows whose lists are decoded at a time, before their items are counted.
_BATCH_ROWS = 1024
# Rows of any columns that are decoded at a time.
_FEW_ROWS = 128
# What pyarrow raises for files that are damaged, or no Parquet files: a name in a footer may be no
# UTF-8 text (ValueError), or that of no column (KeyError).
PARQUET_ERRORS = (pa.ArrowException, OSError, KeyError, ValueError)
# What an item of a list takes in a Python list.
_POINTER_BYTES = 8
_ASKED_BYTES = re.compile(r"of size ([0-9]+) failed")


def read_parquet(
    data: bytes,
    *,
    uri: str,
    columns: Sequence[str],
    max_rows: int,
    schemas: Sequence[pa.Schema] = (),
    lists: Collection[str] = (),
    filled: Collection[str] = (),
) -> pa.Table:
    """Decodes columns of texts, integers and booleans.

    Args:
        data: The file's content.
        uri: The file, for errors.
        columns: The columns to read; missing ones are skipped.
        max_rows: The most rows that a file of this purpose can have.
        schemas: The allowed schemas, with columns in order; empty to allow any.
        lists: The columns that may hold lists: of integers, or of structs of such values.
        filled: The columns that have a value in every row, if they are there.

    Raises:
        DamagedError: It is not a Parquet file, is damaged, has too many rows, other columns, values
            that are too long, or rows that lack a value.
        InputError: There is too little memory for it.
    """
    limit = len(data)
    try:
        # With a Python file object, or with threads, the program sometimes aborts when it ends
        # (https://github.com/apache/arrow/issues/33975).
        metadata = parquet.read_metadata(pa.BufferReader(data))
        schema = metadata.schema.to_arrow_schema().remove_metadata()
        if schemas and schema not in schemas:
            raise DamagedError(uri=uri, problem=f"its columns are {schema.names}")
        rows = metadata.num_rows
        if rows > max_rows:
            raise DamagedError(
                uri=uri, problem=f"declares {rows:,} rows; expected at most {max_rows:,}"
            )
        fields = [schema.field(name) for name in columns if schema.get_field_index(name) >= 0]
        for field in fields:
            if not (_is_flat(field.type) or (field.name in lists and _is_list(field.type))):
                raise DamagedError(uri=uri, problem=f"column {field.name!r} is of {field.type}")
        texts = [path for field in fields for path in _text_paths(field.name, field.type)]
        limit = _BYTES + rows * _BYTES_PER_ROW
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > limit:
            raise _too_long(uri)
        file = parquet.ParquetFile(
            pa.BufferReader(data),
            metadata=metadata,
            # Dictionaries keep a repeated text once, until the total length is known to be small.
            read_dictionary=texts,
            page_checksum_verification=True,
        )
        table = _read_columns(file, fields=fields, max_items=limit // _INTEGER_BYTES, uri=uri)
        if sum(_text_bytes(table[path.partition(".")[0]]) for path in texts) > limit:
            raise _too_long(uri)
        table = table.cast(pa.schema([(f.name, _values(f.type)) for f in fields]))
        # Texts may be no UTF-8.
        table.validate(full=True)
    except PARQUET_ERRORS as error:
        raise_shortage(error, uri=uri, most_bytes=limit)
        problem = f"not a Parquet file, or a damaged one: {describe_parquet_error(error)}"
        raise DamagedError(uri=uri, problem=problem) from error
    for name in table.column_names:
        if name in filled and table[name].null_count:
            row = table[name].is_null().index(True).as_py()
            raise DamagedError(uri=uri, place=f"row {row}", problem=f"has no value in {name!r}")
    return table


class ParquetRows:
    """The rows of a file of any length, which are decoded some at a time.

    Args:
        source: The file. It must not call back into Python.
        uri: Its name, for errors.

    Attributes:
        schema: The columns.
        group_rows: The number of rows in each group.

    Raises:
        DamagedError: It is not a Parquet file, or is damaged.
    """

    def __init__(self, source: pa.NativeFile, *, uri: str) -> None:
        self._uri = uri
        self._most_bytes = source.size()
        with self._explain():
            metadata = parquet.read_metadata(source)
            self._most_bytes = most_bytes(metadata)
            self.schema: pa.Schema = metadata.schema.to_arrow_schema()
            leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
            groups = range(metadata.num_row_groups)
            self.group_rows = [metadata.row_group(number).num_rows for number in groups]
            self._file = parquet.ParquetFile(
                source,
                metadata=metadata,
                # As above, for all texts.
                read_dictionary=[it.path for it in leaves if it.physical_type == "BYTE_ARRAY"],
                page_checksum_verification=True,
            )
            if min(self.group_rows, default=0) < 0 or sum(self.group_rows) != metadata.num_rows:
                raise ValueError("its numbers of rows contradict each other")

    def read_group(
        self, group: int, *, columns: Sequence[str], batch_rows: int = _FEW_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a group, with some columns.

        Args:
            group: The number of the group.
            columns: The names of the columns.
            batch_rows: How many rows are decoded at a time.

        Raises:
            DamagedError: The group is damaged, or its values are too long.
        """
        rows = 0
        with self._explain():
            for batch in self._file.iter_batches(
                batch_rows, row_groups=[group], columns=columns, use_threads=False
            ):
                limit = _BYTES + len(batch) * _BYTES_PER_ROW
                if max(batch.nbytes, sum(map(_bytes_in_dictionaries, batch.columns))) > limit:
                    raise _too_long(self._uri)
                rows += len(batch)
                yield from split_batch(batch, uri=self._uri)
            if columns and rows != self.group_rows[group]:
                raise ValueError(f"group {group} has {rows:,} rows")

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except PARQUET_ERRORS as error:
            raise_shortage(error, uri=self._uri, most_bytes=self._most_bytes)
            problem = f"not a Parquet file, or a damaged one: {describe_parquet_error(error)}"
            raise DamagedError(uri=self._uri, problem=problem) from error


def describe_parquet_error(error: Exception) -> str:
    """Returns the text of one of `PARQUET_ERRORS`, which may have several lines, on one line."""
    return " ".join(str(error).split())


def most_bytes(metadata: parquet.FileMetaData) -> int:
    """Returns the most bytes that pyarrow needs at a time, by the footer and the limits here."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return _BYTES + max((group.total_byte_size for group in groups), default=0)


def raise_shortage(error: BaseException, *, uri: str, most_bytes: int) -> None:
    """Raises an error that names both causes if pyarrow got no memory that a file may need.

    A request for more than that shows that the file is damaged.

    Args:
        error: What pyarrow raised.
        uri: The file.
        most_bytes: The most bytes that the file may need at a time.

    Raises:
        InputError: There is too little memory, or the file is damaged.
    """
    asked = _ASKED_BYTES.search(str(error))
    if not isinstance(error, pa.ArrowMemoryError) or (asked and int(asked[1]) > most_bytes):
        return
    raise InputError(
        uri=uri,
        problem=f"this process has no memory left for it ({describe_parquet_error(error)}): free "
        "some, or give it more; if that does not help, the file is damaged: download it again",
    ) from error


def split_batch(batch: pa.RecordBatch, *, uri: str) -> Iterator[pa.RecordBatch]:
    """Yields a batch in parts whose values take little memory as Python objects.

    A list of a million equal items takes a few bytes in a file, and a text may be in many rows.

    Raises:
        DamagedError: The values of one row are too long.
    """
    if sum(map(_object_bytes, batch.columns)) <= _BYTES:
        yield batch
    elif len(batch) == 1:
        raise _too_long(uri)
    else:
        half = len(batch) // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from split_batch(part, uri=uri)


def _object_bytes(values: pa.Array) -> int:
    """Returns the least that values take as Python objects, without those of fixed size."""
    kind = values.type
    if types.is_dictionary(kind):
        return _bytes_in_dictionaries(values) if _is_text(kind.value_type) else 0
    if isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        items = values.flatten()
        return _POINTER_BYTES * len(items) + _object_bytes(items)
    if types.is_struct(kind):
        return sum(map(_object_bytes, values.flatten()))
    return int(values.nbytes)


def _read_columns(
    file: parquet.ParquetFile, *, fields: Sequence[pa.Field], max_items: int, uri: str
) -> pa.Table:
    """Reads columns, those with lists some rows at a time.

    A million equal items of a list take a few bytes in the file.
    """
    lists = [field.name for field in fields if types.is_list(field.type)]
    flat = [field.name for field in fields if field.name not in lists]
    table = file.read(columns=flat, use_threads=False)
    if lists:
        batches = list(_read_lists(file, columns=lists, max_items=max_items, uri=uri))
        found = pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table()
        for name in lists:
            table = table.append_column(found.field(name), found[name])
    return table.select([field.name for field in fields])


def _read_lists(
    file: parquet.ParquetFile, *, columns: Sequence[str], max_items: int, uri: str
) -> Iterator[pa.RecordBatch]:
    """Yields columns of lists, some rows at a time, while their items are few enough."""
    items = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
        items += sum(len(column.flatten()) for column in batch.columns)
        if items > max_items:
            raise _too_long(uri)
        yield batch


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_flat(kind: pa.DataType) -> bool:
    return any(is_kind(_values(kind)) for is_kind in _IS_FLAT)


def _is_list(kind: pa.DataType) -> bool:
    if not types.is_list(kind):
        return False
    item = kind.value_type
    if types.is_struct(item):
        return all(_is_flat(field.type) for field in item)
    return bool(types.is_integer(item))


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _IS_TEXT)


def _text_paths(name: str, kind: pa.DataType) -> list[str]:
    """Returns the paths of the texts in a column: its own, or those in the structs of its lists."""
    if _is_text(_values(kind)):
        return [name]
    if types.is_list(kind) and types.is_struct(kind.value_type):
        item = kind.value_field.name
        return [
            f"{name}.list.{item}.{field.name}"
            for field in kind.value_type
            if _is_text(_values(field.type))
        ]
    return []


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Adds up the lengths of a column's texts, which are stored in dictionaries."""
    return sum(map(_bytes_in_dictionaries, column.chunks))


def _bytes_in_dictionaries(values: pa.Array) -> int:
    if types.is_list(values.type):
        return _bytes_in_dictionaries(values.values)
    if types.is_struct(values.type):
        return sum(map(_bytes_in_dictionaries, values.flatten()))
    if not types.is_dictionary(values.type):
        return 0
    return pc.sum(pc.take(pc.binary_length(values.dictionary), values.indices)).as_py() or 0


def _too_long(uri: str) -> DamagedError:
    return DamagedError(uri=uri, problem="its values are too long for a file of this purpose")
