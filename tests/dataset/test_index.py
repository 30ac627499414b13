from __future__ import annotations

import io

import msgspec
import pyarrow as pa
from pyarrow import parquet

from shardbeam.transforms.dataset.index import INDEX_SCHEMA, IndexRow, index_parquet
from tests.support.tfrecords import tfrecord


def make_row(number: int) -> IndexRow:
    return IndexRow(
        key=f"dogs/臉{number}.jpg",
        source="train",
        split="train",
        shard=3,
        offset=number * 2**32,
        length=2**32 - 16,
        sha256=f"{number:064x}",
        width=640,
        height=480 + number,
        format="jpeg",
        objects=number,
    )


def test_rows_come_back() -> None:
    rows = [make_row(number) for number in range(5)]
    table = parquet.read_table(io.BytesIO(index_parquet(rows)))
    assert table.schema == INDEX_SCHEMA
    assert table.to_pylist() == [msgspec.structs.asdict(row) for row in rows]


def test_an_empty_shard_has_an_index_of_the_same_schema() -> None:
    table = parquet.read_table(io.BytesIO(index_parquet([])))
    assert table.schema == INDEX_SCHEMA
    assert table.num_rows == 0


def test_every_field_has_a_column() -> None:
    assert INDEX_SCHEMA.names == [field.name for field in msgspec.structs.fields(IndexRow)]
    assert pa.types.is_int64(INDEX_SCHEMA.field("offset").type)


def test_the_same_rows_give_the_same_bytes() -> None:
    assert index_parquet([make_row(1)]) == index_parquet([make_row(1)])


def test_offset_and_length_find_the_example() -> None:
    examples = [b"first", b"", b"third"]
    shard, rows = b"", []
    for data in examples:
        rows.append(msgspec.structs.replace(make_row(0), offset=len(shard), length=len(data)))
        shard += tfrecord(data)
    table = parquet.read_table(io.BytesIO(index_parquet(rows)))
    found = [
        shard[row["offset"] + 12 : row["offset"] + 12 + row["length"]] for row in table.to_pylist()
    ]
    assert found == examples
