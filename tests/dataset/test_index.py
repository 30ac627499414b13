from __future__ import annotations

import io

import msgspec
from pyarrow import parquet

from shardbeam.transforms.dataset.index import INDEX_SCHEMA, IndexRow, index_parquet


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
