"""Panoptic PNGs are inputs like images: changes of them count, and archives may hold them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.archive_files import write_zip
from tests.support.builds import build, write_coco
from tests.support.dataset import read_dataset, read_tree
from tests.support.image_makers import plain_jpeg


def write_mask(path: Path, *, segment: int) -> None:
    pixels = np.zeros((24, 32, 3), np.uint8)
    pixels[:, :16] = [segment % 256, segment // 256, 0]
    Image.fromarray(pixels).save(path)


@pytest.fixture
def words(tmp_path: Path) -> tuple[str | Path, ...]:
    """A source of an image whose left half is segment 300, class 18."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(plain_jpeg())
    write_mask(tmp_path / "masks" / "a.png", segment=300)
    segment = {"id": 300, "category_id": 18, "iscrowd": 0, "area": 384, "bbox": [0, 0, 16, 24]}
    document = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 32, "height": 24}],
        "annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": [segment]}],
        "categories": [{"id": 18, "name": "dog", "isthing": 1}],
    }
    file = write_coco(tmp_path / "panoptic.json", document)
    return "coco", "--images", tmp_path / "images", "--panoptic", file, "--panoptic-masks"


def test_a_changed_png_is_a_changed_input(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    again = (*words, tmp_path / "masks", "--if-changed", "--overwrite")
    output = tmp_path / "out"
    build(*again, output=output)
    before = read_dataset(output)

    assert "nothing to do" in json.dumps(build(*again, output=output).summary)
    write_mask(tmp_path / "masks" / "a.png", segment=44)
    build(*again, output=output)

    assert read_dataset(output) != before


def test_pngs_in_an_archive_and_pngs_that_no_annotation_names(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    expected = build(*words, tmp_path / "masks", output=tmp_path / "out")
    write_mask(tmp_path / "masks" / "b.png", segment=1)
    (tmp_path / "images" / "b.jpg").write_bytes(plain_jpeg())
    files = {f"panoptic_val/{name}": data for name, data in read_tree(tmp_path / "masks").items()}
    archive = write_zip(tmp_path / "masks.zip", files)

    built = build(*words, archive / "panoptic_val", output=tmp_path / "archived")

    assert built.rejects() == []
    assert built.counts()["excluded"] == {"unannotated": 1}
    assert [each.features for each in built.examples()] == [
        each.features for each in expected.examples()
    ]


def test_a_missing_png_rejects_its_image(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    document = json.loads((tmp_path / "panoptic.json").read_bytes())
    document["images"].append({"id": 2, "file_name": "b.jpg", "width": 32, "height": 24})
    document["annotations"].append(
        document["annotations"][0] | {"image_id": 2, "file_name": "b.png"}
    )
    write_coco(tmp_path / "panoptic.json", document)
    (tmp_path / "images" / "b.jpg").write_bytes(plain_jpeg())

    words = (*words, tmp_path / "masks", "--set", "rejects.max_ratio=1")
    built = build(*words, output=tmp_path / "out")

    assert dict(built.reasons()) == {("b.jpg", "mask_unreadable"): 1}
    assert [example.key for example in built.examples()] == ["a.jpg"]
