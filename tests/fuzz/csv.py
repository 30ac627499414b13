"""Broken CSV tables: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import random

from shardbeam.transforms.formats.csv_table import CsvFormat
from tests.fuzz.tables import check_table, good_cell, random_columns, random_settings

_CELLS = (
    *("", "1", "-5", "0.5", "1e999", "nan", "true", "cat", "a|b", "[1, 2]", '"[""a"", 1]"', "[1"),
    *("TRAIN", "DISCARD", "all", "1st", "/data/a.jpg", "../x.jpg", "gs://b/x.png", "a/b.jpg", "/"),
    *('"', '"x', 'x"y', '"a\nb"', "\0", "\u2028", "e\u0301", "9" * 30, "9" * 5000, " 7 ", "007"),
)
_BYTES = b'\xff\xfe\0"\n\r,;\xef\xbb\xbf['


def fuzz_csv(random: random.Random) -> None:
    """Reads one random, partly broken table with random settings."""
    columns = random_columns(random)
    lines = [",".join(columns)]
    for _ in range(random.randrange(6)):
        cells = [str(good_cell(name, random)) for name in columns]
        while random.random() < 0.3:
            cells[random.randrange(len(cells))] = random.choice(_CELLS)
        if random.random() < 0.05:
            cells.append("x")
        lines.append(",".join(cells))
    data = bytearray(random.choice(["\n", "\r\n"]).join(lines).encode())
    while random.random() < 0.2:
        position = random.randrange(len(data) + 1)
        data[position : position + random.randrange(2)] = bytes([random.choice(_BYTES)])
    settings = random_settings([name.strip() for name in columns], random)
    check_table(CsvFormat, bytes(data), settings=settings, chunk_bytes=1)
