"""Reads Examples as pictures with their annotations, for people to look at.

A field that an Example lacks is empty. Values that do not fit together (lists of different lengths,
values of the wrong kind, coordinates that are not numbers) are left out, and `Picture.problems`
names them: whoever looks at a dataset wants to see what is wrong with it.
"""

from __future__ import annotations

import itertools
import math
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from shardbeam.transforms.core.records import Value
from shardbeam.transforms.dataset.read.dataset import StoredSplit
from shardbeam.transforms.dataset.read.examples import (
    feature_values,
    read_examples,
    recognize_image,
)
from shardbeam.transforms.dataset.read.legend import Legend
from shardbeam.transforms.examples.boxes import Box
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.images.check import CIFAR_BYTES, CIFAR_SIDE_PX
from shardbeam.transforms.storage.base import StoredFile

# The id of an object or label that has none.
NO_ID = -1
# Values of the pixels without a class in a class map, unless a class of the dataset has that id.
NO_CLASS = (0, 255)

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_OBJECT = "image/object/"
_ANNOTATION = "annotation/"
# A box with a larger coordinate is probably not in fractions of the image.
_FAR = 2.0

# x and y in fractions of the image; visibility.
Keypoint: TypeAlias = tuple[float, float, int]

_VISIBLE = 2
_Values: TypeAlias = Sequence["bytes | int | float"]
_T = TypeVar("_T")


class PictureObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a picture.

    Attributes:
        label: Name of its class; empty where it is not known.
        label_id: Id of its class; `NO_ID` where there is none.
        box: `(xmin, ymin, xmax, ymax)` in fractions of the image, as written: the box may reach
            beyond the image, or end before it begins; None if there is none.
        is_crowd: Whether it is a group of objects.
        area: In pixels² of the image; 0 where it is not written.
        mask: A PNG of the whole image with the values 0 and 1; empty if there is none.
        keypoints: `(x, y, visibility)` each: in fractions of the image, and 0 (not labelled), 1
            (hidden) or 2 (visible).
        skeleton: Pairs of indexes into `keypoints` that a line joins.
        attributes: Its other values, by their key without `image/object/`.
    """

    label: str = ""
    label_id: int = NO_ID
    box: Box | None = None
    is_crowd: bool = False
    area: float = 0.0
    mask: bytes = b""
    keypoints: tuple[Keypoint, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    attributes: Mapping[str, Value] = {}


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An Example as a picture to be drawn.

    Attributes:
        key: The image's key (`image/filename`, or else `image/source_id`).
        split: Its split.
        shard: Name of its shard's file.
        number: Its number in the split, from 1.
        image: The encoded image; empty where there is none.
        format: Format of the image: `jpeg`, `png`, `raw`, or another one that its bytes show.
        width: Width of the image in pixels; 0 if it is not known.
        height: Height of the image in pixels; 0 if it is not known.
        labels: Classes of the image as a whole: their names, or their ids.
        captions: Texts that describe it.
        objects: Its objects.
        class_map: A PNG with the class id of each pixel, or one of `NO_CLASS`; the category mask of
            a panoptic map; empty if there is none.
        instance_map: A PNG with the segment number of each pixel of a panoptic map; empty if there
            is none.
        features: `{key as written: values}` of the whole Example.
        problems: The values that do not fit together, one line each.
    """

    key: str
    split: str
    shard: str
    number: int
    image: bytes = b""
    format: str = ""
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    objects: tuple[PictureObject, ...] = ()
    class_map: bytes = b""
    instance_map: bytes = b""
    features: Mapping[str, _Values] = {}
    problems: tuple[str, ...] = ()


def read_pictures(split: StoredSplit, *, legend: Legend, first: int = 1) -> Iterator[Picture]:
    """Yields the pictures of a split, in order; reads only as far as the caller iterates.

    Args:
        split: The split.
        legend: How its Examples are to be read.
        first: The number of the first picture to yield, from 1. Shards before it are skipped
            unread if the dataset says how many Examples they hold.

    Raises:
        InputError: A file cannot be read, is cut off or damaged, or a record in it is not a
            `tf.train.Example`.
    """
    for shard, number, example in read_split(split, first=first):
        yield make_picture(
            example,
            legend=legend,
            split=split.name,
            shard=posixpath.basename(shard.uri),
            number=number,
        )


