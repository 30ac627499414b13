"""Reads the rows of Parquet and Arrow files, without their images."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet, types

from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.formats.annotation_file import foreign_content, read_part
from shardbeam.transforms.formats.huggingface.columns import FirstColumns
from shardbeam.transforms.formats.huggingface.files import describe_features
from shardbeam.transforms.formats.huggingface.pages import (
    StoredImage,
    stored_arrow_images,
    stored_images,
)
from shardbeam.transforms.formats.parsing.root_files import require_file
from shardbeam.transforms.formats.table.first_rows import Row
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.parquet import PARQUET_ERRORS, describe_parquet_error
from shardbeam.transforms.storage.reader import StorageReader

# Rows that are decoded at a time: a small file may repeat a long text in each of them.
_BATCH_ROWS = 32
_HEAD_BYTES = 200
_IS_LIST = (types.is_list, types.is_large_list, types.is_fixed_size_list)
_IS_BYTES = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)


def read_first(uri: str, *, storage: Storage, number: int) -> FirstColumns:
    """Reads the columns of a file, and its first rows.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    with _opened(uri, storage=storage) as file:
        schema: pa.Schema = (
            file.schema_arrow if isinstance(file, parquet.ParquetFile) else file.schema
        )
        unread = [field.name for field in schema if _holds_bytes(field.type)]
        described = _metadata(schema)
        classes, images = describe_features(described)
        kept = [name for name in schema.names if name not in unread]
        if len(set(schema.names)) < len(schema.names):
            raise InputError(uri=uri, problem="two columns have the same name")
        return FirstColumns(
            names=schema.names,
            images=images if described else [it.name for it in schema if _is_image(it.type)],
            unread=unread,
            fields={field.name: _fields_of(field.type) for field in schema},
            classes=classes,
            rows=[*itertools.islice(_rows(file, columns=kept), number)],
        )


def read_rows(uri: str, *, storage: Storage, columns: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of a file with some of its columns.

    Raises:
        InputError: The file cannot be read, is damaged, or lacks a column.
    """
    with _opened(uri, storage=storage) as file:
        schema: pa.Schema = (
            file.schema_arrow if isinstance(file, parquet.ParquetFile) else file.schema
        )
        for name in columns:
            if name not in schema.names:
                raise InputError(
                    uri=uri, problem=f"has no column {name!r}, unlike the first file of the data"
                )
        yield from _rows(file, columns=columns)


def find_images(uri: str, *, storage: Storage, column: str) -> Iterator[StoredImage]:
    """Yields where the images of a column lie in a file, one for each row."""
    find = stored_arrow_images if uri.endswith(".arrow") else stored_images
    return find(uri, storage=storage, column=column)


@contextlib.contextmanager
def _opened(uri: str, *, storage: Storage) -> Iterator[Any]:
    """Opens a file, and explains errors that its content causes."""
    try:
        with contextlib.ExitStack() as stack:
            local = storage.open_local(uri)
            if local is None:
                reader = StorageReader(require_file(uri))
                source = stack.enter_context(pa.PythonFile(reader, mode="r"))
            else:
                local.close()
                # A map, because a batch of an Arrow file may hold 100 MB of images.
                source = stack.enter_context(pa.memory_map(uri))
            if uri.endswith(".arrow"):
                yield stack.enter_context(pa.ipc.open_stream(source))
            else:
                yield stack.enter_context(parquet.ParquetFile(source))
    except PARQUET_ERRORS as error:
        if isinstance(error, InputError):
            raise
        if foreign := foreign_content(read_part(uri, storage=storage, size_bytes=_HEAD_BYTES)):
            raise InputError(uri=uri, problem=foreign) from error
        kind = "an Arrow stream" if uri.endswith(".arrow") else "a Parquet file"
        problem = f"not {kind}, or a damaged one: {describe_parquet_error(error)}"
        raise DamagedError(uri=uri, problem=problem) from error


def _schema(file: Any) -> pa.Schema:  # noqa: ANN401
    return file.schema_arrow if isinstance(file, parquet.ParquetFile) else file.schema


def _rows(file: Any, *, columns: Sequence[str]) -> Iterator[Row]:  # noqa: ANN401
    """Yields rows; without columns, empty ones."""
    if isinstance(file, parquet.ParquetFile):
        if not columns:
            yield from itertools.repeat({}, file.metadata.num_rows)
            return
        batches = file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)
    else:
        batches = (
            batch.select(columns).slice(begin, _BATCH_ROWS)
            for batch in file
            for begin in range(0, batch.num_rows, _BATCH_ROWS)
        )
    for batch in batches:
        yield from batch.to_pylist() if columns else itertools.repeat({}, batch.num_rows)


def _metadata(schema: pa.Schema) -> Any:  # noqa: ANN401
    """Returns the types of the columns as `datasets` has written them; None if it has not."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return None
    try:
        return json.loads(text)["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        # Of another program, or damaged; Arrow's types remain.
        return None


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column holds bytes, alone or in structs and lists."""
    if any(is_list(kind) for is_list in _IS_LIST):
        return _holds_bytes(kind.value_type)
    if types.is_struct(kind):
        return any(_holds_bytes(field.type) for field in kind)
    return any(is_bytes(kind) for is_bytes in _IS_BYTES)


def _is_image(kind: pa.DataType) -> bool:
    if not types.is_struct(kind):
        return False
    names: Collection[str] = {field.name for field in kind}
    return names == {"bytes", "path"} and _holds_bytes(kind)


def _fields_of(kind: pa.DataType) -> list[str]:
    if any(is_list(kind) for is_list in _IS_LIST):
        kind = kind.value_type
    return [field.name for field in kind] if types.is_struct(kind) else []
