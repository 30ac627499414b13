"""Broken LVIS files: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import random
from typing import Any

from shardbeam.transforms.formats.lvis import LvisFormat
from tests.fuzz.coco import check_outcome, coco_document, damaged_json, read_format
from tests.support.stored import StoredFiles

_LISTS: tuple[Any, ...] = ([], [1], [2, 99], None, "1", [None], [2**64], {})
_URLS: tuple[Any, ...] = (
    "http://x/val2017/000000000139.jpg",
    "",
    "://",
    "a\0.jpg",
    "../a.jpg",
    None,
    3,
)


def fuzz_lvis(random: random.Random) -> None:
    """Reads one random, partly broken file."""
    content = coco_document(random)
    images = content.get("images")
    for image in images if isinstance(images, list) else ():
        if not isinstance(image, dict):
            continue
        for key in ("neg_category_ids", "not_exhaustive_category_ids"):
            if random.random() < 0.8:
                image[key] = random.choice(_LISTS[: 3 if random.random() < 0.9 else None])
        if random.random() < 0.5:
            image.pop("file_name", None)
            image["coco_url"] = random.choice(_URLS[: 1 if random.random() < 0.8 else None])
    uri = "folder/lvis.json"
    storage = StoredFiles({uri: damaged_json(content, random)})
    check_outcome(read_format(LvisFormat(images="i", annotations=[uri]), storage=storage), uri=uri)
