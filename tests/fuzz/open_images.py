"""Broken Open Images files: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import random
import re

from shardbeam.transforms.core.records import AnnotationEntry, decode_annotations
from shardbeam.transforms.formats.open_images import OpenImagesFormat
from tests.fuzz.outcome import read_or_refuse
from tests.fuzz.tables import damaged_lines
from tests.support.stored import StoredFiles
from tests.support.table_reading import read_parts

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
    data = damaged_lines(lines, random, ends=["\n", "\r\n"], strange=_BYTES, share=0.3)

    uri = "folder/file.csv"
    source = (
        OpenImagesFormat(images="i", boxes=[uri])
        if is_boxes
        else OpenImagesFormat(images="i", image_labels=[uri])
    )
    storage = StoredFiles({uri: data})
    chunk_bytes = random.randrange(1, 400)
    items = read_or_refuse(
        lambda: read_parts(source, storage=storage, chunk_bytes=chunk_bytes), uri=uri
    )
    begins = {0, *(match.end() for match in re.finditer(b"\n", data))}
    positions: dict[bool, set[int]] = {True: set(), False: set()}
    for item in items or []:
        if not isinstance(item, AnnotationEntry):
            item.name.encode()
            continue
        item.key.encode()
        assert item.position in begins
        # A row may begin an image's good rows and be a bad one's place, but neither twice.
        is_good = item.defect is None
        assert item.position not in positions[is_good]
        positions[is_good].add(item.position)
        if is_good:
            decode_annotations(item.annotations)
        else:
            assert item.detail.startswith(f"file.csv: byte {item.position}: "), item


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
