"""Reads Examples back as pictures to look at.

It is the inverse of `encode`, for Examples of any program: with the keys of the TF Object Detection
API and the TF Model Garden, with ours, or with others that a `FeatureMap` names.

A field that an Example lacks is empty. Values that do not fit together (lists of different lengths,
values of the wrong kind, coordinates that are not numbers) are left out. `Picture.problems` names
them, for people who look for what is wrong with a dataset. `annotations.annotations_of` refuses an
Example whose values contradict each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from shardbeam.transforms.core.records import Value
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import (
    ANNOTATION,
    MAX_SIDE_PX,
    NO_ID,
    OBJECT,
    FeatureValues,
    Keypoint,
    Picture,
    PictureObject,
)
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import feature_values
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.images.check import CIFAR_BYTES, CIFAR_SIDE_PX
from shardbeam.transforms.images.read_header import recognize_image

_SIDES = ("xmin", "ymin", "xmax", "ymax")
# A box with a larger coordinate is probably not in fractions of the image.
_FAR = 2.0


_VISIBLE = 2
_T = TypeVar("_T")


def make_picture(
    example: Example,
    *,
    feature_map: FeatureMap,
    split: str = "",
    shard: str = "",
    number: int = 1,
    with_objects: bool = True,
) -> Picture:
    """Makes a picture of an Example.

    Args:
        example: The Example.
        feature_map: How it is to be read.
        split: The field of the `Picture`, like the next two.
        shard: See there.
        number: See there.
        with_objects: Whether its objects are read, which takes 10 s for a million of them.
    """
    features = {
        key: tuple(feature_values(feature)[1]) for key, feature in example.features.feature.items()
    }
    values = _ExampleValues(features, feature_map=feature_map)
    image = _first(values.bytes_of("image/encoded")) or b""
    if not image and not feature_map.is_ours:
        image = _find_image(features)
    file_format, width, height = _describe_image(image, values=values)
    is_of_annotation = f"{ANNOTATION}bbox" in values
    objects: list[PictureObject] = []
    if with_objects and is_of_annotation:
        objects = _read_annotation(values, width=width, height=height)
    elif with_objects:
        objects = _read_objects(values)
    labels = _read_labels(values)
    panoptic = _first(values.bytes_of("image/panoptic/category_mask"))
    return Picture(
        key=_first(values.texts("image/filename")) or _first(values.texts("image/source_id")) or "",
        split=split,
        shard=shard,
        number=number,
        image=image,
        format=file_format,
        width=width,
        height=height,
        labels=tuple(label for label, _ in labels),
        label_ids=tuple(label_id for _, label_id in labels),
        captions=tuple(values.texts("image/caption")),
        objects=tuple(_describe_object(item, feature_map=feature_map) for item in objects),
        class_map=panoptic or _first(values.bytes_of("image/segmentation/class/encoded")) or b"",
        instance_map=_first(values.bytes_of("image/panoptic/instance_mask")) or b"",
        features=features,
        problems=tuple(dict.fromkeys(values.problems)),
        contradictions=tuple(dict.fromkeys(values.contradictions)),
        is_of_annotation=is_of_annotation,
    )


class _ExampleValues:
    """An Example's values by default key; a value that cannot be used is empty.

    Attributes:
        feature_map: How the Example is to be read.
        problems: The values that cannot be used, and why.
        contradictions: Those of them that leave open what is annotated.
    """

    def __init__(self, features: Mapping[str, FeatureValues], *, feature_map: FeatureMap) -> None:
        self.feature_map = feature_map
        self.problems: list[str] = []
        self.contradictions: list[str] = []
        self._features = features
        self._read: set[str] = set()

    def __contains__(self, default_key: str) -> bool:
        return self._written(default_key) in self._features

    def __getitem__(self, default_key: str) -> FeatureValues:
        self._read.add(default_key)
        return self._features.get(self._written(default_key), ())

    def contradict(self, problem: str) -> None:
        """Notes a problem that leaves open what is annotated."""
        self.problems.append(problem)
        self.contradictions.append(problem)

    def unread(self, prefix: str) -> list[str]:
        """Lists the default keys with this prefix that have not been read yet."""
        defaults = {written: default for default, written in self.feature_map.keys.items()}
        keys = (defaults.get(key, key) for key in self._features)
        return sorted(key for key in keys if key.startswith(prefix) and key not in self._read)

    def bytes_of(self, default_key: str) -> list[bytes]:
        """Returns the values of a key that holds bytes."""
        found = [value for value in self[default_key] if isinstance(value, bytes)]
        return self._checked(found, default_key, expected="bytes")

    def texts(self, default_key: str) -> list[str]:
        """Returns the values of a key that holds texts."""
        found = self.bytes_of(default_key)
        try:
            return [value.decode() for value in found]
        except UnicodeDecodeError:
            self.contradict(f"{self._written(default_key)} is not UTF-8 text")
            return [value.decode(errors="replace") for value in found]

    def integers(self, default_key: str) -> list[int]:
        """Returns the values of a key that holds integers."""
        found = [value for value in self[default_key] if isinstance(value, int)]
        return self._checked(found, default_key, expected="integers")

    def floats(self, default_key: str) -> list[float]:
        """Returns the values of a key that holds numbers."""
        found = [float(value) for value in self[default_key] if not isinstance(value, bytes)]
        return self._checked(found, default_key, expected="numbers")

    def of_each(self, default_key: str, found: list[_T], *, count: int) -> list[_T]:
        """Returns a key's values if there is one for each object; otherwise none."""
        if not found or len(found) == count:
            return found
        self.contradict(
            f"{self._written(default_key)} has {len(found):,} values for {count:,} objects"
        )
        return []

    def _written(self, default_key: str) -> str:
        return self.feature_map.keys.get(default_key, default_key)

    def _checked(self, found: list[_T], default_key: str, *, expected: str) -> list[_T]:
        # All values of a list are of one kind, so either all of them are as expected, or none.
        if not found and self[default_key]:
            self.contradict(f"{self._written(default_key)} holds no {expected}")
        return found


