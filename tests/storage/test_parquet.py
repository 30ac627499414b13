from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.errors import DamagedError
from shardbeam.transforms.storage.parquet import read_parquet

ROWS = 1_000
SCHEMA = pa.schema([("key", pa.string()), ("keep", pa.bool_()), ("group", pa.int32())])
TABLE = pa.table(
    {"key": [f"{n}.jpg" for n in range(ROWS)], "keep": [True] * ROWS, "group": [7] * ROWS},
    schema=SCHEMA,
)


def write(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def repeated(value: object, kind: pa.DataType, rows: int) -> pa.Table:
    return pa.table({"key": pa.repeat(pa.scalar(value, kind), rows)})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary("int8", "string")])
def test_columns_come_back(kind: pa.DataType) -> None:
    table = TABLE.slice(0, 100)
    data = write(table.set_column(0, "key", table["key"].cast(kind)))
    read = read_parquet(data, uri="x", columns=["keep", "none", "key"], max_rows=100)
    assert read.column_names == ["keep", "key"]
    assert read["key"].to_pylist() == table["key"].to_pylist()
    assert read["keep"].to_pylist() == table["keep"].to_pylist()


def test_empty_tables_and_missing_values() -> None:
    for table in (TABLE.slice(0, 0), pa.table({"key": pa.array(["a", None], pa.string())})):
        read = read_parquet(write(table), uri="x", columns=["key"], max_rows=9)
        assert read["key"].to_pylist() == table["key"].to_pylist()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: TABLE, "x: declares 1,000 rows; expected at most 999"),
        (lambda: repeated("a" * 200_000, pa.string(), 900), "its values are too long for a file"),
        # Uncompressed, it is as long in the file as in memory.
        (
            lambda: pa.table({"key": ["a"], "more": ["b" * 100_000_000]}),
            "its values are too long for a file",
        ),
        (lambda: repeated(b"a", pa.binary(), 9), "column 'key' is of binary"),
        (lambda: repeated([1.5], pa.list_(pa.float64()), 9), "column 'key' is of list"),
        (lambda: repeated(1.5, pa.float64(), 9), "column 'key' is of double"),
    ],
)
def test_what_takes_more_than_its_purpose_is_refused(
    make: Callable[[], pa.Table], problem: str
) -> None:
    data = write(make())
    assert len(data) < 100_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DamagedError, match=problem):
        read_parquet(data, uri="x", columns=["key"], max_rows=999)
    assert pa.total_allocated_bytes() - before < 10_000_000


def test_only_known_columns() -> None:
    data = write(TABLE)
    assert read_parquet(data, uri="x", columns=["key"], max_rows=ROWS, schemas=[SCHEMA]).num_rows
    with pytest.raises(DamagedError, match=r"its columns are \['key', 'keep', 'group'\]"):
        read_parquet(data, uri="x", columns=["key"], max_rows=ROWS, schemas=[SCHEMA.remove(0)])
