from __future__ import annotations

import io

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.errors import DamagedError
from shardbeam.transforms.dataset.index import (
    INDEX_SCHEMA,
    IndexRow,
    decode_index,
    index_parquet,
    read_index,
)


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
        crc32c=2**32 - 1 - number,
        labels=f"{number:016x}",
        dhash=2**64 - 1 if number else None,
        classes=f"{number:016x}" if number else "",
    )


ROWS = [make_row(number) for number in range(5)]


def old_index(columns: int) -> bytes:
    """An index of when there were fewer columns."""
    names = INDEX_SCHEMA.names[:columns]
    table = parquet.read_table(io.BytesIO(index_parquet(ROWS))).select(names)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def test_rows_come_back() -> None:
    data = index_parquet(ROWS)
    table = parquet.read_table(io.BytesIO(data))
    assert table.schema == INDEX_SCHEMA
    assert table.to_pylist() == [msgspec.structs.asdict(row) for row in ROWS]
    assert list(decode_index(data, uri="index")) == ROWS


@pytest.mark.parametrize("columns", [11, 14])
def test_an_index_of_fewer_columns_is_read(columns: int) -> None:
    rows = list(decode_index(old_index(columns), uri="index"))
    missing = dict.fromkeys(INDEX_SCHEMA.names[columns:])
    assert rows == [msgspec.structs.replace(row, **missing) for row in ROWS]


@pytest.mark.parametrize(
    ("data", "names"), [(index_parquet(ROWS), ["key", "dhash"]), (old_index(11), ["key"])]
)
def test_single_columns(data: bytes, names: list[str]) -> None:
    table = read_index(data, uri="index", columns=["key", "dhash"])
    assert table.column_names == names
    assert table["key"].to_pylist() == [row.key for row in ROWS]


def other_columns() -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"key": [1]}), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a Parquet file"),
        (index_parquet(ROWS)[:-5], "not a Parquet file"),
        (other_columns(), r"its columns are \['key'\]"),
    ],
)
def test_all_else_is_damaged(data: bytes, problem: str) -> None:
    with pytest.raises(DamagedError, match=problem):
        decode_index(data, uri="index")
