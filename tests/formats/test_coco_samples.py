"""Real COCO files, read in place, with counts taken by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from transforms.errors import InputError
from transforms.formats.coco import CocoFormat
from transforms.local_storage import LocalStorage
from transforms.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    decode_annotations,
)


class _Counts(NamedTuple):
    categories: int
    images: int
    objects: int
    empty_images: int = 0
    crowds: int = 0
    segmentations: int = 0


_SAMPLES = {
    "dali/coco_dummy/instances.json": _Counts(80, 64, 194, empty_images=2, segmentations=7),
    "dali/coco_pixelwise/instances.json": _Counts(3, 6, 12, segmentations=12),
    "lvis/lvis_val_100.json": _Counts(1230, 100, 977, empty_images=7, segmentations=977),
    "datumaro/coco_dataset/coco/annotations/instances_train.json": _Counts(3, 1, 1),
    "datumaro/coco_dataset/coco/annotations/instances_val.json": _Counts(
        3, 1, 2, crowds=1, segmentations=2
    ),
    "datumaro/coco_dataset/coco/annotations/person_keypoints_val.json": _Counts(
        2, 1, 2, crowds=1, segmentations=2
    ),
    "datumaro/coco_dataset/coco/annotations/stuff_train.json": _Counts(
        2, 1, 1, crowds=1, segmentations=1
    ),
    "datumaro/coco_dataset/coco/annotations/image_info_train.json": _Counts(0, 1, 0, 1),
    "datumaro/kaggle_dataset/relaxed_coco/annotations.json": _Counts(2, 2, 2),
    "datumaro/roboflow_dataset/coco/train/_annotations.coco.json": _Counts(2, 2, 2),
    "datumaro/roboflow_dataset/coco/val/_annotations.coco.json": _Counts(2, 1, 2, crowds=1),
}


def _read(file: Path) -> tuple[list[Category], dict[str, ImageAnnotations]]:
    source = CocoFormat(annotations=[str(file)], keep_segmentation=True)
    items = list(source.read_annotations(storage=LocalStorage(), file_index=0))
    entries = [item for item in items if isinstance(item, AnnotationEntry)]
    assert [entry.detail for entry in entries if entry.defect is not None] == []
    return (
        [item for item in items if isinstance(item, Category)],
        {entry.key: decode_annotations(entry.annotations) for entry in entries},
    )


@pytest.mark.parametrize(("name", "expected"), _SAMPLES.items())
def test_counts(shared_data: Path, name: str, expected: _Counts) -> None:
    categories, images = _read(shared_data / name)

    objects = [item for found in images.values() for item in found.objects]
    assert expected == _Counts(
        categories=len(categories),
        images=len(images),
        objects=len(objects),
        empty_images=sum(not found.objects for found in images.values()),
        crowds=sum(item.is_crowd for item in objects),
        segmentations=sum(bool(item.segmentation) for item in objects),
    )
    assert not any(found.corrections for found in images.values())


def test_dali_dummy_values(shared_data: Path) -> None:
    categories, images = _read(shared_data / "dali/coco_dummy/instances.json")

    assert categories[0].name == "person"
    assert categories[0].source_id == 1
    first = images["0.jpeg"]
    assert (first.image_id, first.width, first.height) == ("0", 619, 324)
    assert first.objects[0].bbox == (313, 168, 313 + 162, 168 + 120)
    assert first.objects[0].area == 19440
    assert first.objects[0].segmentation.startswith(b"[[363.51, 278.77, ")
    # Every image of the file is there, under the very name that it gives.
    files = {path.name for path in (shared_data / "dali/coco_dummy/images").iterdir()}
    assert images.keys() <= files


def test_dali_pixelwise_segmentations_are_polygons_and_both_kinds_of_rle(
    shared_data: Path,
) -> None:
    _, images = _read(shared_data / "dali/coco_pixelwise/instances.json")

    def kind(item: ObjectAnnotation) -> str:
        decoded = msgspec.json.decode(item.segmentation)
        if isinstance(decoded, list):
            return "polygons"
        return "compressed" if isinstance(decoded["counts"], str) else "uncompressed"

    kinds = Counter(kind(item) for found in images.values() for item in found.objects)
    assert kinds["polygons"] == 3
    assert kinds["compressed"] + kinds["uncompressed"] == 9


@pytest.mark.parametrize("kind", ["captions", "labels", "panoptic"])
def test_other_kinds_of_coco_file_are_refused(shared_data: Path, kind: str) -> None:
    file = shared_data / f"datumaro/coco_dataset/coco/annotations/{kind}_val.json"

    with pytest.raises(InputError, match=r"none of the \d annotations has a bbox or polygons"):
        _read(file)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mmcv/for_scan/1.json", "the file is empty"),
        ("labelstudio-yolo/test_export_yolo/data.json", "expected 'object', got 'array'"),
        ("datumaro/segment_anything_dataset/a.json", "missing: images, categories"),
        ("dali/coco_dummy/images/0.jpeg", "JSON is malformed"),
    ],
)
def test_files_of_other_formats_are_refused(shared_data: Path, name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        _read(shared_data / name)
