"""Reads tables as a build does: their first rows once, then all in parts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ListedImage,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.table.table import TableFormat
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.making import make_format

Row = Mapping[str, Any]


def write_table(name: str, rows: Sequence[Row]) -> tuple[bytes, list[str]]:
    """Writes the same rows in one of the forms; returns the file `t` and its rows' places.

    Cells of CSV are texts as they are and JSON of anything else; what is missing is empty.
    """
    if name == "jsonl":
        lines = [f"{json.dumps(row)}\n".encode() for row in rows]
        begins = [sum(map(len, lines[:index])) for index in range(len(lines))]
        return b"".join(lines), [f"t: byte {begin}" for begin in begins]
    if name == "parquet":
        return write_parquet(rows), [f"t: row {index}" for index in range(len(rows))]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = [row.get(column) for column in columns]
        writer.writerow(
            "" if cell is None else cell if isinstance(cell, str) else json.dumps(cell)
            for cell in cells
        )
    return file.getvalue().encode(), [f"t: line {index + 2}" for index in range(len(rows))]


def write_parquet(rows: Sequence[Row]) -> bytes:
    """Writes two rows a group. A test of cells that no column of Parquet has is skipped."""
    columns = dict.fromkeys(column for row in rows for column in row)
    file = pa.BufferOutputStream()
    try:
        table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    except (pa.ArrowException, OverflowError) as error:
        pytest.skip(f"no column of Parquet has such cells: {error}")
    parquet.write_table(table, file, row_group_size=2)
    return file.getvalue().to_pybytes()


def read_parts(
    source: Format, *, storage: Storage, file_index: int = 0, chunk_bytes: int
) -> list[AnnotationEntry | Category]:
    """Reads an annotation file as a build does: in parts, where the format reads in parts."""
    if source.chunk_bytes is None:
        items = source.read_annotations(storage=storage, file_index=file_index)
        return [item for item in items if not isinstance(item, ListedImage)]
    stored = storage.stat(source.annotation_files()[file_index])
    assert stored is not None
    size = stored.size_bytes
    return [
        item
        for begin in range(0, max(1, size), chunk_bytes)
        for item in source.read_chunk(
            storage=storage,
            file_index=file_index,
            begin=begin,
            end=min(begin + chunk_bytes, size),
        )
    ]


class ReadTable:
    """The content of tables, read by a format.

    Args:
        name: The format.
        files: `{file name: content}`, or the content of the file `t`.
        folder: The folder to write them into.
        chunk_bytes: The bytes to read at a time, if the format reads in parts.
        settings: The format's settings other than `manifest`.
    """

    def __init__(
        self,
        name: str,
        files: Mapping[str, str | bytes] | str | bytes,
        *,
        folder: Path,
        chunk_bytes: int = 1 << 20,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        uris = []
        for file_name, content in (files if isinstance(files, Mapping) else {"t": files}).items():
            path = folder / file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            uris.append(str(path))
        found = make_format(name, manifest=uris, **settings).resolve()
        assert isinstance(found, TableFormat)
        self.format = found
        self.entries: list[AnnotationEntry] = []
        self.categories: list[Category] = []
        for file_index in range(len(uris)):
            items = read_parts(
                found, storage=LocalStorage(), file_index=file_index, chunk_bytes=chunk_bytes
            )
            self.entries += [item for item in items if isinstance(item, AnnotationEntry)]
            self.categories += [item for item in items if isinstance(item, Category)]

    def annotations(self) -> list[tuple[str, ImageAnnotations]]:
        """Key and annotations of the usable rows, in order."""
        return [
            (entry.key, decode_annotations(entry.annotations))
            for entry in self.entries
            if entry.defect is None and entry.exclusion is None
        ]

    def values(self) -> list[dict[str, Any]]:
        """The features of the usable rows: a lone value is not in a list."""
        repeated = {extra.spec.key: extra.spec.repeated for extra in self.format.extra_features()}
        rows = []
        for _, found in self.annotations():
            assert all(repeated[name] or len(each) == 1 for name, each in found.values.items())
            rows.append(
                {
                    name: list(each) if repeated[name] else each[0]
                    for name, each in found.values.items()
                }
            )
        return rows

    def labels(self) -> dict[str, list[str]]:
        """The labels of the usable rows by key."""
        return {key: list(found.labels) for key, found in self.annotations()}

    def types(self) -> dict[str, str]:
        """The types of the columns that become features."""
        return {name: str(column) for name, column in self.format._layout.columns.items()}

    def classes(self) -> dict[str, int | None]:
        """The classes that rows declare, with their ids."""
        return {category.name: category.source_id for category in self.categories}

    def defects(self) -> list[tuple[str, str, str]]:
        """Key, reason and detail of the rows that cannot be used."""
        return [
            (entry.key, entry.defect.value, entry.detail)
            for entry in self.entries
            if entry.defect is not None
        ]

    def exclusions(self) -> list[tuple[str, str]]:
        """Key and rule of the rows that are left out."""
        return [
            (entry.key, entry.exclusion.value)
            for entry in self.entries
            if entry.exclusion is not None
        ]
