"""Broken JSON Lines: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import json
import random
from typing import Any

from shardbeam.transforms.formats.json_lines import JsonLinesFormat
from tests.fuzz.tables import check_table, damaged_lines, good_cell, random_columns, random_settings

_VERTEX = {
    "classificationAnnotation": {"displayName": "cat"},
    "classificationAnnotations": [{"displayName": "cat"}, {"displayName": "dog"}],
    "boundingBoxAnnotations": [
        {"displayName": "cat", "xMin": 0, "yMin": 0.25, "xMax": 1, "yMax": 0.5}
    ],
    "dataItemResourceLabels": {"aiplatform.googleapis.com/ml_use": "training"},
}
_BOX = {"displayName": "cat", "xMin": 0, "yMin": 0.25, "xMax": 1, "yMax": 0.5}
_VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -5, 0.5, 10**30, 1e300, True, "", "cat", "a|b", "x\ny", "\0", "e\u0301"),
    *("/data/a.jpg", "../x.jpg", "gs://b/x.png", "/", "TRAIN", "DISCARD", "all", "1st"),
    *([], [1, 2], ["a", None], [[1]], {}, {"x": 1}, {"displayName": "cat"}, {"displayName": " "}),
    *([{"displayName": "a"}, {"displayName": "b"}], [{"displayName": 3}], [_BOX], [_BOX, {}]),
    *([{**_BOX, "xMin": "0"}], [{**_BOX, "yMax": 320}], _BOX),
    *({"aiplatform.googleapis.com/ml_use": "training"}, {"aiplatform.googleapis.com/ml_use": 1}),
)
_BYTES = b'\xff\xfe\0"\n\r,{}[]\\\xef\xbb\xbf'


def fuzz_jsonl(random: random.Random) -> None:
    """Reads one random, partly broken table with random settings, in parts of random size."""
    columns = random_columns(random)
    if random.random() < 0.4:
        columns = ["imageGcsUri", *random.sample(list(_VERTEX), 2)]
    lines = []
    for _ in range(random.randrange(6)):
        row: Any = {
            name: _VERTEX.get(name, good_cell(name, random))
            for name in columns
            if random.random() < 0.95
        }
        while random.random() < 0.3:
            row[random.choice(columns)] = random.choice(_VALUES)
        if random.random() < 0.05:
            row = random.choice(_VALUES)
        lines.append(json.dumps(row, ensure_ascii=random.random() < 0.5))
    data = damaged_lines(lines, random, ends=["\n", "\r\n", "\n\n"], strange=_BYTES, share=0.2)
    settings = random_settings(columns, random)
    check_table(JsonLinesFormat, data, settings=settings, chunk_bytes=random.randrange(1, 400))
