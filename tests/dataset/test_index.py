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
    read_index,
    read_known_columns,
)
from shardbeam.transforms.storage import parquet as limits
from shardbeam.transforms.storage.parquet import read_parquet
from tests.support.indexes import as_stored, render_index


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
        classes_digest=f"{number:016x}" if number else "",
        classes=(None, [], [-1], [7], [1, 90, 2**31 - 1])[number],
        findings=(None, {}, {"thin_box": 0}, {"a": 2**63 - 1, "b": 1}, {})[number],
        map_classes=([0], None, [], [7, 2**31 - 1], [1, 90])[number],
    )


ROWS = [make_row(number) for number in range(5)]


def old_index(columns: int) -> bytes:
    """An index of when there were fewer columns."""
    names = INDEX_SCHEMA.names[:columns]
    table = parquet.read_table(io.BytesIO(render_index(ROWS))).select(names)
    if columns <= 15:
        # There was no list of classes, and the digest had this name.
        table = table.rename_columns(["classes" if n == "classes_digest" else n for n in names])
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def test_rows_come_back() -> None:
    data = render_index(ROWS)
    table = parquet.read_table(io.BytesIO(data))
    assert table.schema == INDEX_SCHEMA
    assert table.to_pylist() == [as_stored(row) for row in ROWS]
    assert list(decode_index(data, uri="index")) == ROWS


@pytest.mark.parametrize("columns", [11, 14, 15, 17])
def test_an_index_of_fewer_columns_is_read(columns: int) -> None:
    rows = list(decode_index(old_index(columns), uri="index"))
    missing = dict.fromkeys(INDEX_SCHEMA.names[columns:])
    assert rows == [msgspec.structs.replace(row, **missing) for row in ROWS]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (render_index(ROWS), ["key", "dhash", "classes_digest", "classes"]),
        (old_index(17), ["key", "dhash", "classes_digest", "classes"]),
        (old_index(15), ["key", "dhash", "classes_digest"]),
        (old_index(14), ["key", "dhash"]),
        (old_index(11), ["key"]),
    ],
)
def test_single_columns(data: bytes, names: list[str]) -> None:
    table = read_index(data, uri="index", columns=["key", "dhash", "classes_digest", "classes"])
    assert table.column_names == names
    for name in names:
        assert table[name].to_pylist() == [getattr(row, name) for row in ROWS]
    assert read_index(data, uri="index", columns=["classes"]).column_names == names[3:]


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (render_index(ROWS), len(INDEX_SCHEMA)),
        *((old_index(columns), columns) for columns in (11, 14, 15, 17)),
    ],
)
def test_known_columns_have_their_present_names(data: bytes, columns: int) -> None:
    rows = read_known_columns(data, uri="index", max_rows=len(ROWS))
    names = INDEX_SCHEMA.names[:columns]
    assert rows == {name: [as_stored(row)[name] for row in ROWS] for name in names}


def test_a_list_of_too_many_items_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_BYTES", 1 << 20)
    buffer = io.BytesIO()
    items = pa.array([[1] * 1_000_000], pa.list_(pa.int32()))
    parquet.write_table(pa.table({"classes": items}), buffer)
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(DamagedError, match="too long"):
        read_parquet(
            buffer.getvalue(), uri="index", columns=["classes"], max_rows=1, lists=["classes"]
        )


def other_columns() -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"key": [1]}), buffer)
    return buffer.getvalue()


def test_all_else_is_damaged() -> None:
    with pytest.raises(DamagedError, match="not a Parquet file"):
        decode_index(b"", uri="index")
    with pytest.raises(DamagedError, match="not a Parquet file"):
        decode_index(render_index(ROWS)[:-5], uri="index")
    with pytest.raises(DamagedError, match=r"its columns are \['key'\]"):
        decode_index(other_columns(), uri="index")
