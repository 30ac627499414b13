from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.storage import parquet as storage_parquet
from shardbeam.transforms.storage.parquet import (
    ParquetRows,
    raise_shortage,
    read_parquet,
    split_batch,
)

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


def rows_in_batches(values: pa.Array) -> list[int]:
    batch = pa.record_batch({"a": values})
    parts = list(split_batch(batch, uri="x"))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    return [len(part) for part in parts]


def test_rows_are_given_a_few_at_a_time_if_they_hold_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of lists are counted at all depths, and texts as often as they occur."""
    monkeypatch.setattr(storage_parquet, "_BYTES", 800)
    nulls = pa.array([[None] * 50] * 4)
    assert rows_in_batches(nulls.slice(0, 2)) == [2]
    assert rows_in_batches(nulls) == [2, 2]
    assert rows_in_batches(pa.array([[[None] * 25] * 2] * 4)) == [1, 1, 1, 1]
    assert rows_in_batches(pa.array([{"a": [True] * 60}] * 2)) == [1, 1]
    assert rows_in_batches(pa.array([[True] * 30] * 4, pa.list_(pa.bool_(), 30))) == [2, 2]
    assert rows_in_batches(pa.array(["b" * 300] * 4).dictionary_encode()) == [2, 2]
    assert rows_in_batches(pa.array([7] * 4).dictionary_encode()) == [4]
    with pytest.raises(DamagedError, match="its values are too long"):
        rows_in_batches(pa.array([[None], [None] * 101]))


@pytest.mark.parametrize("kind", ["text in a struct", "list"])
def test_a_small_file_with_long_values_is_refused(kind: str) -> None:
    text = pa.DictionaryArray.from_arrays(
        pa.array([0] * 400, pa.int32()), pa.array(["b" * 1_000_000])
    )
    column: pa.Array = pa.StructArray.from_arrays([text], ["path"])
    if kind == "list":
        flags = pa.array(np.zeros(9_000_000, bool))
        column = pa.ListArray.from_arrays(pa.array([0, len(flags)], pa.int32()), flags)
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"a": column}), buffer, compression="zstd", store_schema=False)
    assert len(buffer.getvalue()) < 100_000
    rows = ParquetRows(pa.BufferReader(buffer.getvalue()), uri="x")
    with pytest.raises(DamagedError, match="x: its values are too long"):
        list(rows.read_group(0, columns=["a"]))


def test_a_shortage_of_memory_is_damage_only_beyond_what_a_file_may_need() -> None:
    error = pa.ArrowMemoryError("realloc of size 1000 failed")
    raise_shortage(error, uri="x", most_bytes=999)
    raise_shortage(pa.ArrowInvalid("of size 10 failed"), uri="x", most_bytes=999)
    for some in (error, pa.ArrowMemoryError("no words about it")):
        with pytest.raises(
            InputError, match=r"no memory left for it .*the file is damaged"
        ) as both:
            raise_shortage(some, uri="x", most_bytes=1000)
        assert type(both.value) is InputError