def read_split(split: StoredSplit, *, first: int = 1) -> Iterator[tuple[StoredFile, int, Example]]:
    """Yields the Examples of a split with their shards and numbers, as `read_pictures` does."""
    number = 1
    for shard, examples in itertools.zip_longest(split.shards, split.shard_examples):
        if examples is not None and number + examples <= first:
            number += examples
            continue
        for example in read_examples(shard, container=split.container):
            if number >= first:
                yield shard, number, example
            number += 1


def make_picture(
    example: Example, *, legend: Legend, split: str, shard: str, number: int
) -> Picture:
    """Makes a picture of an Example; the other arguments become fields of the `Picture`."""
    features = {
        key: tuple(feature_values(feature)[1]) for key, feature in example.features.feature.items()
    }
    values = _ExampleValues(features, legend=legend)
    image = _first(values.bytes_of("image/encoded")) or b""
    if not image and not legend.is_ours:
        image = _find_image(features)
    file_format, width, height = _describe_image(image, values=values)
    if f"{_ANNOTATION}bbox" in values:
        objects = _read_annotation(values, width=width, height=height)
    else:
        objects = _read_objects(values)
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
        labels=tuple(_read_labels(values)),
        captions=tuple(values.texts("image/caption")),
        objects=tuple(objects),
        class_map=panoptic or _first(values.bytes_of("image/segmentation/class/encoded")) or b"",
        instance_map=_first(values.bytes_of("image/panoptic/instance_mask")) or b"",
        features=features,
        problems=tuple(dict.fromkeys(values.problems)),
    )


class _ExampleValues:
    """An Example's values by default key; a value that cannot be used is empty.

    Attributes:
        legend: How the Example is to be read.
        problems: The values that cannot be used, and why.
    """

    def __init__(self, features: Mapping[str, _Values], *, legend: Legend) -> None:
        self.legend = legend
        self.problems: list[str] = []
        self._features = features
        self._read: set[str] = set()

    def __contains__(self, default_key: str) -> bool:
        return self._written(default_key) in self._features

    def __getitem__(self, default_key: str) -> _Values:
        self._read.add(default_key)
        return self._features.get(self._written(default_key), ())

    def unread(self, prefix: str) -> list[str]:
        """Lists the default keys with this prefix that have not been read yet."""
        defaults = {written: default for default, written in self.legend.keys.items()}
        keys = (defaults.get(key, key) for key in self._features)
        return sorted(key for key in keys if key.startswith(prefix) and key not in self._read)

    def bytes_of(self, default_key: str) -> list[bytes]:
        """Returns the values of a key that holds bytes."""
        found = [value for value in self[default_key] if isinstance(value, bytes)]
        return self._checked(found, default_key, expected="bytes")

    def texts(self, default_key: str) -> list[str]:
        """Returns the values of a key that holds texts."""
        return [value.decode(errors="replace") for value in self.bytes_of(default_key)]

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
        self.problems.append(
            f"{self._written(default_key)} has {len(found):,} values for {count:,} objects"
        )
        return []

    def _written(self, default_key: str) -> str:
        return self.legend.keys.get(default_key, default_key)

    def _checked(self, found: list[_T], default_key: str, *, expected: str) -> list[_T]:
        # All values of a list are of one kind, so either all of them are as expected, or none.
        if not found and self[default_key]:
            self.problems.append(f"{self._written(default_key)} holds no {expected}")
        return found


def _first(values: Sequence[_T]) -> _T | None:
    return values[0] if values else None


def _find_image(features: Mapping[str, _Values]) -> bytes:
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


def _read_labels(values: _ExampleValues) -> list[str]:
    names = values.texts("image/class/text")
    ids = values.integers("image/class/label")
    if names and ids and len(names) != len(ids):
        values.problems.append(f"the labels have {len(names):,} names and {len(ids):,} ids")
    return names or [values.legend.class_names.get(each) or str(each) for each in ids]


