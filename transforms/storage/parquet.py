"""Reads Parquet files from unknown sources within limits on their rows and texts.

A file of 50 KB may declare a billion rows, or repeat a text of 1 MB in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet, types

from shardbeam.transforms.core.errors import DamagedError

# The texts of a file, its lists, and its columns without compression, may take `_BYTES`, and
# `_BYTES_PER_ROW` more for each row. A path has at most 4 KB.
_BYTES, _BYTES_PER_ROW = 64 << 20, 8 << 10
_INTEGER_BYTES = 8
_IS_TEXT: tuple[Callable[[pa.DataType], bool], ...] = (types.is_string, types.is_large_string)
_IS_FLAT = (*_IS_TEXT, types.is_integer, types.is_boolean)


def read_parquet(
    data: bytes,
    *,
    uri: str,
    columns: Sequence[str],
    max_rows: int,
    schemas: Sequence[pa.Schema] = (),
    lists: Collection[str] = (),
) -> pa.Table:
    """Decodes columns of texts, integers and booleans.

    Args:
        data: The file's content.
        uri: The file, for errors.
        columns: The columns to read; missing ones are skipped.
        max_rows: The most rows that a file of this purpose can have.
        schemas: The allowed schemas, with columns in order; empty to allow any.
        lists: The columns that may hold lists: of integers, or of structs of such values.

    Raises:
        DamagedError: It is not a Parquet file, has too many rows, other columns, or values that
            are too long.
    """
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
        # A million equal items of a list take a few bytes in the file.
        items = sum(_count_items(group, lists=lists) for group in groups)
        if items * _INTEGER_BYTES > limit:
            raise _too_long(uri)
        # Dictionaries keep a repeated text once, until the total length is known to be small.
        file = parquet.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=texts)
        table = file.read(columns=[field.name for field in fields], use_threads=False)
        if sum(_text_bytes(table[path.partition(".")[0]]) for path in texts) > limit:
            raise _too_long(uri)
        return table.cast(pa.schema([(f.name, _values(f.type)) for f in fields]))
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(uri=uri, problem=f"not a Parquet file: {error}") from error


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


def _count_items(group: parquet.RowGroupMetaData, *, lists: Collection[str]) -> int:
    """Counts the items of lists in a row group, as its metadata declare them."""
    columns = map(group.column, range(group.num_columns))
    return sum(
        column.num_values for column in columns if column.path_in_schema.split(".")[0] in lists
    )


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