def _first(values: Sequence[_T]) -> _T | None:
    return values[0] if values else None


def _find_image(features: Mapping[str, FeatureValues]) -> bytes:
    """Finds the image of an Example with unknown keys; empty unless there is exactly one."""
    images = [
        values[0]
        for _, values in sorted(features.items())
        if len(values) == 1 and isinstance(values[0], bytes) and recognize_image(values[0])
    ]
    return images[0] if len(images) == 1 else b""


def _describe_image(image: bytes, *, values: _ExampleValues) -> tuple[str, int, int]:
    """Returns an image's format, width and height: from its bytes if possible."""
    stated = _first(values.texts("image/format")) or ""
    width = max(0, _first(values.integers("image/width")) or 0)
    height = max(0, _first(values.integers("image/height")) or 0)
    recognized = recognize_image(image)
    if recognized is None:
        if len(image) == CIFAR_BYTES and (width, height) in ((0, 0), (CIFAR_SIDE_PX,) * 2):
            return "raw", CIFAR_SIDE_PX, CIFAR_SIDE_PX
        if image:
            values.problems.append("the image is not an image file")
        return stated.lower(), width, height
    file_format, header = recognized
    if header is not None:
        if (width or height) and (width, height) != (header.width, header.height):
            values.problems.append(
                f"the image is {header.width} x {header.height} pixels, but the Example says "
                f"{width} x {height}"
            )
        width, height = header.width, header.height
    return file_format.value, width, height


def _read_labels(values: _ExampleValues) -> list[tuple[str, int]]:
    """Reads name and id of each class of the image; a class without a name has its id as name."""
    names = values.texts("image/class/text")
    ids = values.integers("image/class/label")
    if names and ids and len(names) != len(ids):
        values.contradict(f"the labels have {len(names):,} names and {len(ids):,} ids")
        ids = []
    known = values.feature_map.class_names
    names = names or [""] * len(ids)
    ids = ids or [NO_ID] * len(names)
    return [
        (name or known.get(label_id) or ("" if label_id == NO_ID else str(label_id)), label_id)
        for name, label_id in zip(names, ids, strict=True)
    ]


def _read_objects(values: _ExampleValues) -> list[PictureObject]:
    sides = [values.floats(f"{OBJECT}bbox/{side}") for side in _SIDES]
    ids = values.integers(f"{OBJECT}class/label")
    names = values.texts(f"{OBJECT}class/text")
    masks = values.bytes_of(f"{OBJECT}mask")
    lengths = Counter(len(found) for found in sides if found) or Counter(
        len(found) for found in (ids, names, masks) if found
    )
    count = lengths.most_common(1)[0][0] if lengths else 0
    sides = [
        values.of_each(f"{OBJECT}bbox/{side}", found, count=count)
        for side, found in zip(_SIDES, sides, strict=True)
    ]
    if all(sides):
        boxes = [_checked_box(box, values=values) for box in zip(*sides, strict=True)]
    else:
        boxes = [None] * count
        if any(sides):
            values.contradict("a side of the boxes is missing")
    ids = values.of_each(f"{OBJECT}class/label", ids, count=count) or [NO_ID] * count
    names = values.of_each(f"{OBJECT}class/text", names, count=count) or [""] * count
    masks = values.of_each(f"{OBJECT}mask", masks, count=count) or [b""] * count
    crowds = values.integers(f"{OBJECT}is_crowd")
    crowds = values.of_each(f"{OBJECT}is_crowd", crowds, count=count) or [0] * count
    areas = values.floats(f"{OBJECT}area")
    areas = values.of_each(f"{OBJECT}area", areas, count=count) or [0.0] * count
    keypoints = _read_keypoints(values, count=count)
    attributes = _read_attributes(values, count=count)
    return [
        PictureObject(
            label=names[index],
            label_id=ids[index],
            box=boxes[index],
            is_crowd=bool(crowds[index]),
            area=areas[index],
            mask=masks[index],
            keypoints=keypoints[index],
            attributes=attributes[index],
        )
        for index in range(count)
    ]


