"""Random YOLO files, most of them broken in some way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random

from shardbeam.transforms.formats.root_files import relative_path, resolve_path
from shardbeam.transforms.formats.yolo import parse_yolo_labels
from shardbeam.transforms.formats.yolo_layout import parse_data_yaml, parse_names, parse_obj_data
from tests.fuzz.outcome import read_or_refuse

_NAMES = {0: "dog", 1: "cat", 7: "cow"}
_VALUES = (
    *("0", "1", "7", "2", "0.5", "0.25", "1.0", "1e-3", ".5", "1.005", "-0.001", "1.5", "-2"),
    *("nan", "inf", "1_0", "x", "٣", "1e999", "9" * 400, "0,5", "+1", "0x1"),
)
_YAML_PIECES = (
    *("names:", "names: [dog, cat]\n", "names: {0: dog, 1: cat}\n", "nc: 2\n", "nc: 1e9\n"),
    *("train: ../train/images\n", "val: [a, b]\n", "test:\n", "path: ./\n", "- x\n", "  1: no\n"),
    *("names: &a [*a]\n", "<<: *b\n", "!!python/object:os.system x\n", "{", "}", "[", "]", ":"),
    *("\t", '"', "'", "#", "|\n", "---\n", "...\n", "%YAML 3.0\n", "\0", "\x85", "é", "? ", "*a"),
)
_PATH_PARTS = ("..", ".", "", "images", "train", "a.txt", "C:", "gs://b", "~", "\\", "/")


def fuzz_yolo(random: Random) -> None:
    """Reads one random file of each kind, and checks that it gives a value or a typed error."""
    _fuzz_labels(random)
    parsers: tuple[Callable[..., object], ...] = (parse_data_yaml, parse_obj_data, parse_names)
    parser = random.choice(parsers)
    data = _damaged("".join(random.choices(_YAML_PIECES, k=random.randrange(8))), random=random)
    read_or_refuse(lambda: parser(data, uri="data.yaml"), uri="data.yaml")
    path = "/".join(random.choices(_PATH_PARTS, k=random.randrange(6)))
    resolved = resolve_path("/data/set", path)
    assert "/../" not in f"{resolved}/"
    below = relative_path(resolved, root="/data/set")
    assert below is None or ".." not in below.split("/")


def _fuzz_labels(random: Random) -> None:
    lines = []
    for _ in range(random.randrange(4)):
        values = _VALUES[:9] if random.random() < 0.7 else _VALUES
        count = random.choice((0, 1, 4, 5, 5, 5, 6, 7, 8, 9, 9, 11))
        label = random.choice(("0", "1", "7")) if random.random() < 0.8 else random.choice(values)
        lines.append(" ".join([label, *random.choices(values[4:], k=max(0, count - 1))]))
    data = _damaged(random.choice(("\n", "\r\n")).join(lines), random=random)
    parsed = read_or_refuse(lambda: parse_yolo_labels(data, names=_NAMES, uri="a.txt"), uri="a.txt")
    if parsed is None:
        return
    objects, _ = parsed
    for item in objects:
        assert item.label in _NAMES.values()
        assert all(map(math.isfinite, item.bbox))
        if item.segmentation:
            ((*points,),) = json.loads(item.segmentation)
            assert len(points) >= 6
            assert len(points) % 2 == 0
            assert item.area >= 0


def _damaged(text: str, *, random: Random) -> bytes:
    data = text.encode()
    while data and random.random() < 0.3:
        at = random.randrange(len(data))
        data = data[:at] + random.randbytes(random.randrange(3)) + data[at + random.randrange(3) :]
    return data
