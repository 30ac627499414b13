"""Open Images end to end: rows of every kind, read as a whole and in parts."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from shardbeam.transforms.formats.open_images import OpenImagesFormat
from tests.support.builds import build
from tests.support.dataset import read_dataset

BOX_COLUMNS = ["ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"]


def test_every_row_is_written_or_rejected_whatever_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(6):
        Image.new("RGB", (40, 20), (40 * number, 0, 0)).save(images / f"{number:02x}.jpg")
    (images / "00.txt").write_text("beside the image")
    rows = [
        # Rows of two images that alternate, so that they are merged by the join.
        *(
            [f"{number % 2:02x}", "s", f"/m/{number % 3}", "1", "0", "0.5", "0", "1"]
            for number in range(300)
        ),
        ["02", "s", "/m/0", "1", "0", "0.5", "0", "x"],
        ["03", "s", "/m/0", "1", "0", "0.5", "0", "y"],
        ["03", "s", "/m/0", "1", "0", "0.5", "0", "1"],
        ["04", "s", "/m/9", "1", "0.9", "1.2", "0", "1"],
        ["05", "s", "/m/0", "1", "0.5", "0.5", "0", "1"],
        ["ff", "s", "/m/0", "1", "0", "0.5", "0", "1"],
    ]
    boxes = tmp_path / "boxes.csv"
    with boxes.open("w", newline="") as file:
        csv.writer(file).writerows([BOX_COLUMNS, *rows])
    outputs = []
    for name, chunk_bytes in (("whole", 32 << 20), ("parts", 1000)):
        monkeypatch.setattr(OpenImagesFormat, "chunk_bytes", chunk_bytes)
        built = build(
            "open-images",
            *("--images", images, "--boxes", boxes),
            *("--set", "rejects.max_ratio=0.6"),
            output=tmp_path / name,
        )
        outputs.append(built)
    whole = outputs[0]
    assert read_dataset(tmp_path / "whole") == read_dataset(tmp_path / "parts")

    counts = whole.counts()
    assert (counts["listed"], counts["examples"]) == (7, 3)
    assert counts["excluded"] == {"not_an_image_name": 1}
    assert whole.reasons() == {
        ("02.jpg", "annotation_malformed"): 1,
        # The other of its rows is good; it alone would not be all that is there.
        ("03.jpg", "annotation_malformed"): 1,
        ("05.jpg", "objects_lost"): 1,
        ("ff", "missing_image"): 1,
    }
    places = [row for row in whole.rejects() if row["reason"] == "annotation_malformed"]
    assert all(row["detail"].startswith("boxes.csv: byte ") for row in places)
    found = whole.by_key()
    assert {key: len(example.boxes) for key, example in found.items()} == {
        "00.jpg": 150,
        "01.jpg": 150,
        "04.jpg": 1,
    }
    assert found["01.jpg"].labels[:3] == [("/m/1", 2), ("/m/0", 1), ("/m/2", 3)]
    assert counts["corrections"] == {"box_clipped": 1}
