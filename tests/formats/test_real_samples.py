"""Every format keeps to the contract on its real samples, damaged copies included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.coco import CocoFormat
from shardbeam.transforms.formats.filename_label import FilenameLabelFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.lvis import LvisFormat
from shardbeam.transforms.formats.open_images import OpenImagesFormat
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.formats.voc import VocFormat
from shardbeam.transforms.formats.yolo import YoloFormat


def _coco(root: Path) -> Format:
    return CocoFormat(
        images=str(root / "images"), annotations=[str(root / "instances.json")], _masks=True
    )


def _lvis(root: Path) -> Format:
    # The sample's own images are not part of it.
    return LvisFormat(images=str(root), annotations=[str(root / "lvis_val_100.json")], _masks=True)


def _open_images(root: Path) -> Format:
    files = root / "annotations"
    return OpenImagesFormat(
        images=str(root / "images"),
        boxes=[str(files / "oidv6-train-annotations-bbox.csv")],
        classes=str(files / "oidv6-class-descriptions.csv"),
        image_labels=[str(files / "oidv6-train-annotations-human-imagelabels.csv")],
    )


def _voc(root: Path) -> Format:
    return VocFormat(root=str(root))


def _voc_maps(root: Path) -> Format:
    return VocFormat(root=str(root), semantic=True, _masks=True)


def _yolo(root: Path) -> Format:
    return YoloFormat(root=str(root), _masks=True)


@pytest.mark.parametrize(
    ("make", "sample", "images", "objects"),
    [
        (_coco, "dali/coco_pixelwise", 6, 12),
        (_coco, "dali/coco_dummy", 64, 194),
        (_lvis, "lvis", 0, 0),
        (_open_images, "datumaro/open_images_dataset/v6", 4, 1),
        (_voc, "bccd-voc/BCCD", 24, 425),
        (_voc_maps, "datumaro/voc_dataset/voc_dataset1", 2, 2),
        (_voc, "datumaro/kaggle_dataset/relaxed_voc2", 2, 2),
        (_yolo, "labelstudio-yolo/test_import_yolo_data_unif_dims", 5, 19),
        (_yolo, "datumaro/roboflow_dataset/yolo", 3, 4),
        (_yolo, "datumaro/yolo_dataset/strict", 1, 2),
        (lambda root: ImageFolderFormat(images=str(root)), "bigdl-cifar/cifar", 7, 0),
        (lambda root: FilenameLabelFormat(images=str(root)), "bigdl-cifar/cifar", 7, 0),
    ],
)
def test_the_contract_is_kept(
    shared_data: Path, make: Callable[[Path], Format], sample: str, images: int, objects: int
) -> None:
    report = check_format(make(shared_data / sample), damages=20)

    assert len(report.annotations) == images
    assert sum(len(found.objects) for found in report.annotations.values()) == objects
