"""Writes images with objects and maps of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.archive_files import write_files
from tests.support.builds import write_coco
from tests.support.image_makers import photograph
from tests.support.voc_files import small_voc

# {image: the classes of its objects, and those that its map shows}
MAPPED = {
    "a.jpg": (["cat"], ["sky"]),
    "b.jpg": ([], ["cat"]),
    "c.jpg": (["dog"], []),
    "d.jpg": (["dog"], ["dog", "sky"]),
}
CLASSES = {"cat": 1, "dog": 2, "sky": 92}
_SIZE = 64, 48


def write_maps(folder: Path) -> tuple[str, ...]:
    """Writes the images of `MAPPED`; returns the words after `shardbeam build` for them.

    Besides its classes, a map shows pixels of the background (0) and pixels to be ignored (255).
    """
    width, height = _SIZE
    annotations = []
    for name in ("images", "maps"):
        (folder / name).mkdir(parents=True)
    for number, (name, (objects, mapped)) in enumerate(MAPPED.items()):
        photograph(width=width, height=height, seed=number).save(folder / "images" / name)
        values = np.zeros((height, width), np.uint8)
        values[0] = 255
        for row, each in enumerate(mapped, 1):
            values[10 * row : 10 * row + 5] = CLASSES[each]
        Image.fromarray(values).save((folder / "maps" / name).with_suffix(".png"))
        annotations += [
            {"image_id": number, "category_id": CLASSES[each], "bbox": [1, 2, 30, 20]}
            for each in objects
        ]
    document = {
        "images": [
            {"id": number, "file_name": name, "width": width, "height": height}
            for number, name in enumerate(MAPPED)
        ],
        "annotations": [{"id": number, **each} for number, each in enumerate(annotations)],
        "categories": [{"id": number, "name": name} for name, number in CLASSES.items()],
    }
    file = write_coco(folder / "instances.json", document)
    return (
        *("coco", "--images", str(folder / "images"), "--annotations", str(file)),
        *("--semantic-masks", str(folder / "maps"), "--name", "maps"),
    )


def panoptic_words(shapes: Path) -> tuple[str, ...]:
    """Returns the words after `shardbeam build` for the segments of `shardbeam sample shapes`."""
    return (
        *("coco", "--images", str(shapes / "images"), "--name", "segments"),
        *("--panoptic", str(shapes / "annotations" / "panoptic.json")),
        *("--panoptic-masks", str(shapes / "panoptic")),
    )


def write_numbered_maps(folder: Path) -> tuple[str, ...]:
    """Writes a VOC dataset whose maps hold numbers, among them the id of the class `dog`.

    Returns the words after `shardbeam build` for it.
    """
    write_files(folder, small_voc())
    (folder / "SegmentationClass").mkdir()
    for name, number in (("a", 2), ("b", 1)):
        values = np.full((24, 32), number, np.uint8)
        Image.fromarray(values).save(folder / "SegmentationClass" / f"{name}.png")
    return "voc", "--root", str(folder), "--semantic", "--name", "numbered"
