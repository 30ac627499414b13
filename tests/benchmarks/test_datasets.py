"""The data of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.coco_like import HEIGHT, WIDTH, write_coco_like
from benchmarks.datasets import make_coco_like, take_first

_IMAGES = 1_500


@pytest.fixture(scope="module")
def coco_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "coco"
    write_coco_like(folder, images=_IMAGES)
    return folder


@pytest.fixture(scope="module")
def document(coco_like: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((coco_like / "annotations/instances.json").read_bytes())
    return parsed


def test_counts_and_length_are_like_cocos(coco_like: Path, document: dict[str, Any]) -> None:
    annotations = document["annotations"]
    assert len(document["images"]) == _IMAGES
    assert len(annotations) / _IMAGES == pytest.approx(860_001 / 118_287, rel=0.001)
    annotated = {annotation["image_id"] for annotation in annotations}
    assert _IMAGES - len(annotated) == round(_IMAGES * 1_021 / 118_287)
    crowds = sum(annotation["iscrowd"] for annotation in annotations)
    assert 0.005 < crowds / len(annotations) < 0.015
    assert [category["id"] for category in document["categories"]][-1] == 90
    assert len(document["categories"]) == 80
    length = (coco_like / "annotations/instances.json").stat().st_size
    assert length / _IMAGES == pytest.approx(469_785_474 / 118_287, rel=0.05)


def test_annotations_agree_with_themselves(document: dict[str, Any]) -> None:
    image_ids = {image["id"] for image in document["images"]}
    category_ids = {category["id"] for category in document["categories"]}
    annotations = document["annotations"]
    assert len({annotation["id"] for annotation in annotations}) == len(annotations)
    for annotation in annotations:
        assert annotation["image_id"] in image_ids
        assert annotation["category_id"] in category_ids
        x, y, width, height = annotation["bbox"]
        assert x >= 0
        assert y >= 0
        assert x + width <= WIDTH + 1e-6
        assert y + height <= HEIGHT + 1e-6
        if annotation["iscrowd"]:
            assert sum(annotation["segmentation"]["counts"]) == WIDTH * HEIGHT
            assert annotation["segmentation"]["size"] == [HEIGHT, WIDTH]
            continue
        polygons = [np.reshape(polygon, (-1, 2)) for polygon in annotation["segmentation"]]
        points = np.concatenate(polygons)
        assert points.min(axis=0) == pytest.approx([x, y])
        assert points.max(axis=0) == pytest.approx([x + width, y + height])
        area = 0.0
        for xs, ys in (polygon.T for polygon in polygons):
            area += abs(np.dot(xs, np.roll(ys, 1)) - np.dot(ys, np.roll(xs, 1))) / 2
        assert annotation["area"] == pytest.approx(area, abs=1e-3)


def test_smaller_dataset_holds_the_first_images_and_their_annotations_only(tmp_path: Path) -> None:
    large = make_coco_like(tmp_path, images=40)
    small = take_first(large, images=10)
    whole = json.loads(large.annotations.read_bytes())
    part = json.loads(small.annotations.read_bytes())
    ids = {image["id"] for image in part["images"]}
    assert part["images"] == whole["images"][:10]
    assert sorted(path.name for path in small.images.iterdir()) == sorted(
        image["file_name"] for image in part["images"]
    )
    assert part["annotations"] == [
        annotation for annotation in whole["annotations"] if annotation["image_id"] in ids
    ]
