"""A small COCO dataset in which one image of each kind is worth a look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.builds import Json, write_coco
from tests.support.image_makers import photograph, save

# {image: the boxes that are planted}; a few pictures are dark, bright or flat.
PLANTED: dict[str, list[tuple[str, list[float]]]] = {
    "large.jpg": [("cat", [0, 0, 320, 235])],
    "tiny.jpg": [("cat", [20, 20, 3, 4])],
    "thin.jpg": [("cat", [10, 10, 250, 9])],
    "twice.jpg": [("cat", [10, 10, 100, 100]), ("cat", [10, 10, 100, 101])],
    "both.jpg": [("cat", [10, 10, 100, 100]), ("dog", [10, 10, 101, 100])],
    "dark.jpg": [("cat", [10, 10, 100, 100])],
    "bright.jpg": [("cat", [10, 10, 100, 100])],
    "flat.jpg": [("cat", [10, 10, 100, 100])],
    "again.jpg": [("Dog", [30, 30, 90, 80])],
    "more.jpg": [("cat", [30, 30, 90, 80]), ("cat", [150, 100, 80, 90])],
}
# Pictures of lower quality of other ones.
COPIES = {"again.jpg": "0.jpg", "more.jpg": "1.jpg"}
KINDS = {
    "large.jpg": "large_box",
    "tiny.jpg": "tiny_box",
    "thin.jpg": "thin_box",
    "twice.jpg": "duplicate_box",
    "both.jpg": "same_box",
    "dark.jpg": "dark_picture",
    "bright.jpg": "bright_picture",
    "flat.jpg": "low_contrast",
    "again.jpg": "same_picture",
    "0.jpg": "same_picture",
    "more.jpg": "unequal_objects",
    "1.jpg": "unequal_objects",
}
FLAT = {"dark.jpg": (0, 55), "bright.jpg": (205, 255), "flat.jpg": (120, 140)}


def write_planted(folder: Path) -> Json:
    """Writes the images and their annotations, and returns the source of a config."""
    (folder / "images").mkdir()
    ordinary = {f"{number}.jpg": [("cat", [30.0, 30.0, 90.0, 80.0])] for number in range(10)}
    all_names = [*PLANTED, *ordinary]
    for number, name in enumerate(all_names):
        seed, quality = number, 95
        if name in COPIES:
            seed, quality = all_names.index(COPIES[name]), 50
        picture = photograph(width=320, height=240, seed=seed)
        if name in FLAT:
            low, high = FLAT[name]
            levels = np.random.default_rng(0).integers(low, high, (60, 80), dtype=np.uint8)
            picture = Image.fromarray(levels.repeat(4, axis=0).repeat(4, axis=1)).convert("RGB")
        (folder / "images" / name).write_bytes(save(picture, "JPEG", quality=quality))
    ids = {"cat": 1, "dog": 2, "Dog": 3}
    objects = [
        {"image_id": number, "category_id": ids[label], "bbox": box}
        for number, boxes in enumerate([*PLANTED.values(), *ordinary.values()])
        for label, box in boxes
    ]
    annotations = write_coco(
        folder / "a.json",
        {
            "images": [
                {"id": number, "file_name": name, "width": 320, "height": 240}
                for number, name in enumerate(all_names)
            ],
            "annotations": [{"id": number, **each} for number, each in enumerate(objects)],
            "categories": [{"id": number, "name": name} for name, number in ids.items()],
        },
    )
    return {"format": "coco", "images": str(folder / "images"), "annotations": [str(annotations)]}
