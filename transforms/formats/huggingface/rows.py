"""Reads the rows of Parquet and Arrow files, without their images."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from shardbeam.transforms.containers.base import copy_to_disk
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.formats.annotation_file import foreign_content, read_part
from shardbeam.transforms.formats.huggingface.columns import FirstColumns
from shardbeam.transforms.formats.huggingface.files import describe_features
from shardbeam.transforms.formats.huggingface.pages import (
    StoredImage,
    stored_arrow_images,
    stored_images,
)
from shardbeam.transforms.formats.table.first_rows import Row
from shardbeam.transforms.formats.table.parquet import holds_bytes, is_list, rows_of
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.parquet import PARQUET_ERRORS, ParquetRows, describe_parquet_error

# Rows of an Arrow file that are decoded at a time.
_BATCH_ROWS = 32
_HEAD_BYTES = 200


def read_first(uri: str, *, storage: Storage, number: int) -> FirstColumns:
    """Reads the columns of a file, and its first rows.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    with _opened(uri, storage=storage) as file:
        schema: pa.Schema = file.schema
        unread = [field.name for field in schema if holds_bytes(field.type)]
        described = _metadata(schema)
        classes, images = describe_features(described)
        kept = [name for name in schema.names if name not in unread]
        rows = itertools.islice(_rows(file, columns=kept), number)
        if len(set(schema.names)) < len(schema.names):
            raise InputError(uri=uri, problem="two columns have the same name")
        return FirstColumns(
            names=schema.names,
            images=images if described else [it.name for it in schema if _is_image(it.type)],
            unread=unread,
            fields={field.name: _fields_of(field.type) for field in schema},
            classes=classes,
            rows=[row for row in rows if not isinstance(row, str)],
        )


def read_rows(uri: str, *, storage: Storage, columns: Sequence[str]) -> Iterator[Row | str]:
    """Yields the rows of a file, or the problem of a row, with some of its columns.

    Raises:
        InputError: The file cannot be read, is damaged, or lacks a column.
    """
    with _opened(uri, storage=storage) as file:
        schema: pa.Schema = file.schema
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
def _opened(uri: str, *, storage: Storage) -> Iterator[ParquetRows | pa.RecordBatchStreamReader]:
    """Opens a file, and explains errors that its content causes."""
    try:
        with contextlib.ExitStack() as stack:
            local, path = storage.open_local(uri), uri
            if local is not None:
                local.close()
            # A member of an archive has no path.
            if local is None or not os.path.isfile(uri):
                path = stack.enter_context(copy_to_disk(storage.find(uri)))
            # A map, because a batch of an Arrow file may hold 100 MB of images.
            source = stack.enter_context(pa.memory_map(path))
            if uri.endswith(".arrow"):
                yield stack.enter_context(pa.ipc.open_stream(source))
            else:
                yield ParquetRows(source, uri=uri)
    except (*PARQUET_ERRORS, DamagedError) as error:
        if foreign := foreign_content(read_part(uri, storage=storage, size_bytes=_HEAD_BYTES)):
            raise InputError(uri=uri, problem=foreign) from error
        if isinstance(error, InputError):
            raise
        kind = "an Arrow stream" if uri.endswith(".arrow") else "a Parquet file"
        problem = f"not {kind}, or a damaged one: {describe_parquet_error(error)}"
        raise DamagedError(uri=uri, problem=problem) from error


def _rows(
    file: ParquetRows | pa.RecordBatchStreamReader, *, columns: Sequence[str]
) -> Iterator[Row | str]:
    """Yields rows, or the problem of a row; without columns, empty ones."""
    if isinstance(file, ParquetRows):
        for group, rows in enumerate(file.group_rows):
            if columns:
                for batch in file.read_group(group, columns=columns):
                    yield from rows_of(batch)
            else:
                yield from itertools.repeat({}, rows)
        return
    for batch in file:
        chosen = batch.select(columns)
        chosen.validate(full=True)
        if not columns:
            yield from itertools.repeat({}, batch.num_rows)
        for begin in range(0, chosen.num_rows if columns else 0, _BATCH_ROWS):
            yield from rows_of(chosen.slice(begin, _BATCH_ROWS))


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


def _is_image(kind: pa.DataType) -> bool:
    if not types.is_struct(kind):
        return False
    names: Collection[str] = {field.name for field in kind}
    return names == {"bytes", "path"} and holds_bytes(kind)


def _fields_of(kind: pa.DataType) -> list[str]:
    if is_list(kind):
        kind = kind.value_type
    return [field.name for field in kind] if types.is_struct(kind) else []
