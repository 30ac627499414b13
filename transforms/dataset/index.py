"""The index of a shard: a Parquet file with a row an example."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyarrow import parquet


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """One example of a shard.

    Attributes:
        key: The image's path relative to its source's root.
        source: Which input of the config it comes from.
        split: Its split.
        shard: Index of its shard within the split.
        offset: Where its record begins in a TFRecord file, in bytes; the serialized Example begins
            12 bytes later, behind the record's length and that length's checksum. In an
            ArrayRecord file the record's number.
        length: Length of the serialized Example in bytes; a TFRecord is 16 bytes longer.
        sha256: Digest of the stored image's bytes, hex; empty where there is no image, as width,
            height (0) and format are.
        width: Width of the stored image in pixels.
        height: Height of the stored image in pixels.
        format: Format of the stored image: `jpeg`, `png` or `raw`.
        objects: How many objects the example holds.
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


INDEX_SCHEMA = pa.schema(
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
    ]
)

# Few different values; of the others a dictionary would be as long as the column.
_DICTIONARY_COLUMNS = ["source", "split", "shard", "width", "height", "format", "objects"]


def index_path(shard_path: str) -> str:
    """Names a shard's index; both paths are below the dataset's folder."""
    return f"index/{shard_path}.parquet"


def index_parquet(rows: Sequence[IndexRow]) -> bytes:
    """Renders a shard's index.

    The bytes follow from the rows and the version of pyarrow, which Parquet files name.

    Args:
        rows: The shard's examples, in order; may be empty.
    """
    columns = {name: [getattr(row, name) for row in rows] for name in INDEX_SCHEMA.names}
    buffer = io.BytesIO()
    parquet.write_table(
        pa.table(columns, schema=INDEX_SCHEMA),
        buffer,
        compression="zstd",
        use_dictionary=_DICTIONARY_COLUMNS,
    )
    return buffer.getvalue()
