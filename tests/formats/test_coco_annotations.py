"""The outcome of one COCO annotation, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coco_reading import annotation, document, read_image

_NO_BOX: dict[str, Any] = {"bbox": ..., "segmentation": ...}


@pytest.mark.parametrize(
    ("tasks", "changes", "parts", "correction"),
    [
        # Parts are: labels, objects, regions, captions.
        (["detection"], {}, (0, 1, 0, 0), ""),
        (["detection"], {"category_id": 99}, (0, 0, 0, 0), "object_of_unknown_category_dropped"),
        (["detection"], {"category_id": ...}, (0, 0, 0, 0), "object_of_unknown_category_dropped"),
        (["detection"], _NO_BOX, (0, 0, 0, 0), "object_without_box_dropped"),
        (["detection"], {"bbox": ...}, (0, 1, 0, 0), "box_from_polygons"),
        # The first object has the id 1, the same box and the same class.
        (["detection"], {"id": 1}, (0, 0, 0, 0), "duplicate_annotation_dropped"),
        (["detection"], {"id": 1, "bbox": [0, 0, 1, 1]}, (0, 1, 0, 0), ""),
        (["keypoints"], {"keypoints": [1, 2, 2]}, (0, 1, 0, 0), ""),
        (["keypoints"], {"keypoints": [1, 2]}, (0, 1, 0, 0), "keypoints_malformed_dropped"),
        (["classification"], _NO_BOX, (1, 0, 0, 0), ""),
        (
            ["classification"],
            {**_NO_BOX, "category_id": 99},
            (0, 0, 0, 0),
            "label_of_unknown_category_dropped",
        ),
        # A box makes it an object, which nobody has asked for.
        (["classification"], {}, (0, 0, 0, 0), ""),
        (["detection", "classification"], {}, (0, 1, 0, 0), ""),
        (["detection", "classification"], _NO_BOX, (1, 0, 0, 0), ""),
        (["semantic"], {}, (0, 0, 1, 0), ""),
        (["semantic"], {"bbox": ...}, (0, 0, 1, 0), ""),
        (["semantic"], {"segmentation": {}}, (0, 0, 0, 0), "region_unusable_dropped"),
        (["semantic"], {"category_id": 99}, (0, 0, 0, 0), "region_of_unknown_class_void"),
        (["captions"], {"caption": "A dog."}, (0, 0, 0, 1), ""),
        (["captions"], {}, (0, 0, 0, 0), ""),
        (["detection", "captions"], {"caption": "A dog."}, (0, 1, 0, 1), ""),
        (["detection", "captions"], {**_NO_BOX, "caption": "A dog."}, (0, 0, 0, 1), ""),
        (["detection"], {**_NO_BOX, "caption": "A dog."}, (0, 0, 0, 0), ""),
    ],
)
def test_what_becomes_of_an_annotation(
    tasks: list[str], changes: dict[str, Any], parts: tuple[int, ...], correction: str
) -> None:
    first = read_image(document(annotations=[annotation()]), tasks=tasks)
    rows = [annotation(), annotation(**{"id": 2, **changes})]

    found = read_image(document(annotations=rows), tasks=tasks)

    grown = [
        len(getattr(found, name)) - len(getattr(first, name))
        for name in ("labels", "objects", "stuff", "captions")
    ]
    assert tuple(grown) == parts
    assert found.corrections == ({correction: 1} if correction else {})
