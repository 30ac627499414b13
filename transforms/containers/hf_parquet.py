"""Parquet files as Hugging Face's `datasets` writes them: a row an Example, a column a key.

An image is a struct of `bytes` and `path`, a list is a list, and the schema's metadata
`huggingface` holds the types as `datasets` sees them, with the classes' names
(https://huggingface.co/docs/datasets, "Features"). Texts are UTF-8.

A group of rows is about 1 MB, so that a single row can be read without much beside it.
"""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet, types

from shardbeam.transforms.containers.base import (
    ChecksummedFile,
    Container,
    ExampleParts,
    ExampleSchema,
    WriteExample,
    copy_to_disk,
    serialize_example,
)
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.examples.columns import (
    ColumnType,
    column_type,
    feature_dict,
    is_image,
    is_list,
    is_text,
)
from shardbeam.transforms.examples.features import FeatureKind, FeatureRole, FeatureSpec
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.parquet import (
    PARQUET_ERRORS,
    describe_parquet_error,
    most_bytes,
    raise_shortage,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A group of rows is written when its Examples have this many bytes.
_GROUP_BYTES = 1_000_000
# Rows that are converted at a time.
_BATCH_ROWS = 32
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_TYPES = {FeatureKind.INT64: pa.int64(), FeatureKind.FLOAT: pa.float32()}
_KINDS = {
    pa.int64(): FeatureKind.INT64,
    pa.float32(): FeatureKind.FLOAT,
    **dict.fromkeys((pa.string(), pa.binary(), _IMAGE), FeatureKind.BYTES),
}
_FILENAME = "image/filename"
# Exceptions of a damaged file, and of a row that Shardbeam has not written.
_NO_ROW = (*PARQUET_ERRORS, AttributeError, TypeError)


class HFParquet(Container):
    """Parquet files; a record's place is its number."""

    suffix = ".parquet"
    number_before_suffix = True
    # TFDS does not know it, and refuses it at once; it reads other Parquet files as `parquet`.
    tfds_name = "hf_parquet"
    media_type = "application/x-parquet"
    readers = "datasets.load_dataset(path), or with pandas"
    checks_records = False
    recipe = (
        'import datasets\n\ndataset = datasets.load_dataset("path/to/this/folder", split={split})'
    )

    def versions(self) -> Mapping[str, str]:
        """Returns the version of pyarrow."""
        return {"pyarrow": pa.__version__}

    @contextlib.contextmanager
    def writer(self, file: ChecksummedFile, *, schema: ExampleSchema) -> Iterator[WriteExample]:
        """Returns a function that writes a row for each Example, some rows at a time."""
        groups = _RowGroups(file, schema=schema)
        try:
            yield groups.add
        except BaseException:
            groups.abandon()
            raise
        groups.close()

    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the Examples, after comparing the file's checksum."""
        with copy_to_disk(file, see=see) as path:
            number, most = 0, file.size_bytes
            try:
                # With threads, pyarrow sometimes aborts when the program ends
                # (https://github.com/apache/arrow/issues/33975).
                with (
                    pa.OSFile(path) as source,
                    parquet.ParquetFile(source, page_checksum_verification=True) as rows,
                ):
                    most = most_bytes(rows.metadata)
                    kinds = _read_kinds(rows.schema_arrow)
                    for group in range(rows.num_row_groups):
                        following = number + rows.metadata.row_group(group).num_rows
                        if following <= start:
                            number = following
                            continue
                        for record in _read_group(rows, group, kinds=kinds):
                            if number >= start:
                                yield number, record
                            number += 1
            except _NO_ROW as error:
                raise_shortage(error, uri=file.uri, most_bytes=most)
                place = self.describe_place(number) if number else ""
                detail = describe_parquet_error(error)
                problem = f"not a Parquet file of Shardbeam, or a damaged one: {detail}"
                raise DamagedError(uri=file.uri, place=place, problem=problem) from error

    def describe_place(self, place: int) -> str:
        """Returns "row" and its number."""
        return f"row {place}"

    def columns(
        self, schema: ExampleSchema, *, image_formats: Sequence[str]
    ) -> Mapping[str, ColumnType]:
        """Returns a column for each key."""
        return {spec.key: column_type(spec, label_map=schema.label_map) for spec in schema.features}


CONTAINER = HFParquet()


class _RowGroups:
    """Collects rows, and writes them in groups.

    Args:
        file: The new file.
        schema: The features of its Examples.
    """

    def __init__(self, file: ChecksummedFile, *, schema: ExampleSchema) -> None:
        self._features = schema.features
        self._schema = _arrow_schema(schema)
        large, small = _leaves(self._schema, features=schema.features)
        self._writer = parquet.ParquetWriter(
            _Sink(file),
            self._schema,
            # Images are compressed already.
            compression={**dict.fromkeys(large, "NONE"), **dict.fromkeys(small, "ZSTD")},
            use_dictionary=small,
            write_statistics=small,
        )
        self._columns: dict[str, list[Any]] = {spec.key: [] for spec in self._features}
        self._num_bytes = 0
        self._rows = 0

    def add(self, example: ExampleParts) -> int:
        """Adds a row, and returns its number."""
        features = example.features()
        name = next(iter(features.get(_FILENAME, ())), b"")
        path = posixpath.basename(name.decode(errors="replace")) if name else None
        for spec in self._features:
            values = features[spec.key]
            items = [_to_arrow(value, spec=spec, path=path) for value in values]
            self._columns[spec.key].append(items if is_list(spec) else items[0])
        self._num_bytes += example.size_bytes
        self._rows += 1
        if self._num_bytes >= _GROUP_BYTES:
            self._flush()
        return self._rows - 1

    def _flush(self) -> None:
        if self._num_bytes:
            self._writer.write_table(pa.table(self._columns, schema=self._schema))
            self._num_bytes = 0
            for column in self._columns.values():
                column.clear()

    def close(self) -> None:
        """Writes the last rows and the end of the file."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Closes the writer of a file that stays incomplete, so that nothing closes it later."""
        with contextlib.suppress(pa.ArrowException, OSError, ValueError):
            self._writer.close()


class _Sink(io.RawIOBase):
    """The new file as pyarrow writes it."""

    def __init__(self, file: ChecksummedFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.size_bytes

    def write(self, data: Buffer, /) -> int:
        chunk = bytes(data)
        self._file.write(chunk)
        return len(chunk)


def _arrow_schema(schema: ExampleSchema) -> pa.Schema:
    fields = []
    info: dict[str, Any] = {}
    for spec in schema.features:
        item = _arrow_type(spec)
        fields.append(pa.field(spec.key, pa.list_(item) if is_list(spec) else item))
        info[spec.key] = feature_dict(column_type(spec, label_map=schema.label_map))
    described = json.dumps({"info": {"features": info}}, separators=(",", ":"))
    return pa.schema(fields, metadata={"huggingface": described})


def _arrow_type(spec: FeatureSpec) -> pa.DataType:
    if is_image(spec):
        return _IMAGE
    if spec.kind is FeatureKind.BYTES:
        return pa.string() if is_text(spec) else pa.binary()
    return _TYPES[spec.kind]


def _leaves(schema: pa.Schema, *, features: Sequence[FeatureSpec]) -> tuple[list[str], list[str]]:
    """Returns the paths of the schema's columns in Parquet: those of images, and the others."""
    empty = pa.BufferOutputStream()
    parquet.write_table(schema.empty_table(), empty)
    written = parquet.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    keys = [spec.key for spec in features if is_image(spec) or spec.role is FeatureRole.DATA]
    large: list[str] = []
    small: list[str] = []
    for number in range(len(written.names)):
        path = written.column(number).path
        holds_data = any(path == key or path.startswith(f"{key}.") for key in keys)
        (large if holds_data and not path.endswith(".path") else small).append(path)
    return large, small


def _to_arrow(value: Any, *, spec: FeatureSpec, path: str | None) -> Any:  # noqa: ANN401
    if is_image(spec):
        return {"bytes": value, "path": path if spec.role is FeatureRole.IMAGE else None}
    if is_text(spec):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            problem = f"a text that is not UTF-8, which Parquet cannot hold: {value[:20]!r}"
            raise InputError(uri=f"the key {spec.key!r}", problem=problem) from error
    return value


def _read_kinds(schema: pa.Schema) -> dict[str, FeatureKind]:
    """Returns `{column: kind}`.

    Raises:
        TypeError: A column is of a type that Shardbeam does not write.
    """
    kinds = {}
    for field in schema:
        item = field.type.value_type if types.is_list(field.type) else field.type
        if item not in _KINDS:
            raise TypeError(f"column {field.name!r} is of type {field.type}")
        kinds[field.name] = _KINDS[item]
    return kinds


def _read_group(
    rows: parquet.ParquetFile, group: int, *, kinds: Mapping[str, FeatureKind]
) -> Iterator[bytes]:
    """Yields the Examples of a group of rows."""
    for batch in rows.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
        for row in batch.to_pylist():
            yield serialize_example(
                {key: (kind, _from_arrow(row[key])) for key, kind in kinds.items()}
            )


def _from_arrow(value: Any) -> list[Any]:  # noqa: ANN401
    """Returns the values of a cell, as an Example holds them."""
    values = value if isinstance(value, list) else [value]
    return [_to_feature(each) for each in values]


def _to_feature(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return value["bytes"]
    return value.encode() if isinstance(value, str) else value
