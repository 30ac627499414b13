"""Broken COCO files: every outcome is entries, or an error with file and place."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageRef,
    decode_annotations,
)
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.coco_file import CocoFile, CocoImage
from shardbeam.transforms.formats.coco_panoptic import PanopticReader
from tests.support.making import make_format
from tests.support.stored import StoredFiles

# What stands in the wrong place.
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 7, 8, 2**31, 2**63, -(2**64), 0.5, 1e39, -1e308, "", "7", "a.jpg"),
    *("../a.jpg", "\0", "é", "\ud83d", "x" * 300, [], {}, [[]], [None], [1, 2], [1, 2, 3, 4]),
    *([1e308] * 4, [[1, 2, 3]], [["a"]], {"counts": "a", "size": [3, 4]}, {"counts": []}, [{}]),
)
_BYTES = (b"", b'"', b"{", b"]", b"null", b"1e999", b"-", b"\\u0000", b"\\ud83d", b"\xff", b"\0")
_TASKS = ("detection", "keypoints", "captions", "classification", "semantic")
_MASKS = {name: ImageRef(uri=name, size_bytes=1, version="1") for name in ("a.png", "b.png")}
_NAMES = ("instances.json", "stuff.json")


def fuzz_coco(random: random.Random) -> None:
    """Reads one random, partly broken file, of panoptic segments or any other kind."""
    if random.random() < 0.3:
        uri = "folder/panoptic.json"
        storage = StoredFiles({uri: damaged_json(_panoptic_document(random), random)})
        check_outcome(_read_panoptic(uri, storage=storage), uri=uri)
        return
    uri = f"folder/{random.choice(_NAMES)}"
    storage = StoredFiles({uri: damaged_json(coco_document(random), random)})
    tasks = random.sample(_TASKS, random.randint(1, len(_TASKS)))
    source = make_format(
        "coco", images="i", annotations=[uri], tasks=tasks, _masks=random.random() < 0.5
    )
    check_outcome(read_format(source, storage=storage), uri=uri)


def coco_document(random: random.Random) -> dict[str, Any]:
    """A document whose values are good but for some."""
    images = [
        _broken({"id": 7 + k, "file_name": f"{k}.jpg", "width": 64, "height": 48}, random)
        for k in range(random.randrange(4))
    ]
    categories = [
        _broken({"id": 1 + k, "name": f"c{k}", "keypoints": ["a", "b"], "isthing": 1}, random)
        for k in range(random.randrange(3))
    ]
    annotations = [_annotation(random) for _ in range(random.randrange(6))]
    return _broken({"images": images, "annotations": annotations, "categories": categories}, random)


def damaged_json(content: object, random: random.Random) -> bytes:
    """A document as JSON, most often whole."""
    data = bytearray(json.dumps(content).encode())
    while random.random() < 0.2:
        begin = random.randrange(len(data) + 1)
        data[begin : begin + random.choice([0, 1, 1, 8])] = random.choice(_BYTES)
    return bytes(data)


def read_format(source: Format, *, storage: StoredFiles) -> Iterator[AnnotationEntry | Category]:
    """Reads a format's only file."""
    return source.read_annotations(storage=storage, file_index=0)


def check_outcome(items: Iterator[AnnotationEntry | Category], *, uri: str) -> None:
    """Takes all that a parser yields: none of it unusable, and no error but the typed one."""
    error = None
    try:
        for item in items:
            _check_item(item)
    except InputError as raised:
        error = raised
    if error is not None:
        assert error.uri == uri, error
        # What is wrong with a file as a whole has no place in it.
        assert error.place or error.problem.startswith("the file is"), error
        assert error.problem


def _check_item(item: AnnotationEntry | Category) -> None:
    if isinstance(item, Category):
        item.name.encode()
        assert len(set(item.keypoints)) == len(item.keypoints)
        return
    assert "\0" not in item.key
    (item.key + item.detail).encode()
    if item.defect is not None:
        assert item.detail
        return
    found = decode_annotations(item.annotations)
    for thing in found.objects:
        assert len(thing.bbox) == 4
        assert all(abs(value) <= MAX_FLOAT32 for value in thing.keypoints)
        assert all(visibility in (0, 1, 2) for visibility in thing.keypoints[2::3])
    for caption in found.captions:
        caption.encode()


def _annotation(random: random.Random) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": random.randrange(4), "image_id": random.choice([7, 8, 9])}
    if random.random() < 0.8:
        entry["category_id"] = random.choice([1, 2, 3])
    if random.random() < 0.7:
        entry["bbox"] = [random.choice([0, 1.5, -3, 700]) for _ in range(4)]
    if random.random() < 0.5:
        entry["segmentation"] = random.choice([[[1, 2, 3, 4, 5, 6]], {"counts": "a", "size": [1]}])
    if random.random() < 0.4:
        entry["keypoints"] = [random.choice([0, 1, 2]) for _ in range(6)]
    if random.random() < 0.3:
        entry["caption"] = "A\ndog."
    return _broken(entry, random)


def _panoptic_document(random: random.Random) -> dict[str, Any]:
    annotations = [
        _broken(
            {
                "image_id": random.choice([7, 8, 9]),
                "file_name": random.choice(["a.png", "b.png", "c.png"]),
                "segments_info": [
                    _broken({"id": random.randrange(4), "category_id": 1, "iscrowd": 0}, random)
                    for _ in range(random.randrange(3))
                ],
            },
            random,
        )
        for _ in range(random.randrange(4))
    ]
    return _broken(coco_document(random) | {"annotations": annotations}, random)


def _broken(entry: dict[str, Any], random: random.Random) -> dict[str, Any]:
    while random.random() < 0.08:
        key = random.choice(list(entry) or ["x"])
        if random.random() < 0.2:
            entry.pop(key, None)
        else:
            entry[key] = random.choice(_VALUES)
    return entry


def _read_panoptic(uri: str, *, storage: StoredFiles) -> Iterator[AnnotationEntry | Category]:
    file = CocoFile(uri, storage=storage, image_type=CocoImage)
    reader = PanopticReader(file, masks=_MASKS)
    yield from file.entries(
        reader.annotate, key_of=lambda image: image.file_name, join_of=str, file_index=0
    )
    yield from reader.categories()
