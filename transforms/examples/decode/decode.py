"""Reads Examples back: as pictures to look at, and as the annotations of their images.

It is the inverse of `encode`, for Examples of any program: with the keys of the TF Object Detection
API and the TF Model Garden, with ours, or with others that a `FeatureMap` names.

A field that an Example lacks is empty. Values that do not fit together (lists of different lengths,
values of the wrong kind, coordinates that are not numbers) are left out. `Picture.problems` names
them, for people who look for what is wrong with a dataset. `annotations_of` refuses an Example
whose values contradict each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation, Value
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    feature_values,
)
from shardbeam.transforms.examples.geometry.boxes import Box, Size
from shardbeam.transforms.examples.geometry.mask_crops import find_patch
from shardbeam.transforms.examples.geometry.segmentation import encode_patch
from shardbeam.transforms.images.check import CIFAR_BYTES, CIFAR_SIDE_PX
from shardbeam.transforms.images.mask_file import read_indices
from shardbeam.transforms.images.read_header import recognize_image

# The id of an object or label that has none.
NO_ID = -1
# Values of the pixels without a class in a class map, unless a class of the dataset has that id.
NO_CLASS = (0, 255)

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_OBJECT = "image/object/"
_ANNOTATION = "annotation/"
_AREAS = (f"{_OBJECT}area", f"{_ANNOTATION}area")
_TYPES = {FeatureKind.BYTES: bytes, FeatureKind.INT64: int, FeatureKind.FLOAT: float}
# A box with a larger coordinate is probably not in fractions of the image.
_FAR = 2.0

# x and y in fractions of the image; visibility.
Keypoint: TypeAlias = tuple[float, float, int]

_VISIBLE = 2
# No image has a longer side.
_MAX_SIDE_PX = (1 << 31) - 1
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
        annotation_id: Its id in `example_per: annotation`; 0 where there is none.
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
    annotation_id: int = 0


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
        label_ids: Their ids; `NO_ID` where there is none.
        captions: Texts that describe it.
        objects: Its objects.
        class_map: A PNG with the class id of each pixel, or one of `NO_CLASS`; the category mask of
            a panoptic map; empty if there is none.
        instance_map: A PNG with the segment number of each pixel of a panoptic map; empty if there
            is none.
        features: `{key as written: values}` of the whole Example.
        problems: The values that do not fit together, one line each.
        contradictions: Those of them that leave open what is annotated.
        is_of_annotation: Whether the Example holds one object of its image (`example_per:
            annotation`).
    """

    key: str
    split: str = ""
    shard: str = ""
    number: int = 1
    image: bytes = b""
    format: str = ""
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    label_ids: tuple[int, ...] = ()
    captions: tuple[str, ...] = ()
    objects: tuple[PictureObject, ...] = ()
    class_map: bytes = b""
    instance_map: bytes = b""
    features: Mapping[str, _Values] = {}
    problems: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    is_of_annotation: bool = False


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
    is_of_annotation = f"{_ANNOTATION}bbox" in values
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
        objects=tuple(objects),
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

    def __init__(self, features: Mapping[str, _Values], *, feature_map: FeatureMap) -> None:
        self.feature_map = feature_map
        self.problems: list[str] = []
        self.contradictions: list[str] = []
        self._features = features
        self._read: set[str] = set()

    def __contains__(self, default_key: str) -> bool:
        return self._written(default_key) in self._features

    def __getitem__(self, default_key: str) -> _Values:
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
            values.contradict("a side of the boxes is missing")
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
            feature_map=values.feature_map,
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
    given = values.floats(f"{_ANNOTATION}bbox")
    stated = [_first(values.integers(f"image/{side}")) or 0 for side in ("width", "height")]
    if all(0 < side <= _MAX_SIDE_PX for side in stated):
        # The Example's pixels are those of the image as it describes it, which may be turned.
        width, height = stated
    box: Box | None = None
    if len(given) != 4:
        values.contradict(f"a box of {len(given):,} numbers; expected x, y, width, height")
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
            annotation_id=_first(values.integers(f"{_ANNOTATION}id")) or 0,
            attributes=_read_attributes(values, count=1)[0],
            feature_map=values.feature_map,
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
    feature_map: FeatureMap,
    keypoints: tuple[Keypoint, ...] = (),
    annotation_id: int = 0,
) -> PictureObject:
    name = label or feature_map.class_names.get(label_id, "")
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
            for pair in feature_map.skeletons.get(name, ())
            if min(pair) >= 0 and max(pair) < len(keypoints)
        ),
        attributes=attributes,
        annotation_id=annotation_id,
    )


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
    xs = values.floats(f"{_OBJECT}keypoint/x")
    ys = values.floats(f"{_OBJECT}keypoint/y")
    visibilities = values.integers(f"{_OBJECT}keypoint/visibility") or [_VISIBLE] * len(xs)
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
    for key in values.unread(_OBJECT):
        found = values[key]
        if len(found) == count and not key.startswith(f"{_OBJECT}keypoint/"):
            name = key.removeprefix(_OBJECT)
            for attribute, value in zip(attributes, found, strict=True):
                attribute[name] = (
                    value.decode(errors="replace") if isinstance(value, bytes) else value
                )
    return attributes