def _read_annotation(values: _ExampleValues, *, width: int, height: int) -> list[PictureObject]:
    """Reads the only object of an Example of `example_per: annotation`.

    Args:
        values: The Example.
        width: Width of the stored image in pixels; 0 if it is not known.
        height: Height of the stored image in pixels; 0 if it is not known.
    """
    given = values.floats(f"{ANNOTATION}bbox")
    stated = [_first(values.integers(f"image/{side}")) or 0 for side in ("width", "height")]
    if all(0 < side <= MAX_SIDE_PX for side in stated):
        # The Example's pixels are those of the image as it describes it, which may be turned.
        width, height = stated
    box: Box | None = None
    if len(given) != 4:
        values.contradict(f"a box of {len(given):,} numbers; expected x, y, width, height")
    elif width and height:
        x, y, box_width, box_height = given
        sides = (x / width, y / height, (x + box_width) / width, (y + box_height) / height)
        box = _checked_box(sides, values=values)
    label_id = _first(values.integers(f"{ANNOTATION}class/label"))
    return [
        PictureObject(
            label=_first(values.texts(f"{ANNOTATION}class/text")) or "",
            label_id=NO_ID if label_id is None else label_id,
            box=box,
            is_crowd=bool(_first(values.integers(f"{ANNOTATION}is_crowd"))),
            area=_first(values.floats(f"{ANNOTATION}area")) or 0.0,
            mask=_first(values.bytes_of(f"{ANNOTATION}mask")) or b"",
            annotation_id=_first(values.integers(f"{ANNOTATION}id")) or 0,
            attributes=_read_attributes(values, count=1)[0],
        )
    ]


def _describe_object(item: PictureObject, *, feature_map: FeatureMap) -> PictureObject:
    """Adds the name of an object's class, and the lines between its keypoints."""
    label = item.label or feature_map.class_names.get(item.label_id, "")
    skeleton = tuple(
        pair
        for pair in feature_map.skeletons.get(label, ())
        if min(pair) >= 0 and max(pair) < len(item.keypoints)
    )
    return msgspec.structs.replace(item, label=label, skeleton=skeleton)


def _checked_box(box: Sequence[float], *, values: _ExampleValues) -> Box | None:
    xmin, ymin, xmax, ymax = box
    if not all(map(math.isfinite, box)):
        values.problems.append("a box has a side that is not a number")
        return None
    if max(map(abs, box)) > _FAR:
        values.contradict("boxes lie far beyond the image; are they in pixels?")
    if xmin > xmax or ymin > ymax:
        values.problems.append("a box ends before it begins")
    return xmin, ymin, xmax, ymax


def _read_keypoints(values: _ExampleValues, *, count: int) -> list[tuple[Keypoint, ...]]:
    xs = values.floats(f"{OBJECT}keypoint/x")
    ys = values.floats(f"{OBJECT}keypoint/y")
    visibilities = values.integers(f"{OBJECT}keypoint/visibility") or [_VISIBLE] * len(xs)
    if xs and (not count or len(xs) % count or not len(xs) == len(ys) == len(visibilities)):
        values.contradict(
            f"{len(xs):,} x, {len(ys):,} y and {len(visibilities):,} visibilities of keypoints for "
            f"{count:,} objects"
        )
        xs = []
    points = [
        (x, y, visibility) if math.isfinite(x) and math.isfinite(y) else (0.0, 0.0, 0)
        for x, y, visibility in zip(xs, ys, visibilities, strict=False)
    ]
    each = len(points) // count if count else 0
    return [tuple(points[index * each : (index + 1) * each]) for index in range(count)]


def _read_attributes(values: _ExampleValues, *, count: int) -> list[dict[str, Value]]:
    """Reads the other values of each object: keys that formats or other programs add."""
    attributes: list[dict[str, Value]] = [{} for _ in range(count)]
    for key in values.unread(OBJECT):
        found = values[key]
        if len(found) == count and not key.startswith(f"{OBJECT}keypoint/"):
            name = key.removeprefix(OBJECT)
            for attribute, value in zip(attributes, found, strict=True):
                attribute[name] = (
                    value.decode(errors="replace") if isinstance(value, bytes) else value
                )
    return attributes
