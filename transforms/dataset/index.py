"""The index of a shard: a Parquet file with one row for each example."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet, types

from shardbeam.transforms.images.measures import MEASURES
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.listed_files import ListedFile, read_listed
from shardbeam.transforms.storage.parquet import read_parquet


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """One example of a shard.

    Attributes:
        key: The image's path relative to its source's root.
        source: Which input of the config it comes from.
        split: Its split.
        shard: Index of its shard within the split.
        offset: The byte at which its record begins in a TFRecord file; the serialized Example
            begins 12 bytes later, after the record's length and the checksum of that length. In a
            WebDataset tar, the byte of the sample's first header; in ArrayRecord and Parquet
            files, the record's number.
        length: Length of the serialized Example in bytes; a TFRecord is 16 bytes longer.
        sha256: Digest of the stored image's bytes, hex. Without an image this and `format` are
            empty, and width and height are 0.
        width: Width of the stored image in pixels.
        height: Height of the stored image in pixels.
        format: Format of the stored image: `jpeg`, `png` or `raw`.
        objects: How many objects the example holds.
        crc32c: CRC-32C of the serialized Example; None in older datasets, like the next three.
        labels: Digest of the image's labels, 16 hex digits, which does not depend on their order:
            classes, classes and boxes of objects, captions (`examples.encode.label_digest`). If
            each object has its own Example, the digest covers all objects of the image.
        dhash: Difference hash of the upright image (`images.measures`); None if images are not
            decoded (`image.verify`), or if the image is flat.
        classes_digest: Digest of the names of the image's classes, 16 hex digits; empty if it has
            none. Objects do not count.
        classes: Ids of the classes of the Example's objects and of its image, each once, in order;
            None if the dataset has no label map.
        findings: `{kind: greatest strength}` of the findings in the Example
            (`dataset.example_findings`), by kind; None in older datasets.
        map_classes: Ids of the classes that the Example's map shows, each once, in order; None if
            it has no map, if the values of maps are no ids of classes, and in older datasets.
        crop_hashes: Difference hashes of crops of the upright image that are not flat; None without
            any, without `image.crop_hashes`, and in older datasets.
        class_objects: The number of the Example's objects of each of `classes`; None where they
            are, and in older datasets.
    """

    key: str
    source: str
    split: str
    shard: int
    offset: int
    length: int
    sha256: str
    width: int
    height: int
    format: str
    objects: int
    crc32c: int | None = None
    labels: str | None = None
    dhash: int | None = None
    classes_digest: str | None = None
    classes: Sequence[int] | None = None
    findings: Mapping[str, int] | None = None
    map_classes: Sequence[int] | None = None
    crop_hashes: Sequence[int] | None = None
    class_objects: Sequence[int] | None = None


# Collectors fill the columns (`dataset.collectors`). New ones come last: readers accept an index
# that lacks the last ones.
_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("sha256", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("objects", pa.int32()),
        ("crc32c", pa.uint32()),
        ("labels", pa.string()),
        ("dhash", pa.uint64()),
        ("classes_digest", pa.string()),
        ("classes", pa.list_(pa.int32())),
        ("findings", pa.list_(pa.struct([("kind", pa.string()), ("strength", pa.int64())]))),
        ("map_classes", pa.list_(pa.int32())),
        ("crop_hashes", pa.list_(pa.uint64())),
        ("class_objects", pa.list_(pa.int32())),
    ]
)
INDEX_SCHEMA = pa.schema(
    [
        *_COLUMNS,
        *(
            pa.field(each.name, each.column)
            for each in MEASURES
            if each.column and each.name not in _COLUMNS.names
        ),
    ]
)
# The columns that all versions have; they have a value in every row.
_OLDEST = INDEX_SCHEMA.names[: INDEX_SCHEMA.names.index("crc32c")]
_FILLED = frozenset(_OLDEST)
# In datasets without the column `classes`, `classes_digest` had that name.
_OLD_DIGEST = "classes"
# The columns that hold lists.
_LISTS = ("classes", "findings", "map_classes", "crop_hashes", "class_objects")
# Rows that are converted at a time.
_BLOCK_ROWS = 1024
# How many hex digits of a digest are compared.
_HEX_DIGITS = 16


def _schema_of(columns: int) -> pa.Schema:
    """Returns the schema of a version that had only the first columns."""
    fields = list(INDEX_SCHEMA)[:columns]
    if "classes" in INDEX_SCHEMA.names[:columns]:
        return pa.schema(fields)
    return pa.schema(
        [each.with_name(_OLD_DIGEST) if each.name == "classes_digest" else each for each in fields]
    )


_SCHEMAS = [_schema_of(columns) for columns in range(len(_OLDEST), len(INDEX_SCHEMA) + 1)]

# These columns have few distinct values; for others, a dictionary would be as long as the column.
_DICTIONARY_COLUMNS = [
    *("source", "split", "shard", "width", "height", "format", "objects", "classes_digest"),
    *("classes.list.element", "findings.list.element.kind", "map_classes.list.element"),
    "class_objects.list.element",
]


def index_version() -> str:
    """Returns what decides an index's bytes besides its rows: its columns and pyarrow's version."""
    columns = hashlib.sha256(str(INDEX_SCHEMA).encode()).hexdigest()[:_HEX_DIGITS]
    return f"{columns} pyarrow {pa.__version__}"


def index_path(shard_path: str) -> str:
    """Names a shard's index; both paths are below the dataset's folder."""
    return f"index/{shard_path}.parquet"


def index_parquet(columns: Mapping[str, Sequence[Any]], *, rows: int) -> bytes:
    """Renders a shard's index.

    The same columns and the same version of pyarrow give the same bytes.

    Args:
        columns: `{column: a value for each Example}`; others have no values.
        rows: The number of Examples; may be 0.
    """
    buffer = io.BytesIO()
    parquet.write_table(
        pa.table(
            {name: columns.get(name, [None] * rows) for name in INDEX_SCHEMA.names},
            schema=INDEX_SCHEMA,
        ),
        buffer,
        compression="zstd",
        use_dictionary=_DICTIONARY_COLUMNS,
    )
    return buffer.getvalue()


def make_row(values: Mapping[str, Any]) -> IndexRow:
    """Makes a row of the values of an index's columns, as pyarrow gives them."""
    named = {name: values[name] for name in IndexRow.__struct_fields__ if name in values}
    if (found := named.get("findings")) is not None:
        named["findings"] = {each["kind"]: each["strength"] for each in found}
    return IndexRow(**named)


