"""Broken CSV tables: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import random

from shardbeam.transforms.formats.csv_table import CsvFormat
from tests.fuzz.tables import check_table, damaged_lines, good_cell, random_columns, random_settings

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
    data = damaged_lines(lines, random, ends=["\n", "\r\n"], strange=_BYTES, share=0.2)
    settings = random_settings([name.strip() for name in columns], random)
    settings["multiline"] = random.random() < 0.3
    found = check_table(CsvFormat, data, settings=settings, chunk_bytes=1)
    if found is not None and not settings["multiline"]:
        rows = enumerate(data.split(b"\n")[1:], 2)
        assert found == {number for number, row in rows if row.removesuffix(b"\r")}