# Annotations of an image.


def annotations_of(
    picture: Picture,
    *,
    feature_map: FeatureMap,
    extras: Sequence[ExtraFeature] = (),
    masks: bool = True,
) -> ImageAnnotations:
    """Makes the annotations that an Example holds, as a format gives them.

    Coordinates are fractions of the image, as in the Example, and so are areas: of the area that
    the Example gives the image, or else of the stored image. Width and height are those that the
    Example gives.

    Args:
        picture: The Example.
        feature_map: How it is read, as for `make_picture`.
        extras: Other keys that are read: `ImageAnnotations.values` and
            `ObjectAnnotation.attributes` hold their values.
        masks: Whether masks of objects are decoded.

    Raises:
        RejectedError: Values of the Example contradict each other, or are not of the kind that
            `extras` names; an object or a label has neither a name nor an id; or a mask cannot be
            read.
    """
    if picture.contradictions:
        raise _malformed("; ".join(picture.contradictions))
    images = _values_of(picture, IMAGE, feature_map=feature_map)
    if len(images) > 1:
        raise _malformed(f"{len(images):,} images in {IMAGE}")
    corrections = Corrections()
    stated, actual = _stated_size(picture, feature_map=feature_map), (picture.width, picture.height)
    if min(stated) <= 0:
        size, stated = actual, (0, 0)
    else:
        size = stated
        if stated not in (actual, actual[::-1]):
            corrections.note(Correction.SIZE_CORRECTED, stated, actual)
    has_areas = (
        any(_values_of(picture, key, feature_map=feature_map) for key in _AREAS) and min(size) > 0
    )
    attributes = _object_extras(picture, feature_map=feature_map, extras=extras)
    objects = []
    for item, extra in zip(picture.objects, attributes, strict=True):
        if item.box is None:
            corrections.note_lost(class_of(item)[0], "no box")
            continue
        objects.append(
            ObjectAnnotation(
                label=_checked_name(class_of(item)[0]),
                bbox=item.box,
                area=item.area / (size[0] * size[1]) if has_areas else -1.0,
                is_crowd=item.is_crowd,
                annotation_id=item.annotation_id,
                segmentation=(
                    _runs_of(item.mask, size=size, stored=actual) if masks and item.mask else b""
                ),
                keypoints=tuple(value for point in item.keypoints for value in point),
                attributes=extra,
            )
        )
    labels = {_checked_name(label): 1.0 for label in picture.labels}
    confidences = _values_of(picture, "image/class/confidence", feature_map=feature_map)
    if confidences and len(confidences) != len(picture.labels):
        raise _malformed(
            f"{len(picture.labels):,} labels and {len(confidences):,} values in "
            "image/class/confidence"
        )
    for label, confidence in zip(picture.labels, confidences, strict=False):
        labels[label] = float(confidence)
    source_id = _values_of(picture, "image/source_id", feature_map=feature_map)
    return ImageAnnotations(
        image_id=_text(source_id[0], key="image/source_id") if source_id else "",
        width=stated[0],
        height=stated[1],
        labels=tuple(labels),
        objects=tuple(objects),
        corrections=dict(corrections),
        changes=corrections.changes,
        lost=corrections.lost,
        normalized=True,
        label_confidences=tuple(labels.values()) if confidences else (),
        captions=picture.captions,
        values={
            extra.spec.key: tuple(
                _carried(value, extra=extra, feature_map=feature_map) for value in found
            )
            for extra in extras
            if not extra.per_object
            and (found := _checked_values(picture, extra, feature_map=feature_map))
        },
    )