class IndexRows:
    """The rows of a shard's index, converted from the columns one block at a time.

    Args:
        table: All columns, as `read_index` gives them.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._begin = 0
        self._block: list[IndexRow] = []

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[IndexRow]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int, /) -> IndexRow:
        if not 0 <= number < len(self):
            raise IndexError(number)
        if not self._begin <= number < self._begin + len(self._block):
            self._begin = number - number % _BLOCK_ROWS
            rows = self._table.slice(self._begin, _BLOCK_ROWS).to_pylist()
            self._block = [make_row(row) for row in rows]
        return self._block[number - self._begin]


def decode_index(data: bytes, *, uri: str, max_rows: int = limits.INDEX_ROWS) -> IndexRows:
    """Decodes the index of a shard; see `read_index`.

    Raises:
        DamagedError: It is damaged, or has other columns or more rows.
    """
    return IndexRows(read_index(data, uri=uri, max_rows=max_rows))


def load_index(
    uri: str,
    *,
    listed: ListedFile | None,
    columns: Sequence[str] = tuple(INDEX_SCHEMA.names),
    max_rows: int = limits.INDEX_ROWS,
) -> pa.Table:
    """Reads columns of a shard's index from storage, as `read_index` decodes them.

    Args:
        uri: The index.
        listed: What the dataset's manifest says about it (`StoredDataset.listed_files`), which is
            compared before anything is decoded; None where no manifest lists it.
        columns: As for `read_index`, like `max_rows`.
        max_rows: How many Examples the shard holds, if that is known.

    Raises:
        InputError: It is not there, cannot be read, or is damaged.
    """
    missing = "the index of a shard is missing"
    data = read_listed(uri, max_bytes=limits.INDEX_BYTES, listed=listed, missing=missing)
    return read_index(data, uri=uri, columns=columns, max_rows=max_rows)


def read_known_columns(data: bytes, *, uri: str, max_rows: int) -> dict[str, list[Any]]:
    """Decodes the columns that an index of any version has in common with this one.

    Returns:
        `{column: values}`.

    Raises:
        DamagedError: It is damaged, or has more rows.
    """
    columns = INDEX_SCHEMA.names
    table = _with_present_names(
        read_parquet(
            data, uri=uri, columns=columns, max_rows=max_rows, lists=_LISTS, filled=_FILLED
        ),
        columns=columns,
    )
    known = [field.name for field in table.schema if field in list(INDEX_SCHEMA)]
    values: dict[str, list[Any]] = table.select(known).to_pydict()
    return values


def read_index(
    data: bytes,
    *,
    uri: str,
    columns: Sequence[str] = tuple(INDEX_SCHEMA.names),
    max_rows: int = limits.INDEX_ROWS,
) -> pa.Table:
    """Decodes columns of a shard's index; an older dataset may lack some of them.

    Args:
        data: The index.
        uri: Where it lies, for errors.
        columns: The columns.
        max_rows: How many Examples the shard holds, if that is known; `limits.INDEX_ROWS` is the
            limit anyway.

    Raises:
        DamagedError: It is damaged, or has other columns or more rows.
    """
    table = read_parquet(
        data,
        uri=uri,
        # In an older dataset this column is the digest.
        columns=list(dict.fromkeys([*columns, _OLD_DIGEST])),
        max_rows=min(max_rows, limits.INDEX_ROWS),
        schemas=_SCHEMAS,
        lists=_LISTS,
        filled=_FILLED,
    )
    return _with_present_names(table, columns=columns)


def _with_present_names(table: pa.Table, *, columns: Sequence[str]) -> pa.Table:
    """Returns columns of an index of any version under their present names."""
    names = table.column_names
    if _OLD_DIGEST in names and types.is_string(table.schema.field(_OLD_DIGEST).type):
        names = ["classes_digest" if name == _OLD_DIGEST else name for name in names]
        table = table.rename_columns(names)
    return table.select([name for name in columns if name in names])


def first_bits(digests: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Reads the first 64 bits of each hex digest in a column; an empty digest gives 0.

    Raises:
        TypeError: A value is missing.
        ValueError: A value is not in hex.
        OverflowError: A value is negative.
    """
    return np.array([int(each[:_HEX_DIGITS] or "0", 16) for each in digests.to_pylist()], np.uint64)
