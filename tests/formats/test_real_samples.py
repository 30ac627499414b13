"""Every format keeps to the contract on its real samples, damaged copies included.

What COCO's files hold was counted by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.testing import check_format
from tests.support.coco_reading import read_content
from tests.support.making import make_format

COCO = {"images": "@/images", "annotations": ["@/instances.json"], "_masks": True}
OPEN_IMAGES = {
    "images": "@/images",
    "boxes": ["@/annotations/oidv6-train-annotations-bbox.csv"],
    "classes": "@/annotations/oidv6-class-descriptions.csv",
    "image_labels": ["@/annotations/oidv6-train-annotations-human-imagelabels.csv"],
}
YOLO = {"root": "@", "_masks": True}


@pytest.mark.parametrize(
    ("name", "keys", "sample", "images", "objects"),
    [
        ("coco", COCO, "dali/coco_pixelwise", 6, 12),
        ("coco", COCO, "dali/coco_dummy", 64, 194),
        # The sample's own images are not part of it.
        (
            "lvis",
            {"images": "@", "annotations": ["@/lvis_val_100.json"], "_masks": True},
            "lvis",
            0,
            0,
        ),
        # The images of the other splits, which these files do not name, are left out.
        ("open-images", OPEN_IMAGES, "datumaro/open_images_dataset/v6", 2, 1),
        ("voc", {"root": "@"}, "bccd-voc/BCCD", 24, 425),
        (
            "voc",
            {"root": "@", "semantic": True, "_masks": True},
            "datumaro/voc_dataset/voc_dataset1",
            2,
            2,
        ),
        # A picture has no XML file.
        ("voc", {"root": "@"}, "datumaro/kaggle_dataset/relaxed_voc2", 1, 2),
        ("yolo", YOLO, "labelstudio-yolo/test_import_yolo_data_unif_dims", 5, 19),
        ("yolo", YOLO, "datumaro/roboflow_dataset/yolo", 3, 4),
        ("yolo", YOLO, "datumaro/yolo_dataset/strict", 1, 2),
        (
            "yolo",
            {**YOLO, "data": "@/coco8-pose.yaml"},
            "ultralytics-hub/coco8-pose",
            8,
            21,
        ),
        (
            "cvat",
            {"images": "@/images", "annotations": ["@/annotations.xml"], "_masks": True},
            "datumaro/cvat_dataset/for_images/export_project",
            6,
            6,
        ),
        (
            "cvat",
            {"images": "@/images", "annotations": ["@/train.xml"]},
            "datumaro/cvat_dataset/for_images/export_task",
            2,
            1,
        ),
        (
            "labelme",
            {"root": "@", "_masks": True},
            "labelme/instance_segmentation/data_annotated",
            3,
            12,
        ),
        ("labelme", {"root": "@"}, "labelme/bbox_detection/data_annotated", 3, 9),
        ("image-folder", {"images": "@"}, "bigdl-cifar/cifar", 7, 0),
        ("filename-label", {"images": "@"}, "bigdl-cifar/cifar", 7, 0),
    ],
)
def test_the_contract_is_kept(
    shared_data: Path, name: str, keys: dict[str, Any], sample: str, images: int, objects: int
) -> None:
    """The keys' `@` is the sample's folder."""
    keys = json.loads(json.dumps(keys).replace("@", str(shared_data / sample)))

    report = check_format(make_format(name, **keys), damages=20)

    assert len(report.annotations) == images
    assert sum(len(found.objects) for found in report.annotations.values()) == objects


_TOYS = "datumaro/coco_dataset/coco/annotations"
_POSES = {"objects": 2, "crowds": 1, "segmentations": 2, "keypoints": 6}
_DUMMY = "dali/coco_dummy/instances.json"
_RELAXED = "datumaro/kaggle_dataset/relaxed_coco/annotations.json"
_ROBOFLOW = "datumaro/roboflow_dataset/coco/val/_annotations.coco.json"


def outlined(number: int) -> dict[str, int]:
    return {"objects": number, "segmentations": number}


@pytest.mark.parametrize(
    ("file", "tasks", "categories", "images", "expected"),
    [
        (_DUMMY, "detection", 80, 64, {"objects": 194, "segmentations": 7}),
        ("dali/coco_pixelwise/instances.json", "detection", 3, 6, outlined(12)),
        ("lvis/lvis_val_100.json", "detection", 1230, 100, outlined(977)),
        (_RELAXED, "detection", 2, 2, {"objects": 2}),
        (_ROBOFLOW, "detection", 2, 1, {"objects": 2, "crowds": 1}),
        (f"{_TOYS}/person_keypoints_val.json", "detection keypoints", 2, 1, _POSES),
        (f"{_TOYS}/captions_val.json", "captions", 0, 1, {"captions": 2}),
        (f"{_TOYS}/labels_val.json", "classification", 2, 1, {"labels": 2}),
        (f"{_TOYS}/stuff_val.json", "semantic", 2, 1, {"stuff": 1}),
        (f"{_TOYS}/image_info_val.json", "detection", 0, 1, {}),
    ],
)
def test_what_files_of_coco_hold(
    shared_data: Path, file: str, tasks: str, categories: int, images: int, expected: dict[str, int]
) -> None:
    path = shared_data / file
    source = CocoFormat(images="i", annotations=[str(path)], _masks=True).resolve()
    parsed = read_content(source, path.read_bytes())
    found = list(parsed.images().values())
    objects = [item for each in found for item in each.objects]
    counts = {
        "objects": len(objects),
        "crowds": sum(item.is_crowd for item in objects),
        "segmentations": sum(bool(item.segmentation) for item in objects),
        "keypoints": sum(len(item.keypoints) for item in objects) // 3,
        "captions": sum(len(each.captions) for each in found),
        "labels": sum(len(each.labels) for each in found),
        "stuff": sum(len(each.stuff) for each in found),
    }
    assert (" ".join(source.tasks or []), len(parsed.categories)) == (tasks, categories)
    assert (len(found), parsed.defects()) == (images, [])
    assert {name: number for name, number in counts.items() if number} == expected
    assert not any(each.corrections for each in found)
