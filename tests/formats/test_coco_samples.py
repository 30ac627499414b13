"""Real COCO files, read in place, with counts taken by hand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    decode_annotations,
)
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.storage.local import LocalStorage


class _Counts(NamedTuple):
    categories: int
    images: int
    objects: int = 0
    crowds: int = 0
    segmentations: int = 0
    keypoints: int = 0
    captions: int = 0
    labels: int = 0
    stuff: int = 0


_TOYS = "datumaro/coco_dataset/coco/annotations"
# {file: (tasks, counts)}
_SAMPLES = {
    "dali/coco_dummy/instances.json": ("detection", _Counts(80, 64, 194, segmentations=7)),
    "dali/coco_pixelwise/instances.json": ("detection", _Counts(3, 6, 12, segmentations=12)),
    "lvis/lvis_val_100.json": ("detection", _Counts(1230, 100, 977, segmentations=977)),
    "datumaro/kaggle_dataset/relaxed_coco/annotations.json": ("detection", _Counts(2, 2, 2)),
    "datumaro/roboflow_dataset/coco/val/_annotations.coco.json": (
        "detection",
        _Counts(2, 1, 2, crowds=1),
    ),
    f"{_TOYS}/instances_val.json": ("detection", _Counts(3, 1, 2, crowds=1, segmentations=2)),
    f"{_TOYS}/person_keypoints_val.json": (
        "detection keypoints",
        _Counts(2, 1, 2, crowds=1, segmentations=2, keypoints=6),
    ),
    f"{_TOYS}/captions_val.json": ("captions", _Counts(0, 1, captions=2)),
    f"{_TOYS}/labels_val.json": ("classification", _Counts(2, 1, labels=2)),
    f"{_TOYS}/stuff_val.json": ("semantic", _Counts(2, 1, stuff=1)),
    f"{_TOYS}/image_info_val.json": ("detection", _Counts(0, 1)),
}


class _Sample(NamedTuple):
    tasks: str
    categories: list[Category]
    images: dict[str, ImageAnnotations]


def _read(file: Path) -> _Sample:
    uri = str(file)
    source = CocoFormat(images="i", annotations=[uri], _masks=True).resolve()
    items = list(source.read_annotations(storage=LocalStorage(), file_index=0))
    entries = [item for item in items if isinstance(item, AnnotationEntry)]
    assert [entry.detail for entry in entries if entry.defect is not None] == []
    return _Sample(
        tasks=" ".join(source.tasks or []),
        categories=[item for item in items if isinstance(item, Category)],
        images={entry.key: decode_annotations(entry.annotations) for entry in entries},
    )


@pytest.mark.parametrize(("name", "expected"), _SAMPLES.items())
def test_counts(shared_data: Path, name: str, expected: tuple[str, _Counts]) -> None:
    tasks, categories, images = _read(shared_data / name)

    objects = [item for found in images.values() for item in found.objects]
    counts = _Counts(
        categories=len(categories),
        images=len(images),
        objects=len(objects),
        crowds=sum(item.is_crowd for item in objects),
        segmentations=sum(bool(item.segmentation) for item in objects),
        keypoints=sum(len(item.keypoints) for item in objects) // 3,
        captions=sum(len(found.captions) for found in images.values()),
        labels=sum(len(found.labels) for found in images.values()),
        stuff=sum(len(found.stuff) for found in images.values()),
    )
    assert (tasks, counts) == expected
    assert not any(found.corrections for found in images.values())