def _read_objects(values: _ExampleValues) -> list[PictureObject]:
    sides = [values.floats(f"{_OBJECT}bbox/{side}") for side in _SIDES]
    ids = values.integers(f"{_OBJECT}class/label")
    names = values.texts(f"{_OBJECT}class/text")
    masks = values.bytes_of(f"{_OBJECT}mask")
    lengths = Counter(len(found) for found in sides if found) or Counter(
        len(found) for found in (ids, names, masks) if found
    )
    count = lengths.most_common(1)[0][0] if lengths else 0
    sides = [
        values.of_each(f"{_OBJECT}bbox/{side}", found, count=count)
        for side, found in zip(_SIDES, sides, strict=True)
    ]
    if all(sides):
        boxes = [_checked_box(box, values=values) for box in zip(*sides, strict=True)]
    else:
        boxes = [None] * count
        if any(sides):
            values.problems.append("a side of the boxes is missing")
    ids = values.of_each(f"{_OBJECT}class/label", ids, count=count) or [NO_ID] * count
    names = values.of_each(f"{_OBJECT}class/text", names, count=count) or [""] * count
    masks = values.of_each(f"{_OBJECT}mask", masks, count=count) or [b""] * count
    crowds = values.integers(f"{_OBJECT}is_crowd")
    crowds = values.of_each(f"{_OBJECT}is_crowd", crowds, count=count) or [0] * count
    areas = values.floats(f"{_OBJECT}area")
    areas = values.of_each(f"{_OBJECT}area", areas, count=count) or [0.0] * count
    keypoints = _read_keypoints(values, count=count)
    attributes = _read_attributes(values, count=count)
    return [
        _make_object(
            label=names[index],
            label_id=ids[index],
            box=boxes[index],
            is_crowd=bool(crowds[index]),
            area=areas[index],
            mask=masks[index],
            keypoints=keypoints[index],
            attributes=attributes[index],
            legend=values.legend,
        )
        for index in range(count)
    ]


def _read_annotation(values: _ExampleValues, *, width: int, height: int) -> list[PictureObject]:
    """Reads the only object of an Example of `example_per: annotation`."""
    given = values.floats(f"{_ANNOTATION}bbox")
    box: Box | None = None
    if len(given) != 4:
        values.problems.append(f"a box of {len(given):,} numbers; expected x, y, width, height")
    elif width and height:
        x, y, box_width, box_height = given
        sides = (x / width, y / height, (x + box_width) / width, (y + box_height) / height)
        box = _checked_box(sides, values=values)
    label_id = _first(values.integers(f"{_ANNOTATION}class/label"))
    return [
        _make_object(
            label=_first(values.texts(f"{_ANNOTATION}class/text")) or "",
            label_id=NO_ID if label_id is None else label_id,
            box=box,
            is_crowd=bool(_first(values.integers(f"{_ANNOTATION}is_crowd"))),
            area=_first(values.floats(f"{_ANNOTATION}area")) or 0.0,
            mask=_first(values.bytes_of(f"{_ANNOTATION}mask")) or b"",
            attributes=_read_attributes(values, count=1)[0],
            legend=values.legend,
        )
    ]


def _make_object(
    *,
    label: str,
    label_id: int,
    box: Box | None,
    is_crowd: bool,
    area: float,
    mask: bytes,
    attributes: Mapping[str, Value],
    legend: Legend,
    keypoints: tuple[Keypoint, ...] = (),
) -> PictureObject:
    name = label or legend.class_names.get(label_id, "")
    return PictureObject(
        label=name,
        label_id=label_id,
        box=box,
        is_crowd=is_crowd,
        area=area,
        mask=mask,
        keypoints=keypoints,
        skeleton=tuple(
            pair
            for pair in legend.skeletons.get(name, ())
            if min(pair) >= 0 and max(pair) < len(keypoints)
        ),
        attributes=attributes,
    )


def _checked_box(box: Sequence[float], *, values: _ExampleValues) -> Box | None:
    xmin, ymin, xmax, ymax = box
    if not all(map(math.isfinite, box)):
        values.problems.append("a box has a side that is not a number")
        return None
    if max(map(abs, box)) > _FAR:
        values.problems.append("boxes lie far beyond the image; are they in pixels?")
    if xmin > xmax or ymin > ymax:
        values.problems.append("a box ends before it begins")
    return xmin, ymin, xmax, ymax


def _read_keypoints(values: _ExampleValues, *, count: int) -> list[tuple[Keypoint, ...]]:
    xs = values.floats(f"{_OBJECT}keypoint/x")
    ys = values.floats(f"{_OBJECT}keypoint/y")
    visibilities = values.integers(f"{_OBJECT}keypoint/visibility") or [_VISIBLE] * len(xs)
    if xs and (not count or len(xs) % count or not len(xs) == len(ys) == len(visibilities)):
        values.problems.append(
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
    for key in values.unread(_OBJECT):
        found = values[key]
        if len(found) == count and not key.startswith(f"{_OBJECT}keypoint/"):
            name = key.removeprefix(_OBJECT)
            for attribute, value in zip(attributes, found, strict=True):
                attribute[name] = (
                    value.decode(errors="replace") if isinstance(value, bytes) else value
                )
    return attributes
