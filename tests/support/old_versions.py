"""Makes a dataset look as if another version of Shardbeam had counted it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from shardbeam.transforms.dataset.dataset_files import describe_data


def age_records(
    output: Path,
    *,
    records: slice = slice(None),
    unknown: bool = False,
    lost_columns: Collection[str] | None = None,
    other_hashes: bool = False,
    same_statistics: bool = False,
) -> None:
    """Changes everything that a dataset keeps about its shards for the next version.

    Args:
        output: The dataset.
        records: Which of its shards' records, sorted by their keys.
        unknown: Whether records do not say what has counted them, like those of the first versions
            of Shardbeam.
        lost_columns: Columns to replace by one that is unknown today, as if that version had not
            had them; None to leave the indexes as they are.
        other_hashes: Whether pictures have other hashes, of another version.
        same_statistics: Whether the statistics are those of this version.
    """
    for path in sorted((output / "runs" / ".shards").iterdir())[records]:
        record = json.loads(path.read_bytes())["record"]
        record["collected"] |= other_versions(
            *(() if same_statistics else ("objects", "statistics")),
            *(() if lost_columns is None else ("rows", "labels")),
            *(("measures",) if other_hashes else ()),
        )
        if lost_columns is not None:
            record["index"] = rewrite_index(output, record["index"]["path"], lost=lost_columns)
        if other_hashes:
            record["index"] = replace_hashes(output, record["index"]["path"])
        if unknown:
            del record["collected"]
        text = json.dumps(record)
        digest = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(f'{{"sha256": "{digest}", "record": {text}, "format": 3}}\n')


def other_versions(*collectors: str) -> dict[str, dict[str, Any]]:
    """What other versions of collectors have counted: all of their fields may differ."""
    counted = {"images": "three", "colours": {}}
    return {name: {"version": "another", "statistics": counted} for name in collectors}


def rewrite_index(output: Path, path: str, *, lost: Collection[str]) -> dict[str, Any]:
    """Leaves columns of an index out; returns the record's description of the file."""
    table = parquet.read_table(output / path)
    place = table.schema.get_field_index("labels")
    # Labels were digested in another way.
    table = table.set_column(place, "labels", pa.array(["0" * 16] * len(table), pa.string()))
    table = table.drop_columns(list(lost)).append_column("colour", [["red"] * len(table)])
    if "classes" in lost:
        # The version without this column gave its name to the digest.
        names = ["classes" if name == "classes_digest" else name for name in table.column_names]
        table = table.rename_columns(names)
    # One that has another type now.
    table = table.set_column(
        table.schema.get_field_index("offset"), "offset", table["offset"].cast(pa.string())
    )
    return _write_index(table, output=output, path=path)


def replace_hashes(output: Path, path: str) -> dict[str, Any]:
    """Gives all pictures of an index that have a hash another one; returns its description."""
    table = parquet.read_table(output / path)
    place = table.schema.get_field_index("dhash")
    hashes = [None if value is None else 7 for value in table["dhash"].to_pylist()]
    table = table.set_column(place, "dhash", pa.array(hashes, pa.uint64()))
    return _write_index(table, output=output, path=path)


def _write_index(table: pa.Table, *, output: Path, path: str) -> dict[str, Any]:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    (output / path).write_bytes(buffer.getvalue())
    file = describe_data(path, buffer.getvalue())
    return {"path": file.path, "size_bytes": file.size_bytes, "crc32c": file.crc32c}
