"""Masks of real files, against what pycocotools itself makes of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from shardbeam.transforms.examples.segmentation import draw_segmentation, has_segmentation


def expected_mask(segmentation: Any, *, width: int, height: int) -> Any:  # noqa: ANN401  # JSON.
    if isinstance(segmentation, list):
        runs = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        runs = coco_mask.frPyObjects(segmentation, height, width)
    else:
        runs = segmentation
    return coco_mask.decode(runs)


@pytest.mark.parametrize(
    ("path", "objects"),
    [("dali/coco_pixelwise/instances.json", 12), ("lvis/lvis_val_100.json", 977), (None, 119)],
)
def test_masks_are_pycocotools_own(
    path: str | None, objects: int, request: pytest.FixtureRequest
) -> None:
    if path is None:
        file = request.getfixturevalue("shapes") / "annotations" / "instances.json"
    else:
        file = request.getfixturevalue("shared_data") / path
    document = json.loads(Path(file).read_bytes())
    images = {image["id"]: image for image in document["images"]}
    found = Counter[str]()
    drawn = 0
    for annotation in document["annotations"]:
        text = json.dumps(annotation.get("segmentation")).encode()
        if not has_segmentation(text):
            continue
        image = images[annotation["image_id"]]
        width, height = image["width"], image["height"]
        x, y, w, h = annotation["bbox"]
        patch = draw_segmentation(
            text,
            frame=(width, height),
            box=(x, y, x + w, y + h),
            normalized=False,
            corrections=found,
        )
        expected = expected_mask(annotation["segmentation"], width=width, height=height)
        mask = np.zeros_like(expected) if patch is None else patch.whole(width=width, height=height)
        np.testing.assert_array_equal(mask, expected)
        drawn += 1
    assert drawn == objects
    assert found == Counter()
