"""Behaviour of Parquet tables alone; test_table.py tests what all tables share."""

from __future__ import annotations

import datetime
import io
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.storage import parquet as limits
from tests.support.table_reading import ReadTable, write_parquet


def stored(table: pa.Table, **options: Any) -> bytes:  # noqa: ANN401
    file = io.BytesIO()
    parquet.write_table(table, file, **options)
    return file.getvalue()


def read(cells: dict[str, Any], folder: Path, **settings: Any) -> ReadTable:  # noqa: ANN401
    return ReadTable("parquet", stored(pa.table(cells)), folder=folder, **settings)


WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("column", "type_", "found"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
        (pa.array(["a", None], pa.large_string()), "string?", [["a"], []]),
        (pa.array([0.5, 2], pa.float16()), "float", [0.5, 2.0]),
        (pa.array([1, None]).cast(pa.decimal128(25, 2)), "float?", [[1.0], []]),
        (pa.array([0.5, math.inf]), "float", [0.5, math.inf]),
        (pa.nulls(2), "string?", [[], []]),
        (pa.array([WHEN], pa.timestamp("s", "Asia/Tokyo")), "string", ["2026-01-02 03:04:05.000"]),
        (pa.array([WHEN.date()]), "string", ["2026-01-02"]),
        (pa.array([[1], []], pa.large_list(pa.int8())), "list[int]", [[1], []]),
        (pa.array([[1, 2]], pa.list_(pa.float32(), 2)), "list[float]", [[1.0, 2.0]]),
        (pa.array([{"x": [1], "y": None}]), "string", ['{"x":[1],"y":null}']),
        (pa.array([[{"x": "é"}]]), "list[string]", [['{"x":"é"}']]),
    ],
)
def test_types_of_columns(tmp_path: Path, column: pa.Array, type_: str, found: list[Any]) -> None:
    table = read({"a": column}, tmp_path)
    assert table.types() == {"a": type_}
    assert [row["a"] for row in table.values()] == found


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.array([b"\xff\xd8"]), "holds bytes, .* the format is huggingface"),
        (pa.array([{"bytes": b"x", "path": "a.jpg"}]), "the format is huggingface"),
        (pa.array([[b"x"]]), "the format is huggingface"),
        (pa.array([datetime.timedelta(1)]), r"is of type duration\[us\], which is not read"),
        (pa.array([[WHEN]]), "which is not read"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "which is not read"),
    ],
)
def test_other_columns_are_refused_unless_they_are_ignored(
    tmp_path: Path, column: pa.Array, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as error:
        read({"x": column, "a": [1]}, tmp_path)
    assert "columns: {x: ignore}" in error.value.problem
    assert read({"x": column, "a": [1]}, tmp_path, columns={"x": "ignore"}).values() == [{"a": 1}]


def test_a_label_that_is_nan_is_none_and_ids_stay_ids(tmp_path: Path) -> None:
    columns = {"image": ["a.jpg", "b.jpg"], "label": [3.0, math.nan]}
    table = read(columns, tmp_path, image_root=["/d"])
    assert table.labels() == {"a.jpg": ["3"], "b.jpg": []}
    assert table.classes() == {"3": 3}


def test_the_index_of_pandas_and_columns_without_a_name_are_left_out(tmp_path: Path) -> None:
    assert read({"a": [1], "__index_level_0__": [7], "": [1]}, tmp_path).values() == [{"a": 1}]


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(InputError, match="the column 'a' occurs twice"):
        ReadTable("parquet", stored(table), folder=tmp_path)


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 20])
def test_each_row_belongs_to_one_part_whatever_the_parts(tmp_path: Path, chunk_bytes: int) -> None:
    rows = [{"n": number} for number in range(9)]
    table = ReadTable("parquet", write_parquet(rows), folder=tmp_path, chunk_bytes=chunk_bytes)
    assert table.values() == rows
    assert [entry.position for entry in table.entries] == [*range(9)]


def test_a_text_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    table = read({"t": texts, "n": [1, 2, 3]}, tmp_path)
    assert table.values() == [{"t": "a", "n": 1}, {"t": "c", "n": 3}]
    assert table.defects() == [("t: row 1", "annotation_malformed", "t: row 1: not valid UTF-8")]


def test_a_short_file_with_much_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_BYTES", 1 << 20)
    for columns in ({"t": ["x" * 100_000] * 100}, {"t": [["x" * 100_000]] * 100}):
        assert len(stored(pa.table(columns))) < 20_000
        with pytest.raises(DamagedError, match="too long"):
            read(columns, tmp_path)
    with pytest.raises(DamagedError, match="too long"):
        read({"n": [[0] * 1_000_000] * 4}, tmp_path)


GOOD = write_parquet([{"image": "a.jpg", "label": "cat"}, {"image": "b.jpg", "label": "dog"}])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PAR1",
        b"image,label\na.jpg,cat\n",
        GOOD[:-1],
        GOOD[: len(GOOD) // 2],
        GOOD[:40] + GOOD[80:],
        GOOD[:-8] + b"\xff\xff\xff\x7fPAR1",
        GOOD + b"PAR1",
    ],
)
def test_damaged_files_are_errors_that_name_them(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DamagedError, match="not a Parquet file, or a damaged one"):
        ReadTable("parquet", {"m.parquet": content}, folder=tmp_path)
