"""What the outcome of any table must be: entries with a place, or an error that names the file."""

from __future__ import annotations

import random
import unittest.mock
from typing import Any

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, decode_annotations
from shardbeam.transforms.formats.table import TableFormat
from tests.fuzz.outcome import read_or_refuse
from tests.support.stored import StoredFiles
from tests.support.table_reading import read_parts

URI = "folder/table"
_REASONS = {Reason.ANNOTATION_MALFORMED, Reason.OUTSIDE_ROOTS, Reason.UNREADABLE_NAME}


def random_columns(random: random.Random) -> list[str]:
    """Columns of rows, of images or of objects; now and then strange ones."""
    columns = random.choice(
        [
            ["a", "b", "split"],
            ["image", "label", "split"],
            ["image_uri", "label", "a"],
            ["image", "a", "b"],
            ["image", "label", "xmin", "ymin", "xmax", "ymax", "a"],
            ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"],
        ]
    )
    columns = [*columns]
    if random.random() < 0.1:
        columns.append(random.choice(["", " c ", "\0", "a\x07", "image/encoded", "a", "path"]))
    if random.random() < 0.1:
        columns.remove(random.choice(columns))
    random.shuffle(columns)
    return columns


def good_cell(column: str, random: random.Random) -> str | float:
    """A value that makes sense in a column."""
    if column in ("image", "image_uri", "filename", "imageGcsUri"):
        return random.choice(["/data/a.jpg", "/data/b/c.png", "gs://b/x.png", "d.jpg", "b/e"])
    if column in ("label", "class"):
        return random.choice(["cat", "dog", "1", "2"])
    if column == "split":
        return random.choice(["TRAIN", "test", "DISCARD", "fold1"])
    return random.choice([0, 0.25, 1, 7])


def damaged_lines(
    lines: list[str], random: random.Random, *, ends: list[str], strange: bytes, share: float
) -> bytes:
    """Puts lines together, and now and then a strange byte into them or over one of theirs."""
    data = bytearray(random.choice(ends).join(lines).encode())
    while random.random() < share:
        position = random.randrange(len(data) + 1)
        data[position : position + random.randrange(2)] = bytes([random.choice(strange)])
    return bytes(data)


def random_settings(columns: list[str], random: random.Random) -> dict[str, Any]:
    """Settings that fit the table, mostly."""
    settings: dict[str, Any] = {"manifest": [URI]}
    if {"image", "image_uri", "filename", "imageGcsUri"}.intersection(columns):
        settings["image_root"] = random.choice([["/data"], ["/data/a", "/data/b"], ["gs://b"]])
    if random.random() < 0.05:
        settings["image_root"] = ["/data"]
    for what in ("image_column", "label_column", "split_column"):
        if random.random() < 0.03:
            settings[what] = random.choice([*columns, "none"])
    if random.random() < 0.2:
        types = ["int", "float?", "bool", "string", "list[int]", "list[string]", "ignore"]
        settings["columns"] = {random.choice(["a", *columns]): random.choice(types)}
    if random.random() < 0.2:
        settings["label_separator"] = random.choice(["|", ","])
    if random.random() < 0.1:
        settings["splits"] = random.choice([["train"], ["test", "fold1"]])
    return settings


def check_table(
    format_class: type[TableFormat],
    data: bytes,
    *,
    settings: dict[str, Any],
    chunk_bytes: int,
) -> set[int] | None:
    """Reads a table as a build does; raises if the outcome is none that may be.

    Returns:
        Where entries are; None where the table is refused.
    """
    storage = StoredFiles({URI: data})

    def read() -> tuple[TableFormat, list[AnnotationEntry | Category]]:
        with unittest.mock.patch(
            "shardbeam.transforms.formats.table.storage_for", return_value=storage
        ):
            source = format_class(**settings).resolve()
        return source, read_parts(source, storage=storage, chunk_bytes=chunk_bytes)

    found = read_or_refuse(read, uri=URI)
    if found is None:
        return None
    source, items = found
    features = {extra.spec.key: extra.spec for extra in source.extra_features()}
    per_object = any(extra.per_object for extra in source.extra_features())
    positions: set[int] = set()
    for item in items:
        if not isinstance(item, AnnotationEntry):
            assert item.name.splitlines() == [item.name]
            continue
        item.key.encode()
        assert item.position not in positions
        positions.add(item.position)
        if item.defect is not None:
            assert item.defect in _REASONS
            assert item.detail.startswith("table: "), item
        elif item.exclusion is None:
            annotations = decode_annotations(item.annotations)
            if per_object:
                continue
            assert set(annotations.values) == set(features)
            for name, values in annotations.values.items():
                assert features[name].repeated or len(values) == 1
    return positions
