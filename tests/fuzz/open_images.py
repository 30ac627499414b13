"""Broken Open Images files: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import random

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, decode_annotations
from shardbeam.transforms.formats.open_images import OpenImagesFormat
from tests.support.stored import StoredFiles

_BOX_COLUMNS = (
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
)
_CELLS = (
    *("a", "b", "", "/m/0", "/m/1", "0", "1", "-1", "0.5", "1e999", "nan", "0x1", "1_0", " 0.5 "),
    *('"a"', '"', '"a,b"', "\0", "\u2028", "ö", "é", "../a", "a/b", "\r", "320", "9" * 400),
)
_BYTES = b'\xff\xfe\0"\n\r,\xef\xbb\xbf'


def fuzz_open_images(random: random.Random) -> None:
    """Reads one random, partly broken file in parts of random size."""
    is_boxes = random.random() < 0.6
    columns = list(_BOX_COLUMNS if is_boxes else _BOX_COLUMNS[:4])
    if random.random() < 0.3:
        random.shuffle(columns)
    if random.random() < 0.1:
        columns.pop(random.randrange(len(columns)))
    lines = [",".join(columns)]
    for _ in range(random.randrange(6)):
        cells = [_good_cell(column, random) for column in columns]
        while random.random() < 0.3:
            cells[random.randrange(len(cells))] = random.choice(_CELLS)
        if random.random() < 0.1:
            del cells[random.randrange(len(cells)) :]
        lines.append(",".join(cells))
    data = bytearray(random.choice(["\n", "\r\n"]).join(lines).encode())
    while random.random() < 0.3:
        position = random.randrange(len(data) + 1)
        data[position : position + random.randrange(2)] = bytes([random.choice(_BYTES)])

    uri = "folder/file.csv"
    storage = StoredFiles({uri: bytes(data)})
    source = (
        OpenImagesFormat(images="i", boxes=[uri])
        if is_boxes
        else OpenImagesFormat(images="i", image_labels=[uri])
    )
    chunk_bytes = random.randrange(1, 400)
    rows = 0
    for begin in range(0, max(1, len(data)), chunk_bytes):
        end = min(begin + chunk_bytes, len(data))
        try:
            items = list(source.read_chunk(storage=storage, file_index=0, begin=begin, end=end))
        except InputError as error:
            if error.uri != uri or not error.problem:
                raise AssertionError(error) from error
            return
        for item in items:
            if not isinstance(item, AnnotationEntry):
                item.name.encode()
                continue
            item.key.encode()
            rows += 1
            assert begin <= item.position < end
            if item.defect is None:
                decode_annotations(item.annotations)
            else:
                assert item.detail.startswith(f"file.csv: byte {item.position}: "), item
    assert rows <= 2 * (data.count(b"\n") + 1)


def _good_cell(column: str, random: random.Random) -> str:
    if column == "ImageID":
        return random.choice("aab")
    if column == "LabelName":
        return random.choice(["/m/0", "/m/1"])
    if column.startswith("Is"):
        return random.choice(["0", "1", "-1"])
    if column == "Source":
        return "s"
    return random.choice(["0", "0.25", "1"])