def class_of(item: PictureObject) -> tuple[str, int]:
    """Returns an object's class and its id; a class without a name has its id as name."""
    unnamed = "" if item.label_id == NO_ID else str(item.label_id)
    return item.label or unnamed, item.label_id


def keypoint_names(picture: Picture, *, feature_map: FeatureMap) -> tuple[str, ...]:
    """Returns the names of the keypoints of a picture's objects; their numbers if they lack names.

    All objects of a dataset have the same keypoints. Without an object it is not known which.
    """
    count = len(picture.objects[0].keypoints) if picture.objects else 0
    texts = _values_of(picture, f"{_OBJECT}keypoint/text", feature_map=feature_map)[:count]
    names = [text.decode(errors="replace") for text in texts if isinstance(text, bytes)]
    return tuple(names if len(set(names)) == count else map(str, range(count)))


def _values_of(picture: Picture, default_key: str, *, feature_map: FeatureMap) -> _Values:
    return picture.features.get(feature_map.keys.get(default_key, default_key), ())


def _stated_size(picture: Picture, *, feature_map: FeatureMap) -> Size:
    width, height = (
        next(iter(_values_of(picture, f"image/{side}", feature_map=feature_map)), 0)
        for side in ("width", "height")
    )
    if not (isinstance(width, int) and isinstance(height, int)):
        return 0, 0
    return (width, height) if max(width, height) <= _MAX_SIDE_PX else (0, 0)


def _object_extras(
    picture: Picture, *, feature_map: FeatureMap, extras: Sequence[ExtraFeature]
) -> list[dict[str, Value]]:
    """Reads the values of each object's other keys; a key that is absent has none."""
    attributes: list[dict[str, Value]] = [{} for _ in picture.objects]
    for extra in extras:
        found = _checked_values(picture, extra, feature_map=feature_map) if extra.per_object else ()
        if found and len(found) != len(attributes):
            raise _malformed(
                f"{extra.spec.key} has {len(found):,} values for {len(attributes):,} objects"
            )
        for attribute, value in zip(attributes, found, strict=False):
            attribute[extra.spec.key] = _carried(value, extra=extra, feature_map=feature_map)
    return attributes


def _checked_values(picture: Picture, extra: ExtraFeature, *, feature_map: FeatureMap) -> _Values:
    spec = extra.spec
    found = _values_of(picture, spec.key, feature_map=feature_map)
    if found and not isinstance(found[0], _TYPES[spec.kind]):
        raise _malformed(f"{spec.key} holds no {spec.kind.value} values, as other Examples do")
    if found and not spec.repeated and len(found) != spec.length:
        raise _malformed(
            f"{spec.key} has {len(found):,} values, and {spec.length:,} in other Examples"
        )
    return found


def _carried(value: bytes | int | float, *, extra: ExtraFeature, feature_map: FeatureMap) -> Value:
    if extra.spec.role is FeatureRole.LABEL and isinstance(value, int):
        # Formats give names of classes, so that ids follow the labels' settings.
        return feature_map.class_names.get(value, str(value))
    return _text(value, key=extra.spec.key) if isinstance(value, bytes) else value


def _text(value: bytes | int | float, *, key: str) -> str:
    if not isinstance(value, bytes):
        raise _malformed(f"{key} holds no bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"{key}: byte {error.start}: expected UTF-8 text") from error


def _checked_name(name: str) -> str:
    if not name:
        raise _malformed("an object or a label has neither a name nor an id")
    return name


def _runs_of(mask: bytes, *, size: Size, stored: Size) -> bytes:
    """Encodes a mask's pixels that are not 0 in COCO's form; empty if there are none.

    The mask has the size that the Example gives, perhaps with its sides exchanged, or that of the
    stored image.
    """
    pixels = (read_indices(mask, size=size, annotated=stored) != 0).view(np.uint8)
    patch = find_patch(pixels)
    height, width = pixels.shape
    return b"" if patch is None else encode_patch(patch, frame=(width, height))


def _malformed(detail: str) -> RejectedError:
    return RejectedError(Reason.ANNOTATION_MALFORMED, detail)
