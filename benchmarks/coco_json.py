"""How anyone would read a COCO file, for contenders that share no code with Shardbeam."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import NamedTuple


class LabelledBox(NamedTuple):
    """An annotated object: its category's id, and its box in 0 to 1."""

    category_id: int
    xmin: float
    ymin: float
    xmax: float
    ymax: float


class AnnotatedImage(NamedTuple):
    """An image and its objects."""

    path: str
    width: int
    height: int
    boxes: list[LabelledBox]


def read_coco(*, images: Path, annotations: Path) -> tuple[list[AnnotatedImage], dict[int, str]]:
    """Reads an instances file.

    Args:
        images: The images' folder.
        annotations: The file.

    Returns:
        The images, and `{category id: name}`.
    """
    document = json.loads(annotations.read_bytes())
    objects = collections.defaultdict(list)
    for annotation in document["annotations"]:
        objects[annotation["image_id"]].append(annotation)
    annotated = []
    for image in document["images"]:
        width, height = image["width"], image["height"]
        boxes = []
        for annotation in objects[image["id"]]:
            x, y, box_width, box_height = annotation["bbox"]
            boxes.append(
                LabelledBox(
                    category_id=annotation["category_id"],
                    xmin=max(0.0, x / width),
                    ymin=max(0.0, y / height),
                    xmax=min(1.0, (x + box_width) / width),
                    ymax=min(1.0, (y + box_height) / height),
                )
            )
        annotated.append(AnnotatedImage(str(images / image["file_name"]), width, height, boxes))
    return annotated, {category["id"]: category["name"] for category in document["categories"]}
