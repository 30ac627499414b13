"""Real COCO files, read in place, with counts taken by hand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    MaskRole,
    decode_annotations,
)
from shardbeam.transforms.formats.coco import CocoFormat
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


_TOYS = "datumaro/coco_dataset"
# {file: (tasks, counts)}
_SAMPLES = {
    "dali/coco_dummy/instances.json": ("detection", _Counts(80, 64, 194, segmentations=7)),
    "dali/coco_pixelwise/instances.json": ("detection", _Counts(3, 6, 12, segmentations=12)),
    "lvis/lvis_val_100.json": ("detection", _Counts(1230, 100, 977, segmentations=977)),
    "datumaro/kaggle_dataset/relaxed_coco/annotations.json": ("detection", _Counts(2, 2, 2)),
    "datumaro/roboflow_dataset/coco/train/_annotations.coco.json": (
        "detection",
        _Counts(2, 2, 2),
    ),
    "datumaro/roboflow_dataset/coco/val/_annotations.coco.json": (
        "detection",
        _Counts(2, 1, 2, crowds=1),
    ),
    **{
        f"{_TOYS}/{folder}/{file}": ("detection", counts)
        for folder, train, val in (
            ("coco", "annotations/instances_train.json", "annotations/instances_val.json"),
            (
                "coco_instances",
                "annotations/instances_train.json",
                "annotations/instances_val.json",
            ),
            ("mmdet_coco", "annotations/instances_train.json", "annotations/instances_val.json"),
            ("coco_roboflow", "train/_annotations.coco.json", "val/_annotations.coco.json"),
        )
        for file, counts in (
            (train, _Counts(3, 1, 1)),
            (val, _Counts(3, 1, 2, crowds=1, segmentations=2)),
        )
    },
    **{
        f"{_TOYS}/{folder}/annotations/{file}.json": (tasks, counts)
        for kind, tasks, train, val in (
            (
                "person_keypoints",
                "detection keypoints",
                _Counts(2, 1, 1, keypoints=3),
                _Counts(2, 1, 2, crowds=1, segmentations=2, keypoints=6),
            ),
            ("captions", "captions", _Counts(0, 1, captions=1), _Counts(0, 1, captions=2)),
            ("labels", "classification", _Counts(2, 1, labels=1), _Counts(2, 1, labels=2)),
            ("stuff", "semantic", _Counts(2, 1, stuff=1), _Counts(2, 1, stuff=1)),
            ("image_info", "detection", _Counts(0, 1), _Counts(0, 1)),
        )
        for folder in ("coco", f"coco_{kind}")
        for file, counts in ((f"{kind}_train", train), (f"{kind}_val", val))
    },
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


def test_every_coco_file_of_the_samples_is_among_them(shared_data: Path) -> None:
    toys = {
        path.relative_to(shared_data).as_posix() for path in (shared_data / _TOYS).rglob("*.json")
    }

    assert {path for path in toys if "/panoptic_" not in path} <= set(_SAMPLES)


@pytest.mark.parametrize(
    ("folder", "split", "segments"),
    [
        ("coco", "train", [(7, "a", False)]),
        ("coco", "val", [(7, "a", False), (20, "b", True)]),
        ("coco_panoptic", "train", [(460551, "a", False)]),
        ("coco_panoptic", "val", [(7, "a", False), (20, "b", True)]),
    ],
)
def test_panoptic_segments(
    shared_data: Path, folder: str, split: str, segments: list[tuple[int, str, bool]]
) -> None:
    root = shared_data / _TOYS / folder / "annotations"
    masks = root / f"panoptic_{split}"
    source = CocoFormat(images="i", panoptic=f"{masks}.json", panoptic_masks=str(masks))

    entry, *categories = source.read_annotations(storage=LocalStorage(), file_index=0)

    assert isinstance(entry, AnnotationEntry)
    found = decode_annotations(entry.annotations)
    assert [(item.segment_id, item.label, item.is_crowd) for item in found.segments] == segments
    (png,) = masks.iterdir()
    assert found.masks[MaskRole.PANOPTIC].uri == str(png)
    assert [(item.name, item.is_thing) for item in categories if isinstance(item, Category)] == [
        ("a", False),
        ("b", False),
    ]


def test_a_panoptic_file_among_annotations_is_refused(shared_data: Path) -> None:
    file = shared_data / _TOYS / "coco/annotations/panoptic_val.json"

    with pytest.raises(InputError, match="--panoptic FILE"):
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
